"""A plugin of pytest for redis-py's own tests: leaves some out, and writes what became of each other.

    -p outcomes --outcomes FILE --leave-out FILE

A line of the first file: passed, failed or skipped, the test, and the words of its exception, with tabs
between. A line of the second is a test; one that does not exist is an error.
"""
import pytest

outcomes = {}
words = {}


def pytest_addoption(parser):
    parser.addoption("--outcomes", required=True)
    parser.addoption("--leave-out", required=True)


def pytest_collection_modifyitems(config, items):
    with open(config.getoption("--leave-out"), encoding="utf-8") as file:
        unwanted = set(file.read().splitlines())
    missing = unwanted - {item.nodeid for item in items}
    if missing:
        raise pytest.UsageError(f"there are no such tests: {sorted(missing)}")
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in unwanted])
    items[:] = [item for item in items if item.nodeid not in unwanted]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    # A test has three reports: setting up, itself, tearing down. The worst counts.
    if report.failed:
        outcomes[item.nodeid] = "failed"
        words.setdefault(item.nodeid, " ".join(f"{call.excinfo.typename}: {call.excinfo.value}".split())[:300])
    elif report.skipped:
        outcomes.setdefault(item.nodeid, "skipped")
    elif report.when == "call":
        outcomes.setdefault(item.nodeid, "passed")


def pytest_sessionfinish(session):
    with open(session.config.getoption("--outcomes"), "w", encoding="utf-8") as file:
        for test, outcome in outcomes.items():
            file.write(f"{outcome}\t{test}\t{words.get(test, '')}\n")
