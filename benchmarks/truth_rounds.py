"""Truth discovery: what a round costs where nobody shows reports, next to the goals that it has.

    OPENBLAS_NUM_THREADS=1 python benchmarks/truth_rounds.py             # each line in a process of its own
    python benchmarks/truth_rounds.py --only sealed

| line | what it does | goal |
| --- | --- | --- |
| split | a worker's shares of 1,000 numbers for 100 holders, threshold 50, against integer by integer in Python | 100 times |
| sealed | one sum of 100 workers and 1,000 tasks in one process, real letters, threshold 50 | 2 s |
| virtual | one sum of 10,000 workers by arithmetic | 10 s, 2 GiB |
| checked | the sealed sum with a committee of 20 that checks shares, against the same without checks | none |

Seconds are those of the processor, the difference between campaigns of one and of three iterations, by two: opening a campaign does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from shamir import measure, split_integers

TASKS = 1000
PRIMES = (2**32 - 5, 2**61 - 1)


def compare_splits(n: int = 100, threshold: int = 50, few: int = 50) -> list[dict[str, Any]]:
    """A worker's sharing, by the words of both fields."""
    from atoll.core.requests.island import Secret
    from atoll.secure.shares import Field, split_seeded, split_shamir

    rows = []
    for prime in PRIMES:
        field, secret = Field(prime), Secret()
        values = field.random(secret, (TASKS,))
        slow, _ = measure(lambda: split_integers(values[:few].tolist(), n, threshold, prime), 2)  # noqa: B023
        for split in (split_seeded, split_shamir):
            fast, _ = measure(lambda: split(values, n, threshold, field, secret), 9)  # noqa: B023
            rows.append({"what": f"{split.__name__}, {prime.bit_length()} bits, {fast:.1f} ms", "found": slow * TASKS / few / fast, "goal": 100.0})  # fmt: skip
    return rows


def rows_of(workers: int, tasks: int, each: int) -> Any:
    """Reports of workers of unequal skill on some tasks each."""
    from atoll.truth import reports_of

    rng = np.random.default_rng(1)
    truth, skill = rng.integers(0, 2, tasks), rng.uniform(0.5, 0.95, workers)
    at = np.concatenate([rng.choice(tasks, each, replace=False) for _ in range(workers)])
    who = np.repeat(np.arange(workers), each)
    right = rng.random(len(at)) < skill[who]
    said = np.where(right, truth[at], 1 - truth[at])
    return reports_of({"task": [f"t{t}" for t in at], "worker": [f"w{w}" for w in who], "label": [f"c{c}" for c in said]})  # fmt: skip


def seconds_of_a_sum(protocol: Any, workers: int, each: int, **settings: Any) -> float:
    """Processor seconds of one sum of a campaign."""
    import atoll
    from atoll.truth import Logistic, Truth, split_by_worker

    parts = split_by_worker(rows_of(workers, TASKS, each))
    tasks, classes = [f"t{t}" for t in range(TASKS)], ["c0", "c1"]
    spent = []
    for iterations in (1, 3):
        job = Truth(model=Logistic(iterations=iterations, tolerance=0), protocol=protocol, tasks=tasks, classes=classes, label="")  # fmt: skip
        began = time.process_time()
        atoll.simulate(job, parts, engine="inline", progress=False, seed=1, **settings)
        spent.append(time.process_time() - began)
    return (spent[1] - spent[0]) / 2


def compare_sealed() -> list[dict[str, Any]]:
    """A round of the paper's size with real letters."""
    from atoll.truth import Shamir

    found = seconds_of_a_sum(Shamir(threshold=50), 100, 200, sealing="real")
    return [{"what": "sealed sum of 100 workers, 1,000 tasks, threshold 50", "found": found, "goal": 2.0, "unit": "s"}]


def compare_virtual() -> list[dict[str, Any]]:
    """A round of 10,000 workers without letters, and the memory of the process."""
    from atoll.truth import Shamir, Virtual

    found = seconds_of_a_sum(Virtual(of=Shamir(committee="auto")), 10_000, 20)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [
        {"what": "virtual sum of 10,000 workers, 1,000 tasks", "found": found, "goal": 10.0, "unit": "s"},
        {"what": "memory of it", "found": memory, "goal": 2.0, "unit": "GiB"},
    ]


def compare_checked() -> list[dict[str, Any]]:
    """What checks of shares add to a committee's sum."""
    from atoll.truth import Shamir

    plain, checked = (seconds_of_a_sum(Shamir(committee=20, threshold=11, checks=checks), 100, 200) for checks in (False, True))  # fmt: skip
    return [
        {"what": "sum of 100 workers, 1,000 tasks, by a committee of 20", "found": plain, "unit": "s"},
        {"what": "the same with checks", "found": checked, "unit": "s"},
    ]


LINES = {"split": compare_splits, "sealed": compare_sealed, "virtual": compare_virtual, "checked": compare_checked}


def main() -> None:
    """Measure, and print each figure beside its goal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=sorted(LINES))
    parser.add_argument("--json", action="store_true", help="one line of JSON a figure")
    asked = parser.parse_args()
    if asked.only and asked.json:
        for row in LINES[asked.only]():
            print(json.dumps(row), flush=True)
        return
    missed = 0
    for name in [asked.only] if asked.only else LINES:
        command = [sys.executable, __file__, "--only", name, "--json"]
        told = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}).stdout  # fmt: skip
        for row in map(json.loads, told.splitlines()):
            times = "unit" not in row
            unit, goal = row.get("unit", "times"), row.get("goal")
            met = goal is None or (row["found"] >= goal if times else row["found"] <= goal)
            missed += not met
            beside = "" if goal is None else f"   goal: {'at least' if times else 'below'} {goal:g} {unit}{'' if met else '   MISSED'}"  # fmt: skip
            print(f"{row['what']:<60}{row['found']:10.2f} {unit}{beside}", flush=True)
    if missed:
        raise SystemExit(f"{missed} goals were missed")


if __name__ == "__main__":
    main()
