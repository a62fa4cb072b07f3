"""The tasks that check engines, at the top level of a module so that they travel by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean, Parts, Sum, Vote
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import SessionError, TaskError
from atoll.core.event import Laplace
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.stage import Stage, StageContext
from atoll.core.requests.task import Batch, Work, task

if TYPE_CHECKING:
    from atoll.core.algebra.aggregate import Totals
    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.cohort import Cohort
    from atoll.core.requests.island import Island
    from atoll.core.requests.request import Reduced

__all__ = [
    "Dither", "HalfSum", "boom", "caller", "count", "echo", "forward", "gather", "hand_on", "hand_on_alone", "hears", "hide", "keeper", "keeps", "kept", "letters", "never", "pass_on",
    "release", "release_sum", "responder", "scale", "state", "thinks", "thirsty", "watcher", "worker",
]  # fmt: skip


@dataclass(frozen=True)
class Dither(Stage):
    """A stage for both halves: adds a number from the party's stream, and subtracts the public shift from the sum."""

    size: float = 0.01
    on: ClassVar[Any] = "summand"
    linear: ClassVar[bool] = False

    def public(self, rng: Rng) -> Tree:
        """Return the shift."""
        return {"shift": float(rng.generator().random())}

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Add shift and dither."""
        noise = self.size * (context.rng.generator().random() - 0.5)
        return T.map(lambda leaf: leaf + context.public["shift"] + noise, value)

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Subtract ``n`` shifts."""
        return T.map(lambda leaf: leaf - n * public["shift"], total)


@task
def echo(island: Island, message: Tree, tag: str = "") -> Tree:
    """Return everything that a task may see, and the message."""
    return {
        "name": island.name, "role": island.party.role, "data": island.data, "message": message, "tag": tag,
        "draw": island.rng.child("echo").generator().random(3),
    }  # fmt: skip


@task
def boom(island: Island, message: Tree, at: str = "", number: int = 0) -> Tree:
    """Raise at one party."""
    if island.name == at:
        raise ValueError(f"boom {number}")
    return {"x": Sum(1.0)}


@task
def count(island: Island, message: Tree) -> Tree:
    """Count its runs in the private state."""
    runs = (island.state or {}).get("runs", 0) + 1
    island.state = {"runs": runs, "last": message}
    return {"runs": Sum(float(runs)), "names": Parts({"last": np.float64(island.data)}, examples=float(runs))}


def _scale_many(cohort: Cohort, message: Tree) -> Iterator[Batch]:
    """Work on three clients at a time."""
    for start in range(0, len(cohort), 3):
        rows = np.arange(start, min(start + 3, len(cohort)))
        x = np.array([cohort.shard(int(i)) for i in rows], dtype=np.float64)
        runs = np.array([(cohort.state(int(i)) or {}).get("runs", 0.0) + 1.0 for i in rows])
        value = {"w": x[:, None] * message["w"]}
        reply: dict[str, Any] = {"w": Mean(value, examples=1.0 + x), "sign": Vote({"s": value["w"]})}
        yield Batch(rows, {**reply, "n": Sum(runs, role="metric")}, {"runs": runs})


@task(many=_scale_many)
def scale(island: Island, message: Tree) -> Tree:
    """Return a weighted mean, a vote and a metric, with state; one by one and in blocks."""
    runs = np.float64((island.state or {}).get("runs", 0.0)) + 1
    island.state = {"runs": runs}
    value = {"w": island.data * message["w"]}
    weight = 1.0 + island.data
    return {
        "w": Mean(value, examples=weight),
        "sign": Vote({"s": value["w"]}),
        "n": Sum(runs, role="metric"),
    }


@task
def release(island: Island, message: Tree) -> Tree:
    """Spend budget and draw a secret; must never run twice."""
    island.spend(Laplace(epsilon=0.5))
    island.state = {"runs": ((island.state or {}).get("runs", 0)) + 1, "token": island.secret.bytes(16)}
    return {"token": island.state["token"], "runs": island.state["runs"]}


@task
def release_sum(island: Island, message: Tree) -> Tree:
    """Do the same as a sum, of secrets."""
    release.run(island, message)
    return {"secret": Sum(island.secret.uniform(2))}


def _read_totals(totals: Totals) -> dict[str, Any]:
    """Return the values of totals."""
    return {f"{total.kind}/{name}": Sum(total.value, role=total.role) for name, total in totals.items()}


def _hand_on_many(cohort: Cohort, message: Tree) -> Iterator[Batch]:
    for block in cohort.totals():
        yield Batch(block.positions, _read_totals(block.totals))


@task(many=_hand_on_many)
async def hand_on(island: Island, message: Tree) -> Tree:
    """Return the totals unchanged: a half of a reducer; one by one and in blocks."""
    return _read_totals(await island.totals())


