"""NVIDIA FLARE, Fig. 6: split learning on CIFAR-10, images at one client and labels at another, beside the same network in plain PyTorch, and between processes with and without a server in between.

Source: "NVIDIA FLARE: Federated Learning from Simulation to Real-World" (2022), section on split learning: 50,000 images, 15,625 steps of 64, which are 20 epochs; keys matched by private set
intersection. The figure's seconds cannot be read. The text says that a direct line between the clients is faster than one through the server, and costs little more than the plain script. The
network and its cut are not stated. Ours are 10,000 of the images at 16 x 16 pixels, two convolutions at the client with the images, and 20 epochs; between processes bundled digits, so that messages and not
convolutions take the time.
"""

from __future__ import annotations

import asyncio
import csv
import itertools
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import atoll
from atoll.data import Dataset
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.secure.psi import Oprf
from atoll.vertical import SplitNet, Vertical, VerticalResult

__all__ = ["ENTRY", "fit_by_pytorch", "train_split"]

_SAME, _LINES = "Beside the plain script", "Between processes"


def _images(quick: bool) -> tuple[Any, Any, str]:
    """Images ``(rows, channels, height, width)`` and their classes."""
    if quick:
        digits = atoll.data.digits(test=0)
        x = np.asarray(digits.x, np.float32).reshape(len(digits), 1, 8, 8)
        return x, np.asarray(digits.y), f"{len(x):,} digits of 8 x 8"
    rows = atoll.data.cifar10_subset()
    x = np.asarray(rows.x, np.float32).reshape(-1, 3, 16, 2, 16, 2).mean(axis=(3, 5))
    return x, np.asarray(rows.y), f"{len(x):,} images of CIFAR-10 at 16 x 16"


