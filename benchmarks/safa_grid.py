"""Measures how long the 240 runs of SAFA's study take when nothing is trained: its pacing, selection and devices through the real waist, on one core.

    python benchmarks/safa_grid.py                # all three tasks
    python benchmarks/safa_grid.py --task kdd

The programs are the real ones (`Training` with its pacing); only the model learns nothing (`IdleModel`). Fully local
training contacts its clients as FedAvg does, and adds up once.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import atoll
from atoll.algorithms import FedAvg
from atoll.learn import Training
from atoll.models.idle import IdleIslands, IdleModel
from atoll.pacing import SAFA, Synchronous
from atoll.selection import CFCFM, FedCS, Uniform
from atoll_papers.safa.grid import ALGORITHMS
from atoll_papers.safa.tasks import (
    CRASHES,
    FRACTIONS,
    LAG,
    TASKS,
    TRANSFER_SECONDS,
    SafaTask,
    devices,
    drawn,
    train_sizes,
)


def paced(task: SafaTask, algorithm: str, fraction: float) -> dict[str, Any]:
    """Return who is asked and when a round ends."""
    if algorithm == "SAFA":
        pacing = SAFA(lag_tolerance=LAG, deadline=task.limit, resume=False, published=True)
        return {"selection": CFCFM(fraction), "pacing": pacing}
    waits = Synchronous(deadline=task.limit, on_failure="skip")
    if algorithm == "FedCS":
        return {"selection": FedCS(fraction, deadline=task.limit + TRANSFER_SECONDS), "pacing": waits}
    return {"selection": Uniform(fraction), "pacing": waits}


def run(task: SafaTask, algorithm: str, crash: float, fraction: float) -> float:
    """Do one run; return its mean round length in seconds of its own clock."""
    job = Training(
        model=IdleModel(),
        algorithm=FedAvg(lr=task.lr, epochs=task.epochs, batch_size=task.batch_size),
        rounds=task.rounds,
        evaluation=atoll.Evaluation(server=False),
        **paced(task, algorithm, fraction),
    )
    data = IdleIslands(
        train_sizes(drawn(task, crash, 0)[0].sizes, 60_000 if task.name == "mnist" else int(task.rows * task.train))
    )
    result = atoll.simulate(job, data, devices=devices(task.name, crash), engine="batched", workers=1)
    return result.metrics.average_round_length


def main() -> None:
    """Time the grid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(TASKS), action="append")
    parser.add_argument("--out", help="where to write the record, as JSON")
    chosen = parser.parse_args()
    record: dict[str, Any] = {"runs": 0, "seconds": 0.0, "cpu_seconds": 0.0, "tasks": {}}
    for name in chosen.task or sorted(TASKS):
        wall, cpu, count = time.perf_counter(), time.process_time(), 0
        lengths = {}
        for algorithm in ALGORITHMS:
            for crash in CRASHES:
                for fraction in FRACTIONS:
                    lengths[f"{algorithm} cr={crash} C={fraction}"] = run(TASKS[name], algorithm, crash, fraction)
                    count += 1
        took, used = time.perf_counter() - wall, time.process_time() - cpu
        record["tasks"][name] = {"runs": count, "seconds": took, "cpu_seconds": used, "round_length": lengths}
        record["runs"] += count
        record["seconds"] += took
        record["cpu_seconds"] += used
        print(f"{name}: {count} runs in {took:.1f} s ({used:.1f} s of CPU)")
    print(f"{record['runs']} runs in {record['seconds']:.1f} s ({record['cpu_seconds']:.1f} s of CPU)")
    if chosen.out:
        Path(chosen.out).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
