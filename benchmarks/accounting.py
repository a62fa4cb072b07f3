"""Time our accountants on 10,000 rounds of sampled Gaussian noise, next to `dp-accounting` in the same process.

    python benchmarks/accounting.py

Each number is the median of runs that begin with empty caches.
"""

from __future__ import annotations

import json
import statistics
import time

from atoll.core.event import Gaussian
from atoll.privacy import ACCOUNTANTS, epsilon_of

ROUNDS, RUNS = 10_000, 5


def seconds(accountant: str, run: int) -> tuple[float, float]:
    """Return the seconds of one count, and its epsilon; the rate differs a little in every run, so that nothing is remembered."""
    step = Gaussian(noise_multiplier=1.5, sampling=0.04 + 1e-9 * run, drawn_by="party")
    began = time.perf_counter()
    epsilon = epsilon_of(((step, ROUNDS),), 1e-5, accountant)
    return time.perf_counter() - began, epsilon


def main() -> None:
    """Print the medians, and how many times as long the library takes."""
    found = {name: [] for name in ACCOUNTANTS}
    for run in range(RUNS + 1):
        for name in ACCOUNTANTS:
            found[name].append(seconds(name, run))
    medians = {
        name: statistics.median(took for took, _ in runs[1:]) for name, runs in found.items()
    }  # the first run imports
    for name in ("rdp", "pld"):
        theirs = medians[f"dp-accounting-{name}"]
        row = {
            "accountant": name,
            "rounds": ROUNDS,
            "epsilon": round(found[name][0][1], 4),
            "seconds": round(medians[name], 4),
        }
        print(json.dumps({**row, "dp_accounting_seconds": round(theirs, 4), "ratio": round(theirs / medians[name], 2)}))


if __name__ == "__main__":
    main()
