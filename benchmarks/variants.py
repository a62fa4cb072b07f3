"""What a variant of FedAvg costs on the MLP with LayerNorm and GELU: clients a second, next to FedAvg's in the same turns.

    python benchmarks/variants.py            # three turns
    python benchmarks/variants.py --turns 1

Every variant runs once in each turn, in one process with native code. The table has medians with the lowest and highest. Its last column is the ratio of processor
time, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from statistics import median
from typing import Any

import atoll
import numpy as np
from atoll.algorithms import Accelerated, FedAvg, FedDyn, Scaffold
from atoll.data import Dataset, Islands
from atoll.learn.transforms import Adam, Momentum

from peers import real_works
from peers.real_works import SEED, WORKS, Plan, model_of, plan_of

WORK = WORKS["mlp"]
ROUNDS = 60
MANY = 1000


def islands(plan: Plan) -> Islands:
    """Return the clients of a plan."""
    rows = Dataset({"x": plan.x, "y": plan.y}, task="classification", classes=WORK.classes)
    count = len(plan.offsets) - 1
    return Islands.from_owner(rows, np.repeat(np.arange(count), np.diff(plan.offsets)), count)


def variants() -> dict[str, dict[str, Any]]:
    """Return the settings of each variant that differ from FedAvg's training."""
    settings: dict[str, Any] = {"lr": WORK.lr, "epochs": WORK.epochs, "batch_size": WORK.batch}
    base = FedAvg(**settings)
    return {
        "FedAvg": {"algorithm": base},
        "momentum at clients": {"algorithm": Accelerated(base=base, transforms=(Momentum(0.9),), memory="round")},
        "Adam at clients": {"algorithm": Accelerated(base=base, transforms=(Adam(),), memory="round")},
        "SCAFFOLD": {"algorithm": Scaffold(**settings)},
        "FedDyn": {"algorithm": FedDyn(**settings)},
        "updates clipped to norm 1": {"algorithm": base, "uplink": [atoll.Clip(1.0)]},
    }


def rate(data: Islands, plan: Plan, **more: Any) -> tuple[float, float]:
    """Return clients a second in a steady round, and a second of a processor."""
    ends: list[tuple[float, float]] = []
    job = atoll.Training(
        model=model_of(WORK),
        selection=atoll.Schedule(plan.cohorts),
        rounds=len(plan.cohorts),
        compile="always",
        callbacks=[lambda row: ends.append((time.perf_counter(), time.process_time()))],
        **{"evaluation": atoll.Evaluation(server=False), **more},
    )
    atoll.simulate(job, data, seed=SEED, progress=False)
    wall, work = np.median(np.diff(ends, axis=0), axis=0).tolist()
    return WORK.cohort / wall, WORK.cohort / work


def evaluated() -> tuple[float, float]:
    """Return how many clients a second are evaluated, if all of a thousand are in every round, and how many a second of a processor."""
    clients = real_works.CLIENTS
    real_works.CLIENTS = MANY
    try:
        plan = plan_of(WORK, 12)
    finally:
        real_works.CLIENTS = clients
    data, base = islands(plan), variants()["FedAvg"]
    with_all, without = (
        WORK.cohort / np.array(rate(data, plan, evaluation=one, **base))
        for one in (atoll.Evaluation(server=False, clients=-1), atoll.Evaluation(server=False))
    )
    wall, work = (MANY / (with_all - without)).tolist()
    return wall, work


def heavy() -> tuple[Islands, Plan]:
    """Return clients whose sizes have a heavy tail: log-normal with sigma 1.5."""
    spread = real_works.SPREAD
    real_works.SPREAD = 1.5
    try:
        plan = plan_of(replace(WORK, median=20), ROUNDS)
    finally:
        real_works.SPREAD = spread
    return islands(plan), plan


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="variants of FedAvg")
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    plan = plan_of(WORK, ROUNDS)
    data, tailed = islands(plan), heavy()
    rows_of = {"same": float(np.diff(plan.offsets).mean()), "heavy": float(np.diff(tailed[1].offsets).mean())}
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(turns):
        for name, more in variants().items():
            found.setdefault(name, []).append(rate(data, plan, **more))
        found.setdefault("FedAvg, sizes with a heavy tail", []).append(rate(*tailed, **variants()["FedAvg"]))
        found.setdefault(f"evaluation of {MANY:,} clients", []).append(evaluated())
    base = [median(some) for some in zip(*found["FedAvg"], strict=True)]
    print("| variant | clients a second | of FedAvg's | by processor time |\n|---|--:|--:|--:|")
    for name, both in found.items():
        rates, work = zip(*both, strict=True)
        rows = f", {rows_of['heavy'] / rows_of['same']:.2f} times the rows" if "heavy" in name else ""
        shares = f"{median(rates) / base[0]:.2f} | {median(work) / base[1]:.2f}"
        print(f"| {name}{rows} | {median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f}) | {shares} |")


if __name__ == "__main__":
    main()
