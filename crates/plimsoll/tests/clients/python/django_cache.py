"""Django's own Redis cache, django-redis, and sessions in the cache: django_cache.py HOST PORT"""
import sys

import django
import django_redis
from django.conf import settings

from program import LARGE, raises, restart, until

WHERE = f"redis://{sys.argv[1]}:{sys.argv[2]}"
settings.configure(
    CACHES={
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": f"{WHERE}/1"},
        "django-redis": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"{WHERE}/2",
            "OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"},
        },
    },
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
    SECRET_KEY="a test's",
    USE_TZ=True,
)
django.setup()

from django.contrib.sessions.backends.cache import SessionStore  # noqa: E402: after setup()
from django.core.cache import caches  # noqa: E402


def everything(cache):
    """What django.core.cache promises of every backend."""
    cache.clear()
    value = {"a": [1, 2.5, None], "ünï": ("✓", b"\x00\xff")}
    cache.set("key", value)
    assert cache.get("key") == value and "key" in cache and cache.has_key("key")
    assert cache.get("absent") is None and cache.get("absent", 7) == 7
    assert cache.add("key", 1) is False and cache.add("new", 1) is True and cache.get("new") == 1
    assert cache.get_or_set("made", lambda: "once") == "once" and cache.get("made") == "once"
    assert cache.delete("new") is True and not cache.delete("new")

    # Many at once: one transaction sets them and their expiry.
    many = {f"many:{number}": number for number in range(100)}
    assert not cache.set_many(many, timeout=100)
    assert cache.get_many([*many, "absent"]) == many
    cache.delete_many(list(many)[:50])
    assert cache.get_many(many) == {key: number for key, number in many.items() if number >= 50}

    cache.set("n", 1)
    assert cache.incr("n") == 2 and cache.incr("n", 40) == 42 and cache.decr("n", 2) == 40
    raises(ValueError, cache.incr, "absent")

    cache.set("short", "lived", timeout=0.03 if cache is caches["django-redis"] else 1)
    cache.set("for_ever", 1, timeout=None)
    cache.set("at_once", 1, timeout=0)
    assert cache.get("at_once") is None
    assert cache.touch("key", 1000) and not cache.touch("absent", 1000)
    until("expiry", lambda: cache.get("short") is None)
    assert cache.get("for_ever") == 1

    cache.set("version", "old", version=1)
    assert cache.incr_version("version") == 2
    assert cache.get("version") is None and cache.get("version", version=2) == "old"

    cache.set("large", LARGE)
    assert cache.get("large") == LARGE


def more_of_django_redis(cache):
    """What django-redis adds."""
    cache.set("key", 1, timeout=100)
    assert 0 < cache.ttl("key") <= 100 and 99_000 < cache.pttl("key") <= 100_000
    assert cache.persist("key") and cache.ttl("key") is None and cache.ttl("absent") == 0
    assert cache.expire("key", timeout=50) and 0 < cache.ttl("key") <= 50
    assert cache.pexpire("key", timeout=5000) and 0 < cache.pttl("key") <= 5000
    assert cache.set("key", 2, nx=True) is False and cache.get("key") == 1

    cache.set_many({f"found:{number}": number for number in range(300)})
    found = {f"found:{number}" for number in range(300)}
    assert set(cache.keys("found:*")) == found and set(cache.iter_keys("found:*", itersize=50)) == found
    assert cache.delete_pattern("found:*", itersize=50) == 300 and cache.keys("found:*") == []

    # A lock, and another that does not get it.
    with cache.lock("lock", timeout=10) as lock:
        assert not cache.lock("lock", timeout=10, blocking_timeout=0.01).acquire()
        assert lock.owned()
    with cache.lock("lock", timeout=10, blocking_timeout=5):
        pass
    raw = django_redis.get_redis_connection("django-redis")
    assert raw.ping() and raw.exists("lock") == 0 and raw.exists(":1:lock") == 0


def sessions():
    session = SessionStore()
    session["user"] = {"name": "Plimsoll"}
    session.save()
    assert SessionStore(session_key=session.session_key)["user"] == {"name": "Plimsoll"}
    old = session.session_key
    session.cycle_key()
    assert session.session_key != old and not session.exists(old)
    session.flush()
    assert not session.exists(old)
    session = SessionStore()
    session["stays"] = 1
    session.save()
    return session.session_key


def main():
    everything(caches["default"])
    everything(caches["django-redis"])
    more_of_django_redis(caches["django-redis"])
    key = sessions()
    restart()
    # Django's connection is dead; redis-py makes a new one and tries again.
    for name in ("default", "django-redis"):
        cache = caches[name]
        assert cache.get("for_ever") == 1 and cache.get("large") == LARGE, name
        cache.set("after", 1)
        assert cache.get("after") == 1
    assert SessionStore(session_key=key)["stays"] == 1
    # FLUSHDB empties its own database alone.
    caches["default"].clear()
    assert caches["default"].get("after") is None and caches["django-redis"].get("after") == 1


main()
print(f"django {django.__version__}: ok")
print(f"django-redis {django_redis.__version__}: ok")