@task
async def hand_on_alone(island: Island, message: Tree) -> Tree:
    """Do the same one by one, and wait for something else too."""
    await asyncio.sleep(0)
    return _read_totals(await island.totals())


def _hide_words(value: Tree, island: Island) -> Any:
    """Hide words modulo 2^64 under a secret one; charge the release, and count it in the half's own state."""
    island.spend(Laplace(epsilon=0.5))
    island.state = {"runs": (island.state or {"runs": 0})["runs"] + 1}
    return np.round(value["s"] * 2**20).astype(np.int64).view(np.uint64) + island.secret.uint64(1)


def _hide_many(cohort: Cohort, message: Tree) -> Iterator[Batch]:
    for block in cohort.totals():
        islands = [cohort.island(i) for i in block.positions.tolist()]
        words = [
            _hide_words({"s": row}, one) for row, one in zip(block.totals["sign"].value["s"], islands, strict=True)
        ]
        runs = np.array([float(one.state["runs"]) for one in islands])
        yield Batch(block.positions, {"word": Sum(np.stack(words)), "runs": Sum(runs)})


@task(many=_hide_many)
async def hide(island: Island, message: Tree) -> Tree:
    """Hide the total: a half of a reducer that must never run twice for one sum."""
    word = _hide_words((await island.totals())["sign"].value, island)
    return {"word": Sum(word), "runs": Sum(float(island.state["runs"]))}


@dataclass(frozen=True)
class HalfSum(Reducer):
    """Adds up the replies of a half in this module.

    Attributes:
        half: its name.
    """

    half: str = "hand_on"
    lasting: ClassVar[bool] = True

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Run one step."""
        return await reduction.fold({"hand_on": hand_on, "hand_on_alone": hand_on_alone, "hide": hide}[self.half])


@task
def letters(island: Island, names: list[str]) -> Tree:
    """Write to every party."""
    for name in names:
        island.post(name, {"from": island.name, "to": name, "x": np.full(3, island.data)})
    island.note({"posted": len(names)})
    return len(names)


@task
def gather(island: Island, message: Tree) -> Tree:
    """Read its letters."""
    return {sender: letter for sender, letter in island.inbox.items() if letter["to"] == island.name}


@task
def pass_on(island: Island, message: Tree) -> Tree:
    """Add itself to a chain."""
    return [*message, island.name]


@task
def forward(island: Island, message: Tree) -> Tree:
    """Return the message, doubled; also large ones."""
    return {name: leaf * 2 for name, leaf in message.items()}


@task
async def caller(island: Island, peers: Any, rounds: int = 5, size: int = 4, fail_at: int = -1) -> Tree:
    """Ask and add up the answers; keep them in the state."""
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
    """Answer."""
    for _ in range(rounds):
        question = await peers.recv("caller")
        await peers.send("caller", {"y": question["x"] * island.data})
    return float(island.data)


def _ten(data: Any, args: Any, message: Tree) -> Work:
    return Work(examples=10.0, batches=10.0, epochs=1.0)


@task(work=_ten)
async def worker(island: Island, peers: Any, steps: int = 4) -> Tree:
    """Work for a while, ask, and wait for the answer, several times."""
    island.state = {"worker": steps}
    for i in range(steps):
        await peers.work(1 / steps)
        await peers.send("watcher", {"i": i, "x": np.full(4, island.data)})
        await peers.recv("watcher")
    return steps


@task
async def watcher(island: Island, peers: Any) -> Tree:
    """Answer a worker while there is one, and go on without it."""
    heard, why = 0, ""
    try:
        while True:
            await peers.send("worker", (await peers.recv("worker"))["i"])
            heard += 1
    except (SessionError, TaskError) as error:
        why = error.what
    island.state = {"heard": heard}
    return {"heard": heard, "why": why}


@task
def state(island: Island, message: Tree) -> Tree:
    """Return its state."""
    return island.state


@task
def keeps(island: Island, message: Tree) -> Tree:
    """Leave a result."""
    island.leave("kept", {"said": message, "x": np.full(3, float(island.data))})
    return {"n": Sum(1.0)}


@task
async def keeper(island: Island, peers: Any) -> Tree:
    """Leave a result as a role."""
    keeps.run(island, "role")
    return None


@task
def kept(island: Island, message: Tree) -> Tree:
    """Read the result."""
    return island.left("kept")


@task
async def thirsty(island: Island, peers: Any) -> Tree:
    """Wait for one message more than will come."""
    return await peers.recv("caller")


@task
async def hears(island: Island, peers: Any, names: Sequence[str]) -> Tree:
    """Wait for a message of several others at once."""
    return await asyncio.gather(*(peers.recv(name) for name in names))


@task
async def thinks(island: Island, peers: Any, name: str) -> Tree:
    """Send something that a thread of its own has computed."""
    await peers.send(name, await asyncio.to_thread(sum, range(100_000)))


@task
async def never(island: Island, peers: Any) -> Tree:
    """Send nothing."""
    return None
