"""Print the CPU seconds of each test file in the last `make test`, and fail if all of them exceed the budget.

The budget is what the tests take now and a fifth more, so that they do not become slower unseen; the aim is 6 CPU
minutes warm and 14 cold. It is in CPU seconds on the machine where REFERENCE was measured: a machine that takes longer
for the fixed computation of `tests/times.py` may take longer for the tests, by as much. A machine that is quicker there
gets no smaller budget, because that computation runs alone and the tests run beside each other. Between WARM, where
every program is loaded from `.pytest_cache/jax`, and COLD, where every one is compiled, the budget is in proportion.
"""

import json
import sys
from pathlib import Path

TIMES = Path(__file__).resolve().parent.parent / "build" / "test-times.json"
WARM, COLD = 16 * 60, 25 * 60
REFERENCE = 0.85


def main() -> int:
    if not TIMES.exists():
        print("no times yet: run make test first", file=sys.stderr)
        return 1
    times = json.loads(TIMES.read_text(encoding="utf-8"))
    scale = max(times["reference"] / REFERENCE, 1.0)
    rows = sorted(times["seconds"].items(), key=lambda row: -row[1])
    for file, seconds in rows:
        items = times["items"].get(file, 0)
        print(f"{seconds:8.1f} s {items or '':>5} {'tests' if items else '     '}  {file}")
    total = sum(times["seconds"].values())
    share = times["compiled"] / max(times["compiled"] + times["loaded"], 1)
    budget = WARM + share * (COLD - WARM)
    print(
        f"{total:8.1f} s {sum(times['items'].values()):>5} tests; {share:.0%} of the programs compiled, others loaded"
    )
    print(f"{total / scale:8.1f} s at the speed of the reference machine (here {scale:.2f} times as long)")
    print(f"{budget:8.1f} s are the budget: {'within' if total / scale <= budget else 'EXCEEDED'}")
    return int(total / scale > budget)


if __name__ == "__main__":
    sys.exit(main())
