"""What every reducer must do: give the plain sum, and if it is secure, refuse what would show a single reply."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from atoll.core.aggregate import Mean, Parts, Sum, Vote
from atoll.core.clock import Free, run
from atoll.core.cohort import Community
from atoll.core.errors import CompositionError
from atoll.core.federation import Federation, run_program
from atoll.core.island import Island
from atoll.core.reducer import Reducer
from atoll.core.stage import Stage
from atoll.core.task import task
from atoll.core.tree import Tree
from atoll.core.world import World
from atoll.testing.crash import killed_and_resumed
from atoll.testing.timetable import Timetable

from .laws import close, refuses, require
from .tasks import Dither

__all__ = ["check_reducer"]

_SIZE = 7


@dataclass(frozen=True)
class Unsummable(Stage):
    """A stage that a secure reducer must refuse."""

    summable: ClassVar[bool] = False


@task
def replies(island: Island, message: Tree) -> Tree:
    """All kinds of sums."""
    x = np.array([island.data, -island.data, 0.25 * message], dtype=np.float64)
    return {
        "mean": Mean({"x": x}, examples=island.data),
        "sum": Sum({"y": x * 2}),
        "vote": Vote({"z": x - 2.0}),
        "metric/n": Sum(np.float64(1.0), metric=True),
    }


@task
def single(island: Island, message: Tree) -> Tree:
    """A reply that must be seen by itself."""
    return {"x": Parts({"x": np.float64(island.data)})}


def check_reducer(
    reducer: Reducer,
    *,
    make_engine: Callable[[], Any] | None = None,
    tolerance: float = 1e-6,
    dropouts: bool = True,
    seed: int = 0,
) -> None:
    """Require a reducer to give what plain addition gives, for means, sums, votes and metrics.

    Also with stages; when a party falls silent (``dropouts``); and after a crash at any of its steps, where nobody may answer one request in two
    ways. A secure reducer refuses a stage that is not summable before anyone is contacted, and single replies.

    Args:
        reducer: the reducer, for seven parties.
        make_engine: makes a fresh engine; by default the inline one.
        tolerance: allowed difference, relative to ``1 + |x|``: fixed-point reducers round.
        dropouts: whether it must survive a party that answers nothing.
        seed: of the world.

    Raises:
        AssertionError: it does not.
    """
    from atoll.core.reducer import Plain
    from atoll.engines import Inline

    make = make_engine or Inline
    name = type(reducer).__name__

    def world(cost: Any = None, folder: Path | None = None, resume: bool = False) -> World:
        people = Community([float(i + 1) for i in range(_SIZE)])
        return World(people, make(), cost=cost or Free(), folder=folder, resume=resume, seed=seed)

    def program(chosen: Reducer, uplink: tuple[Stage, ...] = ()) -> Any:
        async def sums(fed: Federation) -> Any:
            state = await fed.restore([])
            while len(state) < 2:
                got = await fed.sum(fed.parties, replies, float(len(state)), reducer=chosen, uplink=uplink, quorum=3)
                weight = {k: float(v) for k, v in got.weight.items()}
                state = [*state, {"value": got.value, "n": got.n, "weight": weight, "who": got.senders.names}]
                await fed.checkpoint(state)
            return state

        return sums

    def compared(what: str, cost: Any = None, uplink: tuple[Stage, ...] = ()) -> None:
        ours = run(run_program(world(cost), program(reducer, uplink)))[0]
        plain = run(run_program(world(cost), program(Plain(), uplink)))[0]
        close(ours, plain, f"{name}, {what}", tolerance)

    compared("everyone")
    compared("with a stage", uplink=(Dither(0.0),))
    if dropouts:
        compared("without one", Timetable(lost={"": ["client-3"]}))
    with tempfile.TemporaryDirectory() as folder:
        killed_and_resumed(lambda f, r: world(None, f, r), program(reducer), Path(folder), points=10)
    if reducer.secure:
        _refuses(reducer, world, name)


def _refuses(reducer: Reducer, world: Callable[[], World], name: str) -> None:
    async def stage(fed: Federation) -> int:
        with refuses(CompositionError, f"{name} and a stage that is not summable", "Unsummable"):
            await fed.sum(fed.parties, replies, 0.0, reducer=reducer, uplink=(Unsummable(),))
        return fed.bytes()["messages_down"]

    async def parts(fed: Federation) -> None:
        with refuses(CompositionError, f"{name} and single replies", "x"):
            await fed.sum(fed.parties, single, None, reducer=reducer)

    asked = run(run_program(world(), stage))[0]
    require(asked == 0, f"{name}: {asked} parties were contacted before the stage was refused")
    run(run_program(world(), parts))
