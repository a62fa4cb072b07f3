"""The tasks with which engines are checked: at the top level of a module, so that they travel by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.aggregate import Mean, Parts, Sum, Vote
from atoll.core.event import Laplace
from atoll.core.rng import Rng
from atoll.core.stage import Stage
from atoll.core.task import Batch, task
from atoll.core.tree import Tree

if TYPE_CHECKING:
    from atoll.core.cohort import Cohort
    from atoll.core.island import Island

__all__ = [
    "Dither", "boom", "caller", "count", "echo", "forward", "gather", "hears", "letters", "never", "pass_on", "release", "release_sum", "responder", "scale",
    "thinks", "thirsty",
]  # fmt: skip


@dataclass(frozen=True)
class Dither(Stage):
    """A stage of each half: adds a number of the party's stream, and takes the public shift off the sum."""

    size: float = 0.01
    on: ClassVar[Any] = "summand"
    linear: ClassVar[bool] = False

    def public(self, rng: Rng) -> Tree:
        """The shift."""
        return {"shift": float(rng.generator().random())}

    def encode(self, value: Tree, public: Tree, rng: Rng) -> Tree:
        """Shift and dither."""
        noise = self.size * (rng.generator().random() - 0.5)
        return {name: leaf + public["shift"] + noise for name, leaf in value.items()}

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Take ``n`` shifts off."""
        return {name: leaf - n * public["shift"] for name, leaf in total.items()}


@task
def echo(island: Island, message: Tree, tag: str = "") -> Tree:
    """Everything that a task may see, and the message back."""
    return {
        "name": island.name, "role": island.party.role, "data": island.data, "message": message, "tag": tag,
        "draw": island.rng.child("echo").generator().random(3),
    }  # fmt: skip


@task
def boom(island: Island, message: Tree, at: str = "", number: int = 0) -> Tree:
    """Raises at one party."""
    if island.name == at:
        raise ValueError(f"boom {number}")
    return {"x": Sum(1.0)}


@task
def count(island: Island, message: Tree) -> Tree:
    """Counts its runs in the private state."""
    runs = (island.state or {}).get("runs", 0) + 1
    island.state = {"runs": runs, "last": message}
    return {"runs": Sum(float(runs)), "names": Parts({"last": np.float64(island.data)}, examples=float(runs))}


def _scale_many(cohort: Cohort, message: Tree) -> Iterator[Batch]:
    """Three clients a block."""
    for start in range(0, len(cohort), 3):
        rows = np.arange(start, min(start + 3, len(cohort)))
        x = np.array([cohort.shard(int(i)) for i in rows], dtype=np.float64)
        runs = np.array([(cohort.state(int(i)) or {}).get("runs", 0.0) + 1.0 for i in rows])
        value = {"w": x[:, None] * message["w"]}
        reply: dict[str, Any] = {"w": Mean(value, examples=1.0 + x), "sign": Vote({"s": value["w"]})}
        yield Batch(rows, {**reply, "metric/n": Sum(runs, metric=True)}, {"runs": runs})


@task(many=_scale_many)
def scale(island: Island, message: Tree) -> Tree:
    """A weighted mean, a vote and a metric, with state; one by one and in blocks."""
    runs = np.float64((island.state or {}).get("runs", 0.0)) + 1
    island.state = {"runs": runs}
    value = {"w": island.data * message["w"]}
    weight = 1.0 + island.data
    return {
        "w": Mean(value, examples=weight),
        "sign": Vote({"s": value["w"]}),
        "metric/n": Sum(runs, metric=True),
    }


@task
def release(island: Island, message: Tree) -> Tree:
    """Spends budget and draws a secret: must never be run twice."""
    island.spend(Laplace(epsilon=0.5))
    island.state = {"runs": ((island.state or {}).get("runs", 0)) + 1, "token": island.secret.bytes(16)}
    return {"token": island.state["token"], "runs": island.state["runs"]}


@task
def release_sum(island: Island, message: Tree) -> Tree:
    """The same as a sum, of secrets."""
    release.run(island, message)
    return {"secret": Sum(island.secret.uniform(2))}


@task
def letters(island: Island, names: list[str]) -> Tree:
    """Writes to everybody."""
    for name in names:
        island.post(name, {"from": island.name, "to": name, "x": np.full(3, island.data)})
    island.note({"posted": len(names)})
    return len(names)


@task
def gather(island: Island, message: Tree) -> Tree:
    """Reads its letters."""
    return {sender: letter for sender, letter in island.inbox.items() if letter["to"] == island.name}


@task
def pass_on(island: Island, message: Tree) -> Tree:
    """Adds itself to a chain."""
    return [*message, island.name]


@task
def forward(island: Island, message: Tree) -> Tree:
    """The message, doubled: large ones too."""
    return {name: leaf * 2 for name, leaf in message.items()}


@task
async def caller(island: Island, peers: Any, rounds: int = 5, size: int = 4, fail_at: int = -1) -> Tree:
    """Asks and adds up the answers; keeps them in its state."""
    total = np.zeros(size)
    for i in range(rounds):
        if i == fail_at:
            raise ValueError("the caller gives up")
        await peers.send("responder", {"i": i, "x": np.full(size, float(i))})
        total = total + (await peers.recv("responder"))["y"]
    island.state = {"total": total}
    return {"total": total, "peers": sorted(peers.names)}


@task
async def responder(island: Island, peers: Any, rounds: int = 5) -> Tree:
    """Answers."""
    for _ in range(rounds):
        question = await peers.recv("caller")
        await peers.send("caller", {"y": question["x"] * island.data})
    return float(island.data)


@task
async def thirsty(island: Island, peers: Any) -> Tree:
    """Waits for one message more than comes."""
    return await peers.recv("caller")


@task
async def hears(island: Island, peers: Any, names: Sequence[str]) -> Tree:
    """Waits for a message of several others at once."""
    return await asyncio.gather(*(peers.recv(name) for name in names))


@task
async def thinks(island: Island, peers: Any, name: str) -> Tree:
    """Says something that it found in a thread of its own."""
    await peers.send(name, await asyncio.to_thread(sum, range(100_000)))


@task
async def never(island: Island, peers: Any) -> Tree:
    """Says nothing."""
    return None
