"""Bare PyTorch: the loop that a careful engineer writes by hand, in one or more processes.

Parameters are loaded in place, a whole epoch of examples is gathered by one indexing operation, and
with several processes each persistent worker trains its share of the cohort and leaves its sum in
shared memory. `--set update=` picks the SGD step: "hand" (in-place, one multi-tensor operation; the fastest on this
workload mix, hence the default), "optim" (`torch.optim.SGD`) or "flat" (parameters and gradients as views of one flat
tensor, so that load, step and sum are one operation each).
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.connection import Connection

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from peers import torch_model
from peers.contract import Stopwatch, arguments, report
from workloads import Plan, load


class Trainer:
    """Trains clients one after another and adds their final parameters up."""

    def __init__(self, plan: Plan, update: str) -> None:
        self.plan = plan
        self.x = torch.from_numpy(plan.x)
        self.y = torch.from_numpy(plan.y)
        self.order = torch.from_numpy(plan.order.astype("int64"))
        self.model = torch_model.build(plan.workload)
        self.parameters = list(self.model.parameters())
        self.sizes = [p.numel() for p in self.parameters]
        self.shapes = [p.shape for p in self.parameters]
        self.flat = update == "flat"
        if self.flat:
            self._flatten()
        self.step = self._steps()[update]
        if update == "optim":
            self.optimiser = torch.optim.SGD(self.parameters, lr=plan.workload.lr)

    def _flatten(self) -> None:
        """Make every parameter and gradient a view of one vector."""
        self.vector = torch.zeros(sum(self.sizes))
        self.gradient = torch.zeros_like(self.vector)
        views = zip(self.parameters, self.views(self.vector), self.views(self.gradient), strict=True)
        for parameter, value, gradient in views:
            parameter.data = value
            parameter.grad = gradient

    def _steps(self) -> dict[str, Callable[[], None]]:
        lr = self.plan.workload.lr

        def hand() -> None:
            gradients = [p.grad for p in self.parameters]
            torch._foreach_add_(self.parameters, gradients, alpha=-lr)
            for parameter in self.parameters:
                parameter.grad = None

        def flat() -> None:
            self.vector.add_(self.gradient, alpha=-lr)
            self.gradient.zero_()

        def optim() -> None:
            self.optimiser.step()
            self.optimiser.zero_grad()

        return {"hand": torch.no_grad()(hand), "flat": torch.no_grad()(flat), "optim": optim}

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Cut a flat vector into the parameters' shapes."""
        parts = vector.split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    @torch.no_grad()
    def _load(self, source: torch.Tensor, views: list[torch.Tensor]) -> None:
        if self.flat:
            self.vector.copy_(source)
        else:
            torch._foreach_copy_(self.parameters, views)

    @torch.no_grad()
    def _accumulate(self, total: torch.Tensor, views: list[torch.Tensor]) -> None:
        if self.flat:
            total.add_(self.vector)
        else:
            torch._foreach_add_(views, self.parameters)

    def share(self, number: int, slots: range, source: torch.Tensor, total: torch.Tensor) -> None:
        """Train the clients at `slots` of round `number` from `source`; put their sum in `total`."""
        source_views, total_views = self.views(source), self.views(total)
        total.zero_()
        for slot in slots:
            self._load(source, source_views)
            self._client(number, slot)
            self._accumulate(total, total_views)

    def _client(self, number: int, slot: int) -> None:
        w = self.plan.workload
        client = int(self.plan.schedule[number, slot])
        x, y = self.x[client], self.y[client]
        for order in self.order[number, slot]:
            for xb, yb in zip(x[order].split(w.batch), y[order].split(w.batch), strict=True):
                cross_entropy(self.model(xb), yb).backward()
                self.step()


def _serve(pipe: Connection, trainer: Trainer, slots: range, source, total) -> None:
    """Run a worker: a round number in, a token out, until None."""
    while (number := pipe.recv()) is not None:
        trainer.share(number, slots, source, total)
        pipe.send(True)


def train(plan: Plan, rounds: int, processes: int, update: str) -> tuple[list[float], nn.Module]:
    """Run FedAvg for `rounds` rounds; return the seconds of each and the final model."""
    w = plan.workload
    watch = Stopwatch()
    trainer = Trainer(plan, update)
    torch_model.load(trainer.model, plan.initial)
    flat = torch.cat([p.detach().reshape(-1) for p in trainer.parameters])
    source = flat.clone().share_memory_()
    totals = [torch.zeros_like(flat).share_memory_() for _ in range(processes)]
    bounds = [w.cohort * i // processes for i in range(processes + 1)]
    slots = [range(a, b) for a, b in pairwise(bounds)]
    context = mp.get_context("fork")
    workers, pipes = [], []
    for i in range(1, processes):
        ours, theirs = context.Pipe()
        target = (theirs, trainer, slots[i], source, totals[i])
        workers.append(context.Process(target=_serve, args=target, daemon=True))
        pipes.append(ours)
        workers[-1].start()
    for number in range(rounds):
        for pipe in pipes:
            pipe.send(number)
        trainer.share(number, slots[0], source, totals[0])
        for pipe in pipes:
            pipe.recv()
        source.copy_(totals[0])
        for total in totals[1:]:
            source.add_(total)
        source.div_(w.cohort)
        watch.lap()
    for pipe in pipes:
        pipe.send(None)
    for worker in workers:
        worker.join()
    torch_model.load(trainer.model, [v.numpy() for v in trainer.views(source)])
    return watch.laps, trainer.model


def main() -> None:
    """Run the peer."""
    args = arguments(__doc__ or "")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    plan = load(args.workload)
    update = args.options.get("update", "hand")
    laps, model = train(plan, args.rounds, args.processes, update)
    report(
        peer="PyTorch",
        version=torch.__version__,
        workload=plan.workload,
        processes=args.processes,
        laps=laps,
        weights=torch_model.dump(model),
        out=args.out,
        notes=f"update={update}",
    )


if __name__ == "__main__":
    main()
