"""What redis-py's users do first, against a server that the test has started.

    redis_py.py HOST PORT          the basics, with RESP3 (the default), RESP2 and decoded replies; a restart
    redis_py.py HOST PORT full     fills a small server and sees the error that users catch
"""
import sys
import time

import redis

from program import LARGE, raises, restart


def locks(client):
    """redis-py's lock: taken, kept from others, extended, let go."""
    with client.lock("lock", timeout=10) as lock:
        assert not client.lock("lock", timeout=10).acquire(blocking=False)
        assert lock.extend(10) and 10 < client.ttl("lock") <= 20
        assert lock.reacquire() and client.ttl("lock") <= 10
    assert client.exists("lock") == 0
    lost = client.lock("lock", timeout=10)
    assert lost.acquire()
    client.set("lock", "somebody else's")
    raises(redis.exceptions.LockNotOwnedError, lost.release)
    client.delete("lock")


def messages(client, text):
    """Publishing and listening, by name and by pattern."""
    with client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe("news")
        listener.psubscribe("n*")
        deadline = time.monotonic() + 10
        while client.publish("news", "first") < 2:
            listener.get_message()
            assert time.monotonic() < deadline, "nobody listens"
        heard = set()
        while len(heard) < 2:
            message = listener.get_message(timeout=1)
            assert time.monotonic() < deadline, f"only {heard} was heard"
            if message is not None:
                heard.add((message["type"], message["data"]))
        assert heard == {("message", text("first")), ("pmessage", text("first"))}
        assert client.pubsub_channels() == [text("news")] and client.pubsub_numpat() == 1


def basics(client, text):
    """`text` makes what a reply holds of a string."""
    assert client.ping() is True
    assert client.flushall() is True
    assert client.get("absent") is None
    assert client.set("a", "1") is True
    assert client.get("a") == text("1")
    assert client.set("a", "2", nx=True) is None
    assert client.set("absent", "2", xx=True) is None
    assert client.set("a", "3", get=True) == text("1")
    assert client.mget("a", "absent") == [text("3"), None]
    assert client.mset({"b": "4", "c": "5"}) is True and client.mget("b", "c") == [text("4"), text("5")]
    assert not client.msetnx({"c": "6", "d": "7"}) and client.delete("b", "c", "d") == 2
    assert client.set("empty", b"") is True and client.get("empty") == text("")
    assert client.strlen("a") == 1 and client.type("a") == text("string")
    assert client.exists("a", "empty", "absent") == 2
    assert client.delete("a", "empty", "absent") == 2
    assert client.exists("a") == 0 and client.dbsize() == 0

    # Expiry: set, changed, taken back, come.
    assert client.ttl("absent") == -2
    client.set("a", "1", ex=100)
    assert 98 <= client.ttl("a") <= 100
    assert client.set("a", "2", keepttl=True) and client.ttl("a") > 90
    assert client.persist("a") == 1 and client.ttl("a") == -1
    assert client.expire("a", 50) == 1 and 0 < client.pttl("a") <= 50_000
    assert client.pexpire("a", 1) == 1
    deadline = time.monotonic() + 10
    while client.get("a") is not None:
        assert time.monotonic() < deadline, "it does not expire"
    assert client.exists("a") == 0 and client.ttl("a") == -2

    # Counting and changing.
    assert client.incr("n") == 1 and client.incrby("n", 41) == 42 and client.decr("n", 2) == 40
    assert abs(client.incrbyfloat("f", 1.5) - 1.5) < 1e-9
    assert client.append("s", "Hello ") == 6 and client.append("s", "World") == 11
    assert client.setrange("s", 6, "Redis") == 11 and client.get("s") == text("Hello Redis")
    assert client.getrange("s", -5, -1) == text("Redis")
    assert client.getdel("s") == text("Hello Redis") and client.getdel("s") is None
    assert client.setnx("s", "1") and not client.setnx("s", "2")
    assert client.setex("s", 100, "3") and client.getex("s", persist=True) == text("3") and client.ttl("s") == -1
    assert sorted(client.keys("*")) == [text("f"), text("n"), text("s")]
    assert client.randomkey() in client.keys() and client.touch("n", "absent") == 1
    assert client.delete("n", "f", "s") == 3

    # A pipeline, replies in order, an error in its place.
    with client.pipeline(transaction=False) as pipeline:
        for number in range(1000):
            pipeline.set(f"key:{number}", f"value:{number}")
        assert pipeline.execute() == [True] * 1000
        for number in range(1000):
            pipeline.get(f"key:{number}")
        assert pipeline.execute() == [text(f"value:{number}") for number in range(1000)]
        pipeline.set("a", "1").execute_command("GET").get("a")
        replies = pipeline.execute(raise_on_error=False)
        assert replies[0] is True and replies[2] == text("1")
        assert type(replies[1]) is redis.ResponseError
    assert client.delete("a") == 1
    assert sorted(client.scan_iter(count=100)) == sorted(text(f"key:{number}") for number in range(1000))
    assert set(client.scan_iter(match="key:99?")) == {text(f"key:99{digit}") for digit in range(10)}
    assert client.dbsize() == 1000

    assert "wrong number of arguments" in raises(redis.ResponseError, client.execute_command, "GET")
    assert "unknown command" in raises(redis.ResponseError, client.execute_command, "FLY", "away")
    raises(redis.ResponseError, client.execute_command, "SET", "a", "1", "EX", "soon")
    assert client.info("server")["redis_version"]
    assert client.config_get("maxmemory")
    assert client.flushdb() is True and client.dbsize() == 0


