"""Celery's results in Redis, with a worker of its own: celery_results.py HOST PORT

The broker is the memory of this process, in which the worker is a thread: Redis as a broker needs lists, and
the broker of files sometimes reads one that is not written yet.
"""
import sys
import tempfile
from pathlib import Path

import celery
from celery import Celery, group, states
from celery.contrib.testing.worker import start_worker
from celery.result import AsyncResult, GroupResult

from program import LARGE, raises, restart, until

app = Celery("celery_results", broker="memory://", backend=f"redis://{sys.argv[1]}:{sys.argv[2]}/3")
app.conf.update(
    broker_transport_options={"polling_interval": 0.01},
    result_expires=3600,
    result_extended=True,
    task_track_started=True,
)


@app.task
def add(one, other):
    return one + other


@app.task
def refuse(word):
    raise ValueError(word)


@app.task(bind=True)
def proceed(self, gate):
    """Tells its progress until a file is there."""
    self.update_state(state="PROGRESS", meta={"done": 50})
    until("the gate", Path(gate).exists)
    return "through"


@app.task(bind=True, max_retries=2, default_retry_delay=0)
def insist(self):
    if self.request.retries < 2:
        raise self.retry()
    return self.request.retries


@app.task
def long_text():
    return LARGE.hex()


def results():
    result = add.delay(2, 3)
    assert result.get(timeout=60) == 5
    assert result.successful() and result.state == states.SUCCESS and result.result == 5
    assert AsyncResult(result.id, app=app).get(timeout=60) == 5
    assert AsyncResult(result.id, app=app).args == [2, 3]
    refused = refuse.delay("no")
    assert raises(ValueError, refused.get, timeout=60) == "no"
    assert refused.failed() and refused.state == states.FAILURE and "ValueError" in refused.traceback
    assert insist.delay().get(timeout=60) == 2
    assert long_text.delay().get(timeout=60) == LARGE.hex()
    # Forgotten: its key is gone.
    assert app.backend.client.exists(app.backend.get_key_for_task(result.id)) == 1
    assert 3500 < app.backend.client.ttl(app.backend.get_key_for_task(result.id)) <= 3600
    result.forget()
    assert app.backend.client.exists(app.backend.get_key_for_task(result.id)) == 0
    assert AsyncResult(result.id, app=app).state == states.PENDING


def progress(folder):
    gate = folder / "gate"
    result = proceed.delay(str(gate))
    until("progress", lambda: result.state == "PROGRESS")
    assert result.info == {"done": 50}
    gate.touch()
    assert result.get(timeout=60) == "through"


def groups():
    sums = group(add.s(number, number) for number in range(50)).apply_async()
    assert sums.get(timeout=60) == [2 * number for number in range(50)]
    sums.save(backend=app.backend)
    restored = GroupResult.restore(sums.id, app=app)
    assert restored.get(timeout=60) == [2 * number for number in range(50)]
    restored.delete()
    assert GroupResult.restore(sums.id, app=app) is None
    # A chain: each result is an argument of the next task.
    assert (add.s(1, 2) | add.s(3) | add.s(4)).apply_async().get(timeout=60) == 10
    return add.delay(20, 22)


def main():
    app.backend.client.flushdb()
    worker = start_worker(app, pool="solo", perform_ping_check=False, loglevel="warning")
    with worker, tempfile.TemporaryDirectory() as folder:
        results()
        progress(Path(folder))
        kept = groups()
        assert kept.get(timeout=60) == 42
        restart()
        # Old results are there, and new ones come.
        assert AsyncResult(kept.id, app=app).get(timeout=60) == 42
        assert add.delay(1, 1).get(timeout=60) == 2


main()
print(f"celery {celery.__version__}: ok")
