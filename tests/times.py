"""CPU seconds of a test run by file (`--times FILE` writes them), for `make test-times` and its budget in CI.

A worker's CPU seconds count its threads and the processes that it started; those between tests (imports, collection)
are the row "imports and collection". The seconds of a fixed computation, measured by the same process right after the
tests, take the speed of the machine out.
"""

import json
import os
import statistics
import time
from collections import Counter
from pathlib import Path

import pytest

EVENTS = {"/jax/compilation_cache/cache_hits": "loaded", "/jax/compilation_cache/cache_misses": "compiled"}


def cpu_seconds():
    return sum(os.times()[:4])


def reference_seconds(repeats=5):
    """CPU seconds that tracing and compiling a fixed program takes here: what most tests spend their time on."""
    import jax  # not above: this file is loaded before tests/conftest.py, which sets how jax is to start
    import jax.numpy as jnp

    def once(number):
        def program(x):
            for k in range(30):
                x = jnp.sin(x @ x.T + k + number).sum(axis=1, keepdims=True) * jnp.where(x > 0, x, 1 - x)
            return x

        start = cpu_seconds()
        jax.jit(program).lower(jnp.ones((8, 8))).compile()
        return cpu_seconds() - start

    now = time.time() % 1e5  # in the program, so that none is on disk or compiled already
    return statistics.median(once(now + number) for number in range(repeats))


class Times:
    """Collects in each worker, and in the process that the workers report to."""

    def __init__(self, config):
        self.config, self.seconds, self.items, self.workers = config, Counter(), Counter(), []
        self.programs, self.start = Counter(), 0.0
        self.is_worker = hasattr(config, "workerinput")

    def pytest_sessionstart(self):
        import jax

        jax.monitoring.register_event_listener(self.count_program)

    def count_program(self, event, **_):
        if event in EVENTS:
            self.programs[EVENTS[event]] += 1

    def pytest_runtest_logstart(self):
        self.start = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call):
        report = yield
        if call.when == "teardown":
            report.user_properties.append(("cpu", cpu_seconds() - self.start))
        return report

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            file = report.nodeid.partition("::")[0]
            self.seconds[file] += dict(report.user_properties)["cpu"]
            self.items[file] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.workers.append(node.workeroutput["times"])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        own = {"cpu": cpu_seconds(), **self.programs}
        if self.is_worker:
            self.config.workeroutput["times"] = own
            return
        workers = self.workers or [own]
        total = sum(worker["cpu"] for worker in workers)
        seconds = dict(self.seconds) | {"imports and collection": total - sum(self.seconds.values())}
        report = {
            "seconds": {file: round(spent, 2) for file, spent in seconds.items()},
            "items": dict(self.items),
            "compiled": sum(worker.get("compiled", 0) for worker in workers),
            "loaded": sum(worker.get("loaded", 0) for worker in workers),
            "reference": reference_seconds(),
        }
        file = Path(self.config.getoption("--times"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(report, indent=1), encoding="utf-8")


def pytest_addoption(parser):
    parser.addoption("--times", metavar="FILE", help="write the CPU seconds of each test file to FILE")


def pytest_configure(config):
    if config.getoption("--times"):
        config.pluginmanager.register(Times(config))
