"""Time what client-level differential privacy adds to a round: the same cohorts without it, with a public schedule, and with a secret sample of the same size.

    python benchmarks/privacy.py
    python benchmarks/privacy.py --workload mlp --rounds 40 --turns 5
    OMP_NUM_THREADS=1 python benchmarks/privacy.py --processor-time     on a machine that does other work

The jobs take turns, each with its rounds in a row. A number is the median over all rounds of all turns, without the first ten of a turn, which compile. Noise
and accounting are part of a round; the search for the noise before the first round is not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import atoll
from atoll.mechanisms import CentralDP
from atoll.selection import FixedSample, Schedule

from peers import torch_model
from peers.atoll_bench import islands
from workloads import Plan, load

WARM = 10
PRIVATE: dict[str, Any] = {"noise": 1.0, "clip": 1.0, "neighbours": "replace-one"}


def laps(plan: Plan, data: Any, rounds: int, clock: Callable[[], float], **parts: Any) -> list[float]:
    """Return milliseconds of each round of one training."""
    w = plan.workload
    model = torch_model.build(w)
    torch_model.load(model, plan.initial)
    ends: list[float] = []
    job = atoll.Training(
        model=model,
        algorithm=atoll.FedAvg(lr=w.lr, epochs=w.epochs, batch_size=w.batch),
        rounds=rounds,
        evaluation=atoll.Evaluation(server=False, every=rounds),
        compile="always",
        callbacks=[lambda row: ends.append(clock())],
        **parts,
    )
    atoll.simulate(job, data, seed=0, workers=1, progress=False)
    return [1e3 * (b - a) for a, b in zip(ends[WARM:], ends[WARM + 1 :], strict=False)]


def main() -> None:
    """Print the medians, and how much more a private round takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="lr")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--processor-time", action="store_true", help="of this process, not of the clock")
    args = parser.parse_args()
    clock = time.process_time if args.processor_time else time.perf_counter
    plan = load(args.workload, mode="r")
    data, cohort = islands(plan), plan.workload.cohort
    rows = [row.tolist() for row in plan.schedule]
    schedule = Schedule([rows[i % len(rows)] for i in range(args.rounds)])
    jobs: dict[str, dict[str, Any]] = {
        "plain": {"selection": schedule},
        "private, public schedule": {"selection": schedule, "privacy": CentralDP(**PRIVATE, amplified=False)},
        "private, secret sample": {"selection": FixedSample(cohort), "privacy": CentralDP(**PRIVATE)},
    }
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(args.turns):
        for name in list(jobs)[:: 1 if turn % 2 else -1]:
            found[name] += laps(plan, data, args.rounds, clock, **jobs[name])
    plain = statistics.median(found["plain"])
    for name, times in found.items():
        ms = statistics.median(times)
        row = {
            "workload": args.workload,
            "job": name,
            "rounds": len(times),
            "ms": round(ms, 3),
            "ratio": round(ms / plain, 3),
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
