"""Rounds of FixMatch and SimCLR: Atoll next to a bare PyTorch loop in two processes.

    python benchmarks/labels.py                                  # both methods on a CNN and on an MLP, three interleaved runs
    python benchmarks/labels.py --works fixmatch-mlp --runs 1
    python benchmarks/labels.py --flower PYTHON                  # Flower's simulation too, in that environment

Every run is a process of its own, and both peers run once before either runs again. A round is 10 of 20 clients with 200 rows of 28 x 28 pixels, 12 steps
of 48 rows each, Nesterov momentum .9 and gradients clipped to norm 5 (FixMatch). The bare loop has persistent processes with one thread each, shares the
cohort evenly, and sees rows through the same views, which are the faster part of such loops elsewhere. Flower's clients run the same loop. The table gives seconds of a steady round
(medians) and their ratio. Both must end with nearly the same loss on clean rows: each draws its own order and views.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

WORKS = ("fixmatch-cnn", "fixmatch-mlp", "simclr-cnn", "simclr-mlp")
CLIENTS, ROWS, COHORT, STEPS, BATCH, CLASSES = 20, 200, 10, 12, 48, 10


def encoder(kind: str) -> tuple[nn.Module, int]:
    """Return an encoder of images and the number of its features."""
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU()), 128
    layers: list[nn.Module] = []
    channels = 1
    for width in (8, 16, 32):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten()), 288


def model_of(work: str) -> nn.Module:
    """Return the work's network with weights of a seed."""
    from atoll.labels import Siamese

    method, kind = work.split("-")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body, features = encoder(kind)
        if method == "fixmatch":
            return nn.Sequential(body, nn.Linear(features, CLASSES))
        return Siamese(body, features, predictor=False)


def rows_of() -> dict[str, np.ndarray]:
    """Return images with a bright bar that tells the class; a tenth has a label."""
    draw = np.random.default_rng(0)
    n = CLIENTS * ROWS
    y = draw.integers(0, CLASSES, n)
    x = 0.3 * draw.random((n, 1, 28, 28))
    for at in range(n):
        x[at, 0, 2 * y[at] + 4 : 2 * y[at] + 7, 6:22] += 0.7
    return {"x": x.clip(0, 1).astype(np.float32), "y": y, "labelled": draw.random(n) < 0.1}


def cohorts(rounds: int) -> list[list[int]]:
    """Return the clients of each round."""
    draw = np.random.default_rng(1)
    return [sorted(draw.choice(CLIENTS, COHORT, replace=False).tolist()) for _ in range(rounds)]