def _parties(x: Any, y: Any, seed: int = 0) -> dict[str, Any]:
    """Labels at one party, images at the other, in an order of its own, with rows that only one has."""
    ids, order = np.arange(len(x)), np.random.default_rng(seed).permutation(len(x))
    lacking = order[: len(order) - len(order) // 50]
    return {"labels": {"id": ids, "y": y}, "images": Dataset({"x": x[lacking], "id": ids[lacking]})}


class _Timed(SplitNet):
    """The same, which notes the processor seconds from the guest's first step to its last: both parties', in one process."""

    spent: list[float] = []  # noqa: RUF012

    async def train_guest(self, *given: Any, **more: Any) -> Any:
        began = time.process_time()
        found = await super().train_guest(*given, **more)
        self.spent.append(time.process_time() - began)
        return found


def train_split(net: SplitNet, parties: Mapping[str, Any]) -> tuple[VerticalResult, float]:
    """A training of all parties in one process, and the processor seconds of its steps."""
    job = Vertical(model=net, align=Oprf())
    result: Any = atoll.simulate(job, parties, engine="inline", progress=False, secret_seed=1).outcome
    return result, _Timed.spent.pop()


def fit_by_pytorch(net: SplitNet, x: Any, y: Any, classes: int) -> tuple[Any, float]:
    """The same network by PyTorch's modules and optimiser, from the same initial weights and batches; return it, and the processor seconds of its steps.

    Args:
        net: the settings.
        x: scaled images, ``(rows, channels, height, width)``.
        y: their classes.
        classes: how many there are.
    """
    import torch
    from torch import nn

    bottom, empty = net.bottom(int(np.prod(x.shape[1:])), 1), net.bottom(0)
    trunk, head = net.tops(2, classes)
    segments = [net.segment(bottom, "bottom", 1), net.segment(empty, "bottom", 0), net.segment(trunk, "trunk"), net.segment(head, "head")]  # fmt: skip
    convolutions: list[Any] = []
    channels = (net.image[0], *net.channels)
    for a, b in itertools.pairwise(channels):
        convolutions += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

    def dense(sizes: list[int], *, last: bool) -> list[Any]:
        made: list[Any] = []
        for k, (a, b) in enumerate(itertools.pairwise(sizes)):
            made += [*([nn.ReLU()] if k else []), nn.Linear(a, b) if a else _constant(b)]
        return made if last or len(sizes) < 2 else [*made, nn.ReLU()]

    eyes = nn.Sequential(*convolutions, nn.Flatten(), *dense([bottom.flat, *bottom.widths], last=False))
    blind = nn.Sequential(*dense([0, *empty.widths], last=False))
    top = nn.Sequential(*dense([trunk.inputs, *trunk.widths], last=False), *dense([head.inputs, *head.widths], last=True))  # fmt: skip
    with torch.no_grad():
        for module, values in ((eyes, segments[0].weights), (blind, segments[1].weights), (top, [*segments[2].weights, *segments[3].weights])):  # fmt: skip
            for mine, value in zip(module.parameters(), values, strict=True):
                mine.copy_(value)
    everything = nn.ModuleList([eyes, blind, top])
    optimizer = torch.optim.Adam(everything.parameters(), lr=net.rate)
    targets = torch.from_numpy(y)

    def run(at: Any, among: Any = x) -> Any:
        seen = torch.from_numpy(among[at])
        return top(torch.cat([blind(seen.new_zeros(len(at), 0)), eyes(seen)], 1))

    began = time.process_time()
    for _, at in net.batches(len(x)).from_step(0):
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(run(at), targets[at])
        loss.backward()
        optimizer.step()
    return run, time.process_time() - began


def _constant(outputs: int) -> Any:
    """A linear layer without inputs, which gives its offsets; PyTorch's own warns where it draws its weights."""
    from torch import nn, zeros

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(zeros(outputs, 0)), nn.Parameter(zeros(outputs))

        def forward(self, x: Any) -> Any:
            return self.bias.expand(len(x), outputs)

    return Constant()


def _beside_pytorch(quick: bool) -> list[Claim]:
    import torch

    x, y, what = _images(quick)
    epochs = 3 if quick else 20
    net = _Timed(image=x.shape[1:], channels=(4, 8) if quick else (8, 16), epochs=epochs, rate=0.003, top=(32,))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train_split(
            _Timed(image=net.image, channels=net.channels, epochs=1), _parties(x[:200], y[:200])
        )  # libraries warm up
        result, spent = train_split(net, _parties(x, y))
        told = result.predictions
        at = told["id"].astype(np.int64)
        train, held = at[~told["test"]], at[told["test"]]
        flat = x.reshape(len(x), -1).astype(np.float64)
        mean, spread = flat[train].mean(axis=0), flat[train].std(axis=0)
        scaled = ((flat - mean) / np.where(spread > 0, spread, 1)).astype(np.float32).reshape(x.shape)
        run, plain = fit_by_pytorch(net, scaled[train], y[train], int(y.max()) + 1)
        with torch.no_grad():
            right = float((run(held, scaled).argmax(1).numpy() == y[held]).mean())
    finally:
        torch.set_num_threads(before)
    steps = epochs * -(-len(train) // 64)
    where = f"{what}, {len(train):,} to train on, {steps:,} steps of 64, one thread"
    scores = {name: result.scores[f"test/{name}/accuracy"] for name in ("federated", "alone")}
    ratio = round(spent / plain, 3)
    return [
        Claim("the parties find the rows that they share", f"{len(x) - len(x) // 50:,}", f"{len(at):,}", len(at) == len(x) - len(x) // 50, f"keys matched by KKRT's oblivious transfers; {what}", _SAME),
        Claim("images at one party teach labels at another", "more than without images", round(scores["federated"], 3), scores["federated"] > scores["alone"] + 0.1, f"accuracy of {len(held):,} held-out images; {where}", _SAME),
        Claim("the plain script's network is as good", round(right, 3), round(scores["federated"], 3), abs(scores["federated"] - right) <= 0.02, f"accuracy of held-out images, at most .02 apart: the same initial weights and batches, rounding apart; {where}", _SAME),
        Claim("a step costs little more than one of the plain script", "at most 1.25 times", ratio, ratio <= 1.25,
              f"{1e3 * spent / steps:.3g} and {1e3 * plain / steps:.3g} ms of processor time a step, of both parties; {where}", _SAME),
    ]  # fmt: skip


# Between processes.


async def _between(folder: Path, job: Vertical, files: Mapping[str, Path], *, direct: bool) -> Mapping[str, float]:
    """Run the job between a server and two sites, each a process of its own; return what its session cost."""
    from atoll.cli.asking import error_of
    from atoll.runs import RunFolder, result_of, yaml
    from atoll.runtime.admin import Admin
    from atoll.runtime.job_spec import JobConfig
    from atoll.runtime.poc import Poc

    config = JobConfig.of(job, name="split", sites=list(files), direct=direct)
    folder.mkdir()
    (folder / "job.yaml").write_text(yaml.dump(config.model_dump(exclude_defaults=True)), encoding="utf-8")
    data = {name: [str(file.absolute()), "--id", "id"] for name, file in files.items()}
    async with (
        Poc(folder, data, direct=direct) as trial,
        Admin(trial.kit("admin"), trial.address) as admin,
    ):
        asked = await admin.submit(folder / "job.yaml")
        error = error_of(await admin.wait(asked["job"]))
        if error is not None:
            raise error
        await admin.result(asked["job"], folder / "result", replace=True)
    told: Any = result_of(RunFolder(folder / "result")).get("result") or {}
    return dict(told.get("cost") or {})


def _write(file: Path, columns: Mapping[str, Any]) -> Path:
    with file.open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(columns)
        rows.writerows(zip(*(np.asarray(values).tolist() for values in columns.values()), strict=True))
    return file


def _between_processes(quick: bool) -> list[Claim]:
    x, y, what = _images(True)
    columns = {f"p{j:02}": values for j, values in enumerate(x.reshape(len(x), -1).T)}
    ids, epochs = [f"{k:05}" for k in range(len(x))], 2 if quick else 20
    tables = {"labels": {"id": ids, "y": y}, "pictures": {"id": ids, **columns}}
    net = SplitNet(image=(1, 8, 8), channels=(4, 8), epochs=epochs, top=(32,))
    job = Vertical(model=net, align=Oprf(), guest="labels")
    inline: Any = atoll.simulate(job, tables, engine="inline", progress=False).outcome
    costs, same = {}, True
    with tempfile.TemporaryDirectory() as made:
        files = {name: _write(Path(made) / f"{name}.csv", one) for name, one in tables.items()}
        for name, direct in (("through the server", False), ("direct", True)):
            place = Path(made) / name
            costs[name] = asyncio.run(_between(place, job, files, direct=direct))
            found = VerticalResult.read(job, {one: place / "run" / one / "results" for one in files})
            same = same and np.array_equal(found.predictions["federated"], inline.predictions["federated"])
    steps = epochs * -(-inline.rows["train"] // 64)
    each = {name: 1e3 * cost["seconds"] / steps for name, cost in costs.items()}
    where = f"{what}, {steps} steps of 64, a server and two sites as processes of one machine, mutual TLS; seconds of alignment and training by the step"
    faster = each["direct"] < each["through the server"]
    return [
        Claim("processes make the model of a simulation", "equal", "equal" if same else "different", same, f"predictions of all rows, to the bit, on both lines; {where}", _LINES),
        Claim("a direct line is faster than one through the server", f"less than {each['through the server']:.3g} ms", f"{each['direct']:.3g} ms", None if quick else faster, where, _LINES),
        Claim.figure("bytes of a step", round(costs["direct"]["bytes"] / steps), where, _LINES),
    ]  # fmt: skip


@keeping_nothing("flare-split")
def _run(quick: bool) -> list[Claim]:
    return [*_beside_pytorch(quick), *_between_processes(quick)]


ENTRY = Entry(
    name="flare-split",
    title="NVIDIA FLARE, Fig. 6: split learning, images at one client and labels at another",
    source="NVIDIA FLARE: Federated Learning from Simulation to Real-World (2022), Fig. 6",
    run=_run,
    needs="the part of CIFAR-10 below ATOLL_DATA, and PyTorch; no data with --quick",
    data=("cifar10_subset",),
    quick_data=(),
)
