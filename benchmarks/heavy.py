"""Clients whose sizes have a heavy tail: the batched engine against engine inline and a bare PyTorch loop, in one run.

    python benchmarks/heavy.py                                # LR and MLP
    python benchmarks/heavy.py --models lr --rounds 8 --compile never

The data is `synthetic_iid` (sizes floor(LogNormal(4, 2)) + 50). All three train the same cohorts in one process on one
core; a line gives processor seconds of all rounds except the first, and their ratio to the batched engine's. The loop
draws its own batch orders, so only the two engines' weights are compared.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import atoll
import numpy as np
import torch
from atoll.data import synthetic_iid
from torch import nn

MODELS = {
    "lr": lambda: nn.Linear(60, 10),
    "mlp": lambda: nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 10)),
}
BATCH, RATE, SEED = 10, 0.02, 0


def by_engine(engine: str, make: Any, data: Any, plan: list[list[int]], args: argparse.Namespace) -> dict[str, Any]:
    """Train on an engine; return the weights and the seconds of each round."""
    torch.manual_seed(SEED)
    clock, wall = [time.process_time()], [time.perf_counter()]
    job = atoll.Training(
        model=make(),
        algorithm=atoll.FedAvg(lr=RATE, epochs=args.epochs, batch_size=BATCH),
        selection=atoll.Schedule(plan),
        rounds=len(plan),
        evaluation=atoll.Evaluation(server=False),
        compile=args.compile,
        callbacks=[lambda row: (clock.append(time.process_time()), wall.append(time.perf_counter()))],
    )
    workers = {"workers": 1} if engine == "batched" else {}
    result = atoll.simulate(job, data, engine=engine, seed=SEED, **workers)
    return {"weights": result.params, "cpu": np.diff(clock), "wall": np.diff(wall), "engine": result.engine}


def by_loop(make: Any, data: Any, plan: list[list[int]], args: argparse.Namespace) -> dict[str, Any]:
    """Run FedAvg as you would write it in plain PyTorch."""
    torch.manual_seed(SEED)
    model, loss, rng = make(), nn.CrossEntropyLoss(), np.random.default_rng(SEED)
    weights = [p.detach().clone() for p in model.parameters()]
    clock, wall = [time.process_time()], [time.perf_counter()]
    for cohort in plan:
        shards = [data.shard(c) for c in cohort]
        total = [torch.zeros_like(w) for w in weights]
        for shard in shards:
            x, y = torch.from_numpy(shard["x"]), torch.from_numpy(shard["y"])
            with torch.no_grad():
                for p, w in zip(model.parameters(), weights, strict=True):
                    p.copy_(w)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            for _ in range(args.epochs):
                order = torch.from_numpy(rng.permutation(len(y)))
                for rows in order.split(BATCH):
                    optimizer.zero_grad()
                    loss(model(x[rows]), y[rows]).backward()
                    optimizer.step()
            with torch.no_grad():
                for t, p in zip(total, model.parameters(), strict=True):
                    t += p * len(y)
        count = sum(len(shard["y"]) for shard in shards)
        weights = [t / count for t in total]
        clock.append(time.process_time())
        wall.append(time.perf_counter())
    return {"cpu": np.diff(clock), "wall": np.diff(wall)}


def main() -> None:
    """Measure and print one JSON line for each model."""
    parser = argparse.ArgumentParser(description="heavy-tailed sizes")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--compile", default="auto")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = synthetic_iid(parties=args.clients, dims=60, classes=10, seed=SEED)
    rng = np.random.default_rng(SEED)
    plan = [sorted(rng.choice(args.clients, args.cohort, replace=False).tolist()) for _ in range(args.rounds)]
    for name in args.models.split(","):
        make = MODELS[name]
        for c in {c for cohort in plan for c in cohort}:
            data.shard(c)  # so that the first to run does not pay for drawing the data
        loop = by_loop(make, data, plan, args)
        inline, batched = (by_engine(engine, make, data, plan, args) for engine in ("inline", "batched"))
        gaps = [
            float(np.abs(np.asarray(a) - np.asarray(batched["weights"][k])).max()) for k, a in inline["weights"].items()
        ]
        later = {k: float(v["cpu"][1:].sum()) for k, v in (("loop", loop), ("inline", inline), ("batched", batched))}
        line = {
            "workload": f"heavy-{name}",
            "largest_client": int(data.sizes.max()),
            "cpu_seconds_after_first_round": {k: round(v, 3) for k, v in later.items()},
            "cpu_ratio_to_batched": {k: round(v / later["batched"], 2) for k, v in later.items()},
            "first_round_wall": {"inline": round(inline["wall"][0], 2), "batched": round(batched["wall"][0], 2)},
            "weights_gap": max(gaps),
            "choices": {k: t["tuning"] for k, t in batched["engine"].get("tasks", {}).items()},
        }
        print(json.dumps(line, default=str))


if __name__ == "__main__":
    main()
