"""Measures Shamir's scheme: sharing, opening and correcting (a quarter of the holders is wrong) the sums of many tasks, next to integer by integer in Python.

    python benchmarks/shamir.py                                     # 100 holders, threshold 50, 1,000 tasks
    python benchmarks/shamir.py --holders 20 --threshold 11

Both sides draw from the operating system, and give shares that open to the same values. Figures are processor milliseconds of the best of some runs; the slow side does few tasks and is scaled up.
Set `OPENBLAS_NUM_THREADS=1` to use one core.
"""

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from atoll.core.requests.island import Secret
from atoll.secure.shares import Field, correct_shamir, open_shamir, split_shamir


def measure(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Least processor milliseconds, and what the work gives."""
    best, made = float("inf"), None
    for _ in range(repeats):
        began = time.process_time()
        made = work()
        best = min(best, 1e3 * (time.process_time() - began))
    return best, made


def split_integers(values: list[int], n: int, threshold: int, prime: int) -> list[list[int]]:
    """The same scheme, one integer after the other."""
    made = []
    for value in values:
        line = [secrets.randbelow(prime) for _ in range(threshold - 1)]
        row = []
        for x in range(1, n + 1):
            total = 0
            for coefficient in line:
                total = (total + coefficient) * x % prime
            row.append((total + value) % prime)
        made.append(row)
    return made


def compare(prime: int, n: int, threshold: int, args: argparse.Namespace) -> dict[str, float]:
    """Figures of one prime."""
    field, secret = Field(prime), Secret()
    values = field.random(secret, (args.tasks,))
    split, shares = measure(lambda: split_shamir(values, n, threshold, field, secret), args.repeats)
    opened, got = measure(lambda: open_shamir(dict(enumerate(shares)), threshold, field), args.repeats)
    wrong = tuple(range(0, n, 4))[: (n - threshold) // 2]
    spoilt = {i: field.add(share, np.ones_like(share)) if i in wrong else share for i, share in enumerate(shares)}
    corrected, found = measure(lambda: correct_shamir(spoilt, threshold, field, secret), args.repeats)
    if found.wrong != wrong or not np.array_equal(found.values, values):
        raise SystemExit("wrong shares were not corrected")
    few = values[: args.slow_tasks]
    slow, rows = measure(lambda: split_integers(few.tolist(), n, threshold, prime), 2)
    columns = np.array(rows, dtype=np.uint64).T
    if not np.array_equal(got, values) or not np.array_equal(
        open_shamir(dict(enumerate(columns)), threshold, field), few
    ):
        raise SystemExit("the shares do not open to the values")
    slow *= args.tasks / len(few)
    return {
        "prime_bits": prime.bit_length(),
        "split_ms": split,
        "open_ms": opened,
        "correct_ms": corrected,
        "integers_ms": slow,
        "ratio": slow / split,
    }


def main() -> None:
    """Measure; print a line of JSON for each prime."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--holders", type=int, default=100)
    parser.add_argument("--threshold", type=int, default=50)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--slow-tasks", type=int, default=50, help="tasks of the slow side")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    for prime in (2**31 - 1, 2**61 - 1):
        row = compare(prime, args.holders, args.threshold, args)
        print(json.dumps({name: round(value, 1) for name, value in row.items()}), flush=True)


if __name__ == "__main__":
    main()
