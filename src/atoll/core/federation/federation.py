"""The federation: what a program holds. Everything else in Atoll is written against it.

A program is ``async def program(fed) -> result``. It begins with ``state = await fed.restore(initial)`` and is run again from the top after a
crash; frames are never saved. The same program text runs in simulation and between organisations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra.tree import Tree
from ..requests.chain import Chain
from ..requests.party import Parties, Party
from ..requests.request import Request
from ..requests.results import Accept, Combined, Late, Terms
from ..requests.stage import Stage
from ..requests.task import Task
from ..time.deadline import Deadline
from . import nesting
from . import resumption as survival
from .dialogue import Dialogue
from .reducer import Plain, Reducer
from .sums import Sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..world import World

__all__ = ["Federation", "Program", "run_program"]

Program = Callable[["Federation"], Awaitable[Any]]


class Federation(Dialogue, Sums):
    """A program's view on its parties.

    ``ask``, ``ask_all``, ``exchange``, ``relay`` and ``session`` return what parties say (``Dialogue``); ``sum`` returns it combined; ``send``,
    ``arrivals`` and ``combine`` are for replies that come later (``Sums``); its surroundings (``clock``, ``rng``, ``record``, ``bytes``) are a
    ``Scope``'s.

    Args:
        world: what it runs in.
        parties: whom it may ask; by default the population.
        slot: path of this scope: the root of its random path and its checkpoint slot.
        hub: name of the party at which the program runs.
        family: every federation of the same program, by slot.

    Attributes:
        home: where the parties keep their private state for this scope.
        homes: further such places, of nested programs that are over.
        meter: bytes of this scope alone.
        records: what it recorded.
        counts: requests made so far, by task.
        nested: it is run by a party of another federation.
        kept: it writes checkpoints of its own.
        written: how many records the last checkpoint holds, and in which segments.
    """

    async def sum(
        self,
        parties: Parties,
        task: Task,
        message: Tree = None,
        *,
        uplink: Sequence[Stage] | Chain = (),
        reducer: Reducer | None = None,
        deadline: float | Deadline | None = None,
        quorum: int = 1,
        accept: Accept | None = None,
        late: Late = "cancel",
        at: Any = None,
        down: NDArray[np.int64] | None = None,
        up: int | Callable[[], int] | None = None,
    ) -> Combined:
        """Ask the parties and get the combination of their replies, never the parts.

        Args:
            parties: the cohort; sums are defined in its order.
            task: replies with a dict of aggregates.
            message: the same for everyone.
            uplink: stages, applied in order at the party, undone in reverse at the sum.
            reducer: how replies become one; by default plain addition.
            deadline: seconds after sending, or one that several requests share: ``fed.deadline(...)``. A reducer's supersteps
                share the latter; a number is the limit of each.
            quorum: replies without which the round has failed.
            accept: replies after which the round closes, a rule that chooses among them (see ``Taker``), or a share of a ``Quota``.
            late: what becomes of the others.
            at: label of the request in its random path; by default a count.
            down: bytes that reach each party, where they are not the message's own size; see ``Terms``.
            up: bytes of a reply as a model of devices shall know them beforehand; see ``Terms``.

        Raises:
            CompositionError: stages and reducer cannot be combined; nobody was contacted.
            QuorumError: fewer usable replies than the quorum. Then every party is as it was before.
        """
        chain = uplink if isinstance(uplink, Chain) else Chain(uplink)
        chosen = reducer or Plain()
        terms = Terms(deadline, quorum, accept, late, down, up)
        chosen.check(chain, parties, terms, task)
        # What arrives later is in other sums, of any size.
        chain = chain.within(1 if late == "arrive" else quorum, hidden=chosen.secure)
        request = self._request(task, message, at, uplink=chain)
        return await self._reduce(chosen, request, parties, terms, f"{request.id}//{type(chosen).__name__}")

    # ------------------------------------------------------------------ what devices are expected to do

    def forecast(
        self, parties: Parties, task: Task, message: Tree = None, *, up: int | Callable[[], int] | None = None
    ) -> NDArray[np.float64] | None:
        """Seconds that each party is expected to take for a task if nothing goes wrong; ``None`` where nobody knows."""
        ask = getattr(self.world.cost, "forecast", None)
        if ask is None:
            return None
        request = Request(f"{self.slot}/{task.name}/forecast", task, message, self.home, 0)
        plan = self.traffic.plan(request, parties, M.nbytes(message), self.clock.now(), up)
        return np.asarray(ask(parties, plan), dtype=np.float64)

    def available(self, parties: Parties) -> Parties:
        """Those of the parties that can be asked now."""
        ask = getattr(self.world.cost, "available", None)
        if ask is None:
            return parties
        return Parties(self.world.roster, parties.positions[np.asarray(ask(parties, self.clock.now()), dtype=bool)])

    def scope(self, name: str, parties: Parties | None = None) -> Federation:
        """A view with its own random path, private state and checkpoint slot, for concurrent sub-programs.

        The same name gives the same scope. A scope that writes checkpoints survives by itself; one that does not is covered by this one's.
        """
        return nesting.scope(self, name, parties)

    async def nest(
        self, party: Party | str, program: Callable[..., Awaitable[Any]], parties: Parties, message: Tree = None
    ) -> Any:
        """Let a party run a program over its own federation: hierarchy is the waist, applied twice.

        Args:
            party: the one that is a server to its members and a client to this program.
            program: ``async (federation, message) -> reply``.
            parties: its members; what they keep in private outlives one visit.
            message: what this program sends it.
        """
        name = party if isinstance(party, str) else party.name
        return await nesting.nest(self, name, program, parties, message)

    # ------------------------------------------------------------------ surviving

    async def restore(self, initial: Tree) -> Any:
        """The state of this scope's last checkpoint, or ``initial`` at the very beginning."""
        return await survival.restore(self, initial)

    @property
    def durable(self) -> bool:
        """Whether checkpoints go to a folder, so that another process can resume from them."""
        return self.world.folder is not None

    async def checkpoint(self, state: Tree) -> None:
        """Make everything up to here durable, as one atomic generation: this scope, and those below that keep no checkpoint of their own.

        Raises:
            CheckpointError: it cannot be written; the previous generation is untouched.
        """
        await survival.checkpoint(self, state)


async def run_program(world: World, program: Program) -> tuple[Any, Federation]:
    """Open the world, run a program to its end and close the engine.

    Returns:
        The program's result and its federation (records, meters).
    """
    world.checkpoints.open(resume=world.resume)
    if not world.resume:
        world.ledger.begin_run()
    world.engine.choices.update(world.checkpoints.choices)
    world.note_secret_seed()
    fed = Federation(world)
    await world.engine.open(world)
    try:
        result = await program(fed)
        await world.engine.publish()
        return result, fed
    except Exception as error:
        world.decisions.reopen(error)
        raise
    finally:
        await world.engine.close()