def transactions(client, text):
    """pipeline() as it is by default: MULTI and EXEC around it; and watching keys."""
    with client.pipeline() as pipeline:
        assert pipeline.set("t", "1").incr("t").get("t").execute() == [True, 2, text("2")]
        for number in range(1000):
            pipeline.set(f"t:{number}", number)
        assert pipeline.execute() == [True] * 1000
        # One that fails when it is done: the others are done.
        replies = pipeline.set("t", "text").incr("t").set("after", "1").execute(raise_on_error=False)
        assert replies[0] is True and replies[2] is True and "not an integer" in str(replies[1])
        # One that cannot be queued: nothing is done.
        pipeline.set("t", "lost").execute_command("GET")
        assert "wrong number of arguments" in raises(redis.ResponseError, pipeline.execute)
        assert client.get("t") == text("text")
        # Another writer between WATCH and EXEC: nothing is done.
        pipeline.watch("t")
        client.set("t", "changed")
        pipeline.multi()
        pipeline.set("t", "lost")
        raises(redis.WatchError, pipeline.execute)
        assert client.get("t") == text("changed")
        # Nobody between, and a watch that was taken back.
        pipeline.watch("t")
        pipeline.unwatch()
        client.set("t", "10")
        pipeline.watch("t")
        before = int(pipeline.get("t"))
        pipeline.multi()
        assert pipeline.set("t", before + 1).execute() == [True]

    # The helper that tries again, with one conflict.
    rounds = []

    def double(pipeline):
        before = int(pipeline.get("t"))
        if not rounds:
            client.set("t", "100")
        rounds.append(before)
        pipeline.multi()
        pipeline.set("t", 2 * before)

    assert client.transaction(double, "t") == [True] and rounds == [11, 100]
    assert client.get("t") == text("200")
    client.flushdb()


def large(client):
    """Values far above a record's limit, binary ones too."""
    for value in (LARGE, LARGE * 4):
        assert client.set("large", value) is True
        assert client.get("large") == value and client.strlen("large") == len(value)
    assert client.set("large", "small") is True and client.get("large") == b"small"
    assert client.delete("large") == 1


