"""Atoll as a user writes it: a `Training` run by `simulate` on the batched engine.

With one process the engine gets `workers=1`; otherwise it chooses, up to the number of cores. Its choices (block,
unrolling, compilation, workers) are in the notes. `--set engine=ray` runs the same job on the Ray engine, with as many
actors as processes.
"""

from __future__ import annotations

import json

import atoll
import numpy as np
from atoll.data import Dataset, Islands

from peers import torch_model
from peers.contract import Stopwatch, arguments, report
from workloads import Plan, load

SEED = 0


def islands(plan: Plan) -> Islands:
    """Return the plan's clients as a federated data set."""
    w = plan.workload
    columns = {"x": plan.x.reshape(-1, *w.shape), "y": plan.y.reshape(-1)}
    rows = Dataset(columns, task="classification", classes=w.classes, name=w.name)
    owner = np.repeat(np.arange(w.clients), w.examples)
    return Islands.from_owner(rows, owner, w.clients)


def training(plan: Plan, rounds: int, watch: Stopwatch) -> atoll.Training:
    """Return the plan as a job."""
    w = plan.workload
    model = torch_model.build(w)
    torch_model.load(model, plan.initial)
    return atoll.Training(
        model=model,
        algorithm=atoll.FedAvg(lr=w.lr, epochs=w.epochs, batch_size=w.batch),
        selection=atoll.Schedule(plan.schedule[:rounds].tolist()),
        rounds=rounds,
        evaluation=atoll.Evaluation(server=False),
        # A long run repays compiling; the silos are timed from start to end, where Atoll decides.
        compile="auto" if w.name == "silos" else "always",
        callbacks=[lambda row: watch.lap()],
    )


def main() -> None:
    """Run the peer."""
    args = arguments(__doc__ or "")
    plan = load(args.workload, mode="r")
    data = islands(plan)
    engine = args.options.get("engine", "batched")
    workers = None if engine == "batched" and args.processes > 1 else args.processes
    watch = Stopwatch()
    job = training(plan, args.rounds, watch)
    watch.start()
    result = atoll.simulate(job, data, engine=engine, workers=workers, seed=SEED)
    report(
        peer="Atoll" if engine == "batched" else f"Atoll, engine {engine}",
        version=atoll.__version__,
        workload=plan.workload,
        processes=args.processes,
        laps=watch.laps,
        weights=[np.asarray(value) for value in result.params.values()],
        out=args.out,
        compile_seconds=sum(sum(t["seconds"].values()) for t in result.engine.get("tasks", {}).values()),
        notes=json.dumps(result.engine, default=str),
    )


if __name__ == "__main__":
    main()