class Loop:
    """The method as one writes it in PyTorch."""

    def __init__(self, work: str) -> None:
        from atoll.views import strong, weak

        self.method = work.split("-")[0]
        self.model = model_of(work).train()
        self.parameters = list(self.model.parameters())
        self.columns = {name: torch.from_numpy(value) for name, value in rows_of().items()}
        self.weak, self.strong = weak("images"), strong("images")

    def loss(self, batch: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the loss of a mini-batch."""
        x = self.columns["x"][batch]
        if self.method == "simclr":
            both = self.model(torch.cat([self.strong(x, keys), self.strong(x, keys + 1)]))
            z = F.normalize(both[:, -64:])
            scores = (z @ z.T / 0.5).fill_diagonal_(-torch.inf)
            n = len(batch)
            return F.cross_entropy(scores, torch.arange(2 * n).roll(n))
        there = self.columns["labelled"][batch]
        near, far = self.model(self.weak(x, keys)), self.model(self.strong(x, keys + 1))
        sure, guess = near.detach().softmax(1).max(1)
        hidden = F.cross_entropy(far, guess, reduction="none") * (sure > 0.95)
        loss = hidden[~there].mean()
        return loss + F.cross_entropy(near[there], self.columns["y"][batch][there]) if bool(there.any()) else loss

    def train(self, number: int, client: int) -> None:
        """Train a client of a round, from the model's parameters."""
        lr = 0.03 if self.method == "fixmatch" else 0.1
        optimiser = torch.optim.SGD(self.parameters, lr=lr, momentum=0.9, nesterov=True)
        order = np.random.default_rng([2, number, client])
        rows = np.concatenate([order.permutation(ROWS)[: ROWS // BATCH * BATCH] for _ in range(3)])
        for batch in np.split(rows[: STEPS * BATCH], STEPS):
            keys = torch.from_numpy(order.integers(-(2**62), 2**62, BATCH))
            optimiser.zero_grad()
            self.loss(torch.from_numpy(client * ROWS + batch), keys).backward()
            if self.method == "fixmatch":
                nn.utils.clip_grad_norm_(self.parameters, 5.0)
            optimiser.step()

    def share(self, number: int, cohort: list[int], source: torch.Tensor, total: torch.Tensor) -> None:
        """Train some clients of a round and leave the sum of their parameters in ``total``."""
        total.zero_()
        for client in cohort:
            with torch.no_grad():
                nn.utils.vector_to_parameters(source.clone(), self.parameters)
            self.train(number, client)
            with torch.no_grad():
                total += nn.utils.parameters_to_vector(self.parameters)


def _serve(loop: Loop, pipe: Any, source: torch.Tensor, total: torch.Tensor) -> None:
    torch.set_num_threads(1)
    while (told := pipe.recv()) is not None:
        loop.share(*told, source, total)
        pipe.send(True)


def bare(work: str, rounds: int) -> tuple[list[float], nn.Module]:
    """Run the loop in two persistent processes."""
    torch.set_num_threads(1)
    loop = Loop(work)
    source = nn.utils.parameters_to_vector(loop.parameters).detach().clone().share_memory_()
    totals = [torch.zeros_like(source).share_memory_() for _ in range(2)]
    ours, theirs = mp.get_context("fork").Pipe()
    mp.get_context("fork").Process(target=_serve, args=(loop, theirs, source, totals[1]), daemon=True).start()
    laps = []
    for number, cohort in enumerate(cohorts(rounds)):
        began = time.perf_counter()
        ours.send((number, cohort[COHORT // 2 :]))
        loop.share(number, cohort[: COHORT // 2], source, totals[0])
        ours.recv()
        source.copy_((totals[0] + totals[1]) / COHORT)
        laps.append(time.perf_counter() - began)
    ours.send(None)
    nn.utils.vector_to_parameters(source, loop.parameters)
    return laps, loop.model


def method_of(work: str) -> Any:
    """Return the work's method in Atoll."""
    from atoll.algorithms import FedAvg
    from atoll.labels import FedSimCLR, FixMatch
    from atoll.learn.algorithms.accelerated import Accelerated
    from atoll.learn.transforms import Momentum

    if work.startswith("fixmatch"):
        return FixMatch(lr=0.03, steps=STEPS, batch_size=BATCH)
    plain = FedAvg(lr=0.1, steps=STEPS, batch_size=BATCH)
    return FedSimCLR(base=Accelerated(plain, transforms=(Momentum(0.9, nesterov=True),)))


def atoll_rounds(work: str, rounds: int) -> tuple[list[float], nn.Module]:
    """Run the same job by Atoll."""
    import atoll
    from atoll.data import Dataset, Islands

    clock: list[float] = []
    job = atoll.Training(
        model=model_of(work),
        algorithm=method_of(work),
        selection=atoll.Schedule(cohorts(rounds)),
        rounds=rounds,
        evaluation=atoll.Evaluation(server=False),
        compile="always",
        callbacks=[lambda row: clock.append(time.perf_counter())],
    )
    owner = np.repeat(np.arange(CLIENTS), ROWS)
    data = Islands.from_owner(Dataset(rows_of(), classes=CLASSES), owner, CLIENTS)
    clock.append(time.perf_counter())
    result = atoll.simulate(job, data, engine="batched", seed=0, progress=False)
    model = model_of(work)
    model.load_state_dict({name: torch.as_tensor(np.asarray(value)) for name, value in result.params.items()})
    print(result.engine, file=sys.stderr)
    return [b - a for a, b in pairwise(clock)], model


def measured(work: str, model: nn.Module) -> float:
    """Return how well the model is trained: the mean loss of labels, or of SimCLR's pairs, on rows of the first clients."""
    loop = Loop(work)
    loop.model.load_state_dict(model.state_dict())
    batch = torch.arange(400)
    with torch.no_grad():
        if work.startswith("fixmatch"):
            return float(F.cross_entropy(loop.model(loop.columns["x"][batch]), loop.columns["y"][batch]))
        return float(loop.loss(batch, batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--flower", help="the Python of an environment with flwr[simulation], torch and what Atoll needs"
    )
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    works = options.works.split(",")
    if options.peer:
        laps, model = (bare if options.peer == "bare" else atoll_rounds)(works[0], options.rounds)
        print(json.dumps({"steady": median(laps[1:]), "first": laps[0], "loss": measured(works[0], model)}))
        return
    peers = ["bare", "atoll", *["flower"] * bool(options.flower)]
    for work in works:
        found: dict[str, list[dict[str, float]]] = {peer: [] for peer in peers}
        for _ in range(options.runs):
            for peer, lines in found.items():
                lines.append(_run(peer, work, options))
        steady = {peer: median(line["steady"] for line in lines) for peer, lines in found.items()}
        losses = {peer: median(line["loss"] for line in lines) for peer, lines in found.items()}
        first = median(line["first"] for line in found["atoll"])
        others = "; ".join(
            f"{_NAMES[peer]} {steady[peer]:.2f} s a round, {steady[peer] / steady['atoll']:.2f}x"
            for peer in peers
            if peer != "atoll"
        )
        shown = ", ".join(f"{peer} {loss:.3f}" for peer, loss in losses.items())
        print(
            f"{work}: Atoll {steady['atoll']:.3f} s a round (first {first:.1f} s); {others}; losses {shown}", flush=True
        )


_NAMES = {"bare": "two bare processes", "flower": "Flower, two actors"}


def _run(peer: str, work: str, options: argparse.Namespace) -> dict[str, float]:
    """Run a peer in a process of its own and return its line."""
    command = [sys.executable, __file__, "--works", work, "--peer", peer, "--rounds", str(options.rounds)]
    here, settings = Path(__file__).resolve().parent, {**os.environ}
    if peer == "flower":
        command = [options.flower, "-m", "peers.flower_labels", work, str(options.rounds)]
        settings["PYTHONPATH"] = os.pathsep.join([str(here), str(here.parent / "src")])
    done = subprocess.run(command, capture_output=True, text=True, env=settings, cwd=here)
    if done.returncode:
        raise SystemExit(f"{peer} on {work} failed:\n{done.stderr[-2000:]}")
    made: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return made


if __name__ == "__main__":
    main()
