"""What the tests of asynchronous pacings share: quadratics whose local training is three lines, devices, a run that is killed and resumed, masks."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

import atoll
from atoll.algorithms import FedAvg
from atoll.core.algebra.aggregate import Total
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.request import Reduced
from atoll.core.requests.task import task
from atoll.learn import Training
from atoll.models.quadratic import Quadratic, quadratics
from atoll.selection import Everyone
from tests.support.killed_trainings import killed_training
from tests.support.learn_toys import Fixed
from tests.support.masks import mask

DIM, CLIENTS = 6, 5
LR, STEPS = 0.05, 3
SECONDS = (1.0, 2.0, 2.0, 3.0, 7.0)
DATA = quadratics(CLIENTS, DIM, seed=3)
FULL: dict[str, Any] = {"lr": LR, "steps": STEPS, "batch_size": None}


def job(pacing: Any, algorithm: Any = None, **more: Any) -> Training:
    """A training on quadratics with everyone at work."""
    parts = {"model": Quadratic(DIM), "selection": Everyone(), "rounds": 12, **more}
    return Training(algorithm=algorithm or FedAvg(**FULL), pacing=pacing, **parts)


def train(pacing: Any, algorithm: Any = None, *, seconds: Any = SECONDS, engine: str = "inline", **more: Any) -> Any:
    """Run it; ``seconds`` are those of each client's every answer, or devices."""
    devices = seconds if hasattr(seconds, "plan") else Fixed(seconds)
    return atoll.simulate(job(pacing, algorithm, **more), DATA, engine=engine, devices=devices, workers=2)


def local(k: int, w: np.ndarray) -> np.ndarray:
    """Client k's model after its steps from ``w``."""
    shard = DATA.shard(k)
    for _ in range(STEPS):
        w = w - LR * (np.asarray(shard.x) @ w - np.asarray(shard.y))
    return w


class Slow:
    """A slow, readable simulation: clients that are sent a model answer after their seconds; ties go by time of asking, then by number."""

    def __init__(self, seconds: Sequence[float] = SECONDS) -> None:
        self.seconds, self.clock, self.turn = seconds, 0.0, 0
        self.queue: list[Any] = []

    def ask(self, clients: Sequence[int], version: int, w: np.ndarray) -> None:
        """Send them the model."""
        self.turn += 1
        for k in clients:
            heapq.heappush(self.queue, (self.clock + self.seconds[k], self.turn, k, version, w.tolist()))

    def answer(self) -> tuple[int, int, np.ndarray]:
        """The next to answer: client, version of its base, base."""
        time, _, k, version, base = heapq.heappop(self.queue)
        self.clock = max(self.clock, time)
        return k, version, np.array(base)


def survives(made: Training, folder: Any, *, seconds: Sequence[float] = SECONDS, points: int = 25, **more: Any) -> Any:
    """The undisturbed life of a run, after runs that were killed and resumed gave the same."""
    return killed_training(made, DATA, folder, points=points, cost=lambda: Fixed(seconds), **more)


class ForWork(Fixed):
    """Devices that take their seconds for work, and none for a message."""

    def plan(self, parties, plan):
        out = super().plan(parties, plan)
        return dataclasses.replace(out, seconds=out.seconds * (plan.work().batches > 0))


@task
def seeds(island, names):
    """A seed for every later party."""
    own = {name: island.secret.integer(2**63) for name in names if name > island.name}
    for name, seed in own.items():
        island.post(name, seed)
    island.state = {**(island.state or {}), "own": {name: str(seed) for name, seed in own.items()}}


@task
async def hidden(island, _):
    """My totals as 64-bit words with 40 bits behind the point, and masks that cancel in the sum."""
    kept = island.state
    totals = await island.totals()
    words, known = [], {}
    for name in sorted(totals):
        total = totals[name]
        known[name] = {"kind": total.kind, "role": total.role}
        words += [np.array([total.weight, *np.ravel(_leaf(total.value))])]
    word = np.round(np.concatenate(words) * 2**40).astype(np.int64).view(np.uint64)
    for seed in kept["own"].values():
        word = word + mask(int(seed), word.size)
    for seed in island.inbox.values():
        word = word - mask(int(seed), word.size)
    return {"word": word, "known": known, "sizes": [len(w) for w in words]}


def _leaf(value):
    return value["w"] if isinstance(value, dict) else value


@dataclasses.dataclass(frozen=True)
class Hidden(Reducer):
    """Pairwise masks for models of one leaf ``w``: the server sees words that mean nothing before they are added up."""

    secure = True

    def check(self, uplink, parties, terms, task):
        super().check(uplink, parties, terms, task)
        assert len(parties) > 1, "a single reply would be seen"

    async def reduce(self, reduction):
        parties = reduction.parties
        first = await reduction.exchange(parties, seeds, parties.names)
        replies = await reduction.exchange(first.senders, hidden, mail=first.mail, wraps=True)
        words = sum((r["word"] for r in replies.values), np.uint64(0)).view(np.int64) / 2.0**40
        totals, at_ = {}, 0
        for name, size in zip(sorted(replies.values[0]["known"]), replies.values[0]["sizes"], strict=True):
            known, whole = replies.values[0]["known"][name], words[at_ + 1 : at_ + size]
            value = float(whole[0]) if known["role"] == "metric" else {"w": whole}
            totals[name] = Total(known["kind"], value, float(words[at_]), len(replies), known["role"])
            at_ += size
        return Reduced(totals, replies.senders.positions)