def operators(client, where):
    """What operators ask, as redis-py reads the replies."""
    assert client.config_set("slowlog-log-slower-than", 0) is True
    client.set("slow", "value")
    entries = client.slowlog_get(10)
    assert any(entry["command"] == b"SET slow value" for entry in entries), entries
    assert client.slowlog_len() >= 2 and client.slowlog_reset() is True
    assert client.config_set("slowlog-log-slower-than", 10000) is True
    raises(redis.ResponseError, client.config_set, "databases", 7)
    assert client.latency_latest() == [] and client.latency_reset() == 0
    histogram = client.execute_command("LATENCY HISTOGRAM", "set")
    assert b"set" in histogram, histogram
    stats = client.info("commandstats")
    assert stats["cmdstat_set"]["calls"] > 0 and stats["cmdstat_slowlog|get"]["calls"] > 0, stats
    assert "p99" in client.info("latencystats")["latency_percentiles_usec_set"]
    assert client.acl_whoami() in ("default", b"default") and "string" in str(client.acl_cat())
    assert client.acl_getuser("default")["enabled"] is True
    assert client.memory_stats()["total.allocated"] > 0 and client.memory_purge() is True
    assert client.module_list() == [] and client.function_list() == []
    assert "Get the value" in str(client.execute_command("COMMAND DOCS", "get"))
    assert client.command_getkeysandflags("GET", "a") == [[b"a", [b"RO", b"access"]]]
    assert "cluster support disabled" in raises(redis.ResponseError, client.execute_command, "CLUSTER", "SLOTS")
    assert client.client_trackinginfo() and client.client_getredir() == -1
    assert client.client_unblock(999) == 0
    # Another client waits for the end of a pause.
    assert client.client_pause(60_000, all=False) is True
    other = redis.Redis(**{**where, "socket_timeout": 0.3, "retry": None})
    assert other.get("slow") == b"value"
    raises(redis.exceptions.TimeoutError, other.set, "slow", "later")
    assert client.get("slow") == b"value" and client.client_unpause()
    with client.monitor() as monitor:
        client.get("watched")
        seen = monitor.next_command()
        while "watched" not in seen["command"]:
            seen = monitor.next_command()
        assert seen["command"] == "GET watched" and seen["db"] == 0, seen
    client.flushdb()


def full(client):
    value = b"v" * 100_000
    stored = 0
    words = ""
    while not words and stored < 10_000:
        try:
            client.set(f"key:{stored}", value)
            stored += 1
        except redis.exceptions.OutOfMemoryError as error:
            words = str(error)
    assert "no space left on device" in words, words
    assert client.get("key:0") == value
    assert client.delete(*(f"key:{number}" for number in range(stored // 2))) == stored // 2
    deadline = time.monotonic() + 20
    while True:
        try:
            return client.set("again", value)
        except redis.exceptions.OutOfMemoryError:
            assert time.monotonic() < deadline, "space does not come back"


def outlives_a_restart(client):
    client.set("large", LARGE)
    client.set("expires", "1", ex=1000)
    restart()
    # The connection is dead; redis-py makes a new one and tries again.
    assert client.get("large") == LARGE and 0 < client.ttl("expires") <= 1000
    assert client.dbsize() == 2 and client.delete("large", "expires") == 2


def main():
    where = {"host": sys.argv[1], "port": int(sys.argv[2]), "socket_timeout": 30}
    if sys.argv[3:] == ["full"]:
        full(redis.Redis(**where))
        return
    default = redis.Redis(**where)
    hello = default.execute_command("HELLO")
    assert hello[b"proto" if b"proto" in hello else "proto"] == 3, hello
    raw = [default, redis.Redis(protocol=2, **where)]
    decoded = [redis.Redis(protocol=protocol, decode_responses=True, **where) for protocol in (2, 3)]
    for client in raw + decoded:
        text = str.encode if client in raw else str
        basics(client, text)
        transactions(client, text)
        messages(client, text)
    for client in raw:
        locks(client)
        large(client)
    operators(raw[1], where)
    operators(raw[0], where)
    named = redis.Redis(client_name="somebody", db=3, **where)
    assert named.client_getname() in ("somebody", b"somebody")
    assert named.set("a", "1") and default.get("a") is None and named.dbsize() == 1
    outlives_a_restart(default)


main()
print(f"redis-py {redis.__version__}: ok")
