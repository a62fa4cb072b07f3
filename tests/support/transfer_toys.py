"""Tables and lines for models of transfer: two parties that share few rows, and what each hears of the other."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from atoll.core.requests.island import Secret
from atoll.data import Dataset, transfer
from atoll.trees.objectives import LOGISTIC, SOFTMAX, TreeLoss
from atoll.vertical.model import GuestRows


class Line:
    """A role's end of a line to one other; ``change`` is what a party that does not follow the protocol sends instead."""

    def __init__(
        self, me: str, queues: dict[Any, asyncio.Queue[Any]], heard: list[Any], change: Any = None, name: str = ""
    ) -> None:
        self.me, self._queues, self._heard, self._change, self._name = me, queues, heard, change, name

    def _queue(self, target: str) -> asyncio.Queue[Any]:
        return self._queues.setdefault((target, self._name), asyncio.Queue())

    def channel(self, name: str) -> Line:
        return Line(self.me, self._queues, self._heard, self._change, name)

    async def send(self, role: str, message: Any) -> None:
        told = message if self._change is None else self._change(self.me, message)
        self._heard.append((self.me, self._name, told))
        await self._queue(role).put(told)

    async def recv(self, role: str) -> Any:
        return await self._queue(self.me).get()

    async def broadcast(self, message: Any, roles: Any) -> None:
        for role in roles:
            await self.send(role, message)


def talk(
    first: Any, second: Any, names: tuple[str, str] = ("bank", "shop"), change: Any = None
) -> tuple[Any, Any, list[Any]]:
    """What two roles, each a function of its line, return, and all that they sent: ``(sender, channel, message)``."""

    async def both() -> Any:
        queues: dict[Any, asyncio.Queue[Any]] = {}
        heard: list[Any] = []
        roles = [
            asyncio.ensure_future(each(Line(name, queues, heard, change)))
            for each, name in zip((first, second), names, strict=True)
        ]
        done, waiting = await asyncio.wait(roles, return_when=asyncio.FIRST_EXCEPTION)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for one in done:
            one.result()
        return roles[0].result(), roles[1].result(), heard

    return asyncio.run(both())


def train_both(
    model: Any, rows: GuestRows, x: Any, others: Any = None, change: Any = None, secret: int = 7
) -> tuple[Any, Any, list[Any]]:
    """Train a bank with labels and a shop without; ``others`` are rows of each that are not shared."""
    guest_more, host_more = others or (None, None)
    return talk(
        lambda line: model.train_guest(rows, line, ["shop"], secret=Secret(secret), others=guest_more),
        lambda line: model.train_host(x, line, "bank", secret=Secret(secret + 1), others=host_more),
        change=change,
    )


def draw_rows(
    seed: int,
    shared: int = 12,
    alone: tuple[int, int] = (9, 7),
    columns: tuple[int, int] = (3, 2),
    outputs: int = 1,
    labelled: float = 1.0,
) -> Any:
    """The bank's shared rows, the shop's, and the others of both."""
    rng = np.random.default_rng(seed)
    loss = TreeLoss(LOGISTIC) if outputs == 1 else TreeLoss(SOFTMAX, outputs)

    def labels(n: int) -> Any:
        return np.where(rng.random(n) < labelled, rng.integers(0, max(2, outputs), n).astype(np.float64), np.nan)

    mine = [rng.normal(size=(n, columns[0])) for n in (shared, alone[0])]
    theirs = [rng.normal(size=(n, columns[1])) for n in (shared, alone[1])]
    mine[1][::3] = np.nan
    guest = [GuestRows(x, labels(len(x)), loss) for x in mine]
    return guest[0], theirs[0], (guest[1], theirs[1])


def draw_people(seed: int, rows: int = 1000, columns: int = 10, noise: float = 1.0) -> Dataset:
    """People with four hidden traits: each column is a noisy mixture of them, and what they do is drawn with log-odds 1.5 times another mixture."""
    rng = np.random.default_rng(seed)
    traits, mixture, wish = rng.normal(size=(rows, 4)), rng.normal(size=(4, 2 * columns)) / 2, rng.normal(size=4)
    x = traits @ mixture + noise * rng.normal(size=(rows, 2 * columns))
    y = (rng.random(rows) < 1 / (1 + np.exp(-1.5 * traits @ wish / np.linalg.norm(wish)))).astype(np.int64)
    names = [f"c{i}" for i in range(2 * columns)]
    return Dataset({"x": x, "y": y, "id": np.arange(rows)}, task="classification", features=names)


def cut_people(people: Dataset, overlap: float = 0.05, seed: int = 0, labelled: float = 1.0) -> dict[str, Dataset]:
    """The bank and the shop, with half of the columns each."""
    names = list(people.about.features)
    half = len(names) // 2
    return transfer(
        people, parties={"bank": names[:half], "shop": names[half:]}, overlap=overlap, labelled=labelled, seed=seed
    )


def cut_rows(people: Dataset, shared: int) -> Any:
    """The bank's shared rows, the shop's, the others of both, and the labels of the shop's others, which nobody has."""
    half, loss = people.x.shape[1] // 2, TreeLoss(LOGISTIC)
    x, y = np.asarray(people.x, np.float64), np.asarray(people.y, np.float64)
    at = shared + (len(x) - shared) // 2
    mine, more = GuestRows(x[:shared, :half], y[:shared], loss), GuestRows(x[shared:at, :half], y[shared:at], loss)
    return mine, x[:shared, half:], (more, x[at:, half:]), y[at:]
