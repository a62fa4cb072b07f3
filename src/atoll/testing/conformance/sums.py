"""The sums that check reducers, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean, Parts, Sum, Vote
from atoll.core.errors import QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.requests.cohort import Community
from atoll.core.requests.results import Outcomes, Plan
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.testing.timetable import Timetable

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined
    from atoll.core.requests.stage import Stage

__all__ = ["NAMES", "Bench", "SumsMade", "draws", "single", "steps", "totals"]

NAMES = [f"client-{i}" for i in range(5)]


def _visit(island: Island) -> int:
    """Count the visits of this party; only parties in a sum keep the count."""
    count = int((island.state or {}).get("count", 0)) + 1
    island.state = {"count": count}
    return count


@task
def draws(island: Island, message: Tree) -> Tree:
    """Make all kinds of sums, of data, private state and random numbers."""
    count, draw = _visit(island), island.rng.generator().standard_normal(3)
    x = np.array([island.data, -island.data, 0.25 * message], dtype=np.float64)
    return {
        "mean": Mean({"x": x + draw, "deep": [np.float32(x[0]) * np.ones((2, 2), np.float32)]}, examples=island.data),
        "sum": Sum({"y": x * 2 * count, "n": np.int64(count)}),
        "vote": Vote({"z": x - 2.0}),
        "n": Sum(np.float64(1.0), role="metric"),
        "loss": Mean(np.float64(draw[0]), examples=island.data, role="metric"),
    }


@task
def steps(island: Island, message: Tree) -> Tree:
    """Another sum that reads and writes the same private state."""
    return {"steps": Sum({"x": _visit(island) * island.data + island.rng.generator().random(4)})}


@task
def peek(island: Island, message: Tree) -> Tree:
    """Return the party's private state."""
    return island.state


@task
def totals(island: Island, message: Tree, kinds: bool = False) -> Tree:
    """Numbers that depend only on the data and add up exactly in any order, each different at each party; of all kinds, or only means."""
    x = np.asarray(island.data, dtype=np.float64)
    examples = float(x[0] + 8)
    made: dict[str, Any] = {
        "mean": Mean({"x": x + message, "deep": [x[:2] * 4]}, examples=examples),
        "loss": Mean(np.float64(x[1]), examples=examples, role="metric"),
    }
    return (
        {**made, "sum": Sum({"y": x * 2}), "vote": Vote({"z": np.where(x * 8 % 2 > 0, 1.0, -1.0)})} if kinds else made
    )


@task
def single(island: Island, message: Tree) -> Tree:
    """Reply with something that must be read by itself."""
    return {"x": Parts({"x": np.float64(island.data)})}


@dataclass
class SumsMade:
    """The outcome of the sums of one program.

    Attributes:
        sums: value, weight, kinds and dtypes of each; ``None`` if it failed with a ``QuorumError``.
        senders: who is in each.
        rejected: whose reply was left out of each.
        states: name -> private state at the end.
        steps: for each sum, its requests and the parties asked.
    """

    sums: list[Any]
    senders: list[list[str] | None]
    rejected: list[list[str]]
    states: dict[str, Any]
    steps: list[dict[str, list[str]]]


@dataclass(frozen=True)
class _Noting(Timetable):
    """A timetable that records which party was asked what."""

    asked: dict[str, list[str]] = field(default_factory=dict)

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        self.asked[plan.request] = list(parties.names)
        return super().plan(parties, plan)


@dataclass(frozen=True)
class Bench:
    """Five parties, and the sums that they compute.

    Attributes:
        make_engine: makes a fresh engine.
        others: data of helper parties, by name.
        seed: of every world.
    """

    make_engine: Callable[[], Any]
    others: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def world(self, cost: Any, folder: Path | None = None, resume: bool = False, *, bad: str = "") -> World:
        """Return a fresh world; the data of one party may be not finite."""
        data = [np.nan if name == bad else float(i + 1) for i, name in enumerate(NAMES)]
        return World(
            Community(data, others=dict(self.others)), self.make_engine(), cost=cost, folder=folder, resume=resume, seed=self.seed
        )  # fmt: skip

    def sums(
        self,
        reducer: Reducer,
        *,
        cohorts: Sequence[list[str] | None] | None = None,
        uplink: tuple[Stage, ...] = (),
        seconds: Mapping[str, float] | None = None,
        lost: Mapping[str, Collection[str]] | None = None,
        bad: str = "",
        **terms: Any,
    ) -> SumsMade:
        """Make two rounds of two sums that share a label.

        Args:
            reducer: adds up.
            cohorts: the cohort of each sum; ``None`` in it leaves the sum out. By default everyone is in all of them.
            uplink: stages.
            seconds: seconds of each party's replies.
            lost: id of a request -> whose reply to it is lost.
            bad: the party whose data is not finite.
            **terms: terms of every sum.
        """
        cost = _Noting(seconds or {}, lost=lost or {})
        made = SumsMade([], [], [], {}, [])

        async def program(fed: Federation) -> None:
            for number, (turn, asked) in enumerate((turn, asked) for turn in range(2) for asked in (draws, steps)):
                names = None if cohorts is None else cohorts[number]
                if cohorts is not None and names is None:
                    continue
                cost.asked.clear()
                cohort = fed.parties if names is None else fed.parties.named(*names)
                try:
                    got = await fed.sum(cohort, asked, float(turn), reducer=reducer, uplink=uplink, at=turn, **terms)
                except QuorumError:
                    got = None
                made.steps.append(dict(cost.asked))
                made.sums.append(None if got is None else _format_sum(got))
                made.senders.append(None if got is None else list(got.senders.names))
                made.rejected.append([] if got is None else sorted(got.rejected))
            made.states.update((await fed.ask_all(fed.parties, peek)).by_name())

        run(run_program(self.world(cost, bad=bad), program))
        return made

    def plainly(self, like: SumsMade, **more: Any) -> SumsMade:
        """Make the same sums by plain addition, only of the parties in them."""
        return self.sums(Plain(), cohorts=like.senders, **more)


def _format_sum(got: Combined) -> Any:
    dtypes = T.map(lambda leaf: str(np.asarray(leaf).dtype), got.value)
    weight = {name: float(value) for name, value in got.weight.items()}
    return {"value": got.value, "n": got.n, "weight": weight, "kinds": got.kinds, "dtypes": dtypes}
