"""redis-py over TLS: a pipeline, 8 MiB there and back, listeners. Arguments: port, file of the authority."""

import sys

import redis

port, authority = int(sys.argv[1]), sys.argv[2]
client = redis.Redis(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=authority, socket_timeout=60)
assert client.ping()

value = bytes(range(256)) * (8 << 12)
assert len(value) == 8 << 20
assert client.set("large", value)
assert client.get("large") == value
assert client.getrange("large", 1 << 20, (1 << 20) + 999) == value[1 << 20 : (1 << 20) + 1000]

pipeline = client.pipeline(transaction=False)
for number in range(2000):
    pipeline.set(f"k{number}", b"v" * number)
for number in range(2000):
    pipeline.get(f"k{number}")
assert pipeline.execute()[2000:] == [b"v" * number for number in range(2000)]

listener = client.pubsub(ignore_subscribe_messages=True)
listener.subscribe("news")
listener.get_message(timeout=60)
assert client.publish("news", value[:10_000]) == 1
message = listener.get_message(timeout=60)
assert message["data"] == value[:10_000]

try:
    redis.Redis(host="127.0.0.1", port=port, ssl=True, socket_timeout=60).ping()
    sys.exit("a certificate of an unknown authority was accepted")
except redis.exceptions.ConnectionError as error:
    assert "certificate verify failed" in str(error), error
