"""Run pytest in forks of one process that has imported jax, a request for each line of standard input.

A request is a JSON object: the arguments of pytest, the tests to run (all, if the list is empty), the CPU seconds that
it may use, and perhaps a file for the seconds of each test. The answer is a line with the exit status. The package
itself is imported in the fork, so each request sees the files as they are.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path

import chex as chex
import equinox as equinox
import hypothesis as hypothesis
import jax as jax
import networkx as networkx
import optax as optax
import pytest
import scipy as scipy
import sklearn as sklearn


class Order:
    """Runs chosen tests only, in their order (all, if none are chosen), and notes the seconds of each."""

    def __init__(self, chosen):
        self.rank = {name: k for k, name in enumerate(chosen)}
        self.seconds = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        if self.rank:
            items[:] = sorted((item for item in items if item.nodeid in self.rank), key=lambda i: self.rank[i.nodeid])

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def answer(request):
    """Run pytest as requested, and return its exit status."""
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    os.environ |= request.get("environment", {})
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"]))
    signal.alarm(8 * request["seconds"])  # asleep for good
    order = Order(request["tests"])
    status = int(pytest.main(request["arguments"], plugins=[order]))
    if "times" in request:
        Path(request["times"]).write_text(json.dumps(order.seconds), encoding="utf-8")
    return status


for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os._exit(answer(json.loads(line)))
    print(os.waitpid(child, 0)[1], flush=True)
