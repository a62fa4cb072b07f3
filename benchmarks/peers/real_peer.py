"""One peer on one work of `benchmarks/real.py`: prints a line of JSON with the seconds of each round.

python -m peers.real_peer loop 2 lstm --rounds 6     # one process with two threads
python -m peers.real_peer loops 2 lstm               # two processes with a thread each
python -m peers.real_peer atoll auto lstm            # Atoll, compile="auto"
python -m peers.real_peer atoll always lstm --device cuda --cohort 60
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from peers.real_works import SEED, WORKS, Plan, Work, model_of, plan_of

Laps = list[float]


class Loop:
    """FedAvg as one writes it in PyTorch: load the model, run SGD, add up the weighted parameters."""

    def __init__(self, work: Work, plan: Plan, device: str = "cpu") -> None:
        self.work, self.plan, self.model = work, plan, model_of(work).to(device)
        self.parameters = list(self.model.parameters())
        self.x, self.y = torch.from_numpy(plan.x).to(device), torch.from_numpy(plan.y).to(device)

    def share(self, number: int, cohort: list[int], source: torch.Tensor, total: torch.Tensor) -> None:
        """Train some clients of a round from the flat ``source`` and leave their weighted sum in ``total``."""
        total.zero_()
        for client in cohort:
            first, last = self.plan.offsets[client : client + 2].tolist()
            with torch.no_grad():
                nn.utils.vector_to_parameters(source.clone(), self.parameters)  # they become views of it
            optimiser = torch.optim.SGD(self.parameters, lr=self.work.lr)
            order = np.random.default_rng([SEED, number, client])
            for _ in range(self.work.epochs):
                rows = torch.from_numpy(first + order.permutation(last - first))
                for batch in rows.split(self.work.batch):
                    optimiser.zero_grad()
                    cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()
                    optimiser.step()
            with torch.no_grad():
                total += nn.utils.parameters_to_vector(self.parameters) * (last - first)


def _serve(loop: Loop, pipe: Any, source: torch.Tensor, total: torch.Tensor) -> None:
    torch.set_num_threads(1)
    while (told := pipe.recv()) is not None:
        loop.share(*told, source, total)
        pipe.send(True)


def bare(work: Work, plan: Plan, processes: int, threads: int) -> tuple[Laps, nn.Module, Any]:
    """Run the loop, in persistent processes that share the cohort; the longest clients are dealt out first."""
    torch.set_num_threads(threads)
    loop = Loop(work, plan)
    source = nn.utils.parameters_to_vector(loop.parameters).detach().clone().share_memory_()
    totals = [torch.zeros_like(source).share_memory_() for _ in range(processes)]
    context, pipes = mp.get_context("fork"), []
    for total in totals[1:]:
        ours, theirs = context.Pipe()
        context.Process(target=_serve, args=(loop, theirs, source, total), daemon=True).start()
        pipes.append(ours)
    sizes, laps = np.diff(plan.offsets), []
    for number, cohort in enumerate(plan.cohorts):
        began = time.perf_counter()
        order = sorted(cohort, key=lambda c: -sizes[c])
        shares: list[list[int]] = [[] for _ in range(processes)]
        for client in order:
            min(shares, key=lambda s: sizes[s].sum()).append(client)
        for pipe, share in zip(pipes, shares[1:], strict=True):
            pipe.send((number, share))
        loop.share(number, shares[0], source, totals[0])
        for pipe in pipes:
            pipe.recv()
        source.copy_(torch.stack(totals).sum(0) / int(sizes[cohort].sum()))
        laps.append(time.perf_counter() - began)
    for pipe in pipes:
        pipe.send(None)
    nn.utils.vector_to_parameters(source, loop.parameters)
    return laps, loop.model, None


def on_device(work: Work, plan: Plan, device: str) -> tuple[Laps, nn.Module, Any]:
    """Run the loop on a GPU, whose memory holds the model and all rows; a round ends when the device has done its work."""
    loop = Loop(work, plan, device)
    source = nn.utils.parameters_to_vector(loop.parameters).detach().clone()
    total, sizes, laps = torch.zeros_like(source), np.diff(plan.offsets), []
    for number, cohort in enumerate(plan.cohorts):
        began = time.perf_counter()
        loop.share(number, cohort, source, total)
        source.copy_(total / int(sizes[cohort].sum()))
        torch.cuda.synchronize()
        laps.append(time.perf_counter() - began)
    nn.utils.vector_to_parameters(source, loop.parameters)
    return laps, loop.model.cpu(), None


def atoll_job(
    work: Work, plan: Plan, compile_: str, workers: int | None, device: str = "cpu"
) -> tuple[Laps, nn.Module, Any]:
    """Run the same job by `atoll.simulate`."""
    import atoll
    from atoll.data import Dataset, Islands

    rows = Dataset({"x": plan.x, "y": plan.y}, task="classification", classes=work.classes)
    owner = np.repeat(np.arange(len(plan.offsets) - 1), np.diff(plan.offsets))
    laps: Laps = []
    clock = [time.perf_counter()]

    def lap(row: dict[str, Any]) -> None:
        clock.append(time.perf_counter())

    job = atoll.Training(
        model=model_of(work),
        algorithm=atoll.FedAvg(lr=work.lr, epochs=work.epochs, batch_size=work.batch),
        selection=atoll.Schedule(plan.cohorts),
        rounds=len(plan.cohorts),
        evaluation=atoll.Evaluation(server=False),
        compile=compile_,
        device=device,
        callbacks=[lap],
    )
    data = Islands.from_owner(rows, owner, len(plan.offsets) - 1)
    clock[0] = time.perf_counter()
    result = atoll.simulate(job, data, engine="batched", workers=workers, seed=SEED, progress=False)
    laps = [b - a for a, b in pairwise(clock)]
    model = model_of(work)
    model.load_state_dict({name: torch.as_tensor(np.asarray(value)) for name, value in result.params.items()})
    return laps, model, result.engine


def main() -> None:
    """Run the peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("loop", "loops", "atoll"))
    parser.add_argument("how", help="threads, processes, or Atoll's compile")
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--device", default="cpu", help="cpu or cuda; a bare loop on cuda is one process")
    parser.add_argument("--cohort", type=int, help="clients a round, in place of the work's own")
    args = parser.parse_args()
    work = WORKS[args.work]
    if args.cohort:
        work = replace(work, cohort=args.cohort)
    plan = plan_of(work, args.rounds or work.rounds)
    if args.peer == "atoll":
        laps, model, notes = atoll_job(work, plan, args.how, args.workers, args.device)
    elif args.device != "cpu":
        laps, model, notes = on_device(work, plan, args.device)
    else:
        many = int(args.how)
        laps, model, notes = bare(work, plan, *((1, many) if args.peer == "loop" else (many, 1)))
    with torch.no_grad():
        sample = slice(0, 512)
        loss = cross_entropy(model(torch.from_numpy(plan.x[sample])), torch.from_numpy(plan.y[sample]))
    line = {
        "work": args.work, "device": args.device, "cohort": work.cohort, "peer": args.peer, "how": args.how, "rounds": len(laps), "first": laps[0],
        "steady": float(np.mean(laps[1:])), "clients_per_second": work.cohort / float(np.mean(laps[1:])),
        "loss": float(loss), "notes": notes,
    }  # fmt: skip
    print(json.dumps(line, default=str))


if __name__ == "__main__":
    main()
