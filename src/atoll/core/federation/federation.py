"""The federation: a program's view of its parties. All other rooms of Atoll build on it.

A program is ``async def program(fed) -> result``. It begins with ``state = await fed.restore(initial)``, and after a crash it runs again from the
top; stack frames are never saved. The same program text runs in simulation and between organisations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra.tree import Tree
from ..calls import checked_call
from ..requests.chain import Chain
from ..requests.party import Parties, Party
from ..requests.request import Expects, Request, expecting
from ..requests.results import Accept, Combined, Late, Terms
from ..requests.stage import Stage
from ..requests.task import Task
from ..time.deadline import Deadline
from . import nesting
from . import resumption as survival
from .reducer import Plain, Reducer
from .replies import ReplyVerbs
from .sums import Sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..world import World

__all__ = ["Federation", "Program", "run_program"]

Program = Callable[["Federation"], Awaitable[Any]]


class Federation(ReplyVerbs, Sums):
    """A program's view of its parties.

    ``ask``, ``ask_all``, ``exchange``, ``relay`` and ``session`` return single replies (``ReplyVerbs``); ``sum`` returns them combined; ``send``,
    ``arrivals`` and ``combine`` handle replies that arrive later (``Sums``); the surroundings (``clock``, ``rng``, ``record``, ``bytes``) come from
    ``Scope``.

    Args:
        world: the world that it runs in.
        parties: the parties that it may ask; by default the population.
        slot: path of this scope: the root of its random path, and its checkpoint slot.
        hub: name of the party at which the program runs.
        family: every federation of the same program, by slot.

    Attributes:
        home: where the parties keep their private state for this scope.
        homes: further such places, of nested programs that have ended.
        meter: bytes of this scope alone.
        records: its records.
        counts: number of requests so far, by task.
        nested: whether a party of another federation runs it.
        kept: whether it writes its own checkpoints.
        written: number of records in the last checkpoint, and their segments.
    """

    @checked_call
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
        expects: Expects | None = None,
    ) -> Combined:
        """Ask the parties and return the combination of their replies, never single replies.

        Args:
            parties: the cohort; sums are computed in its order.
            task: a task that replies with a dict of aggregates.
            message: the message, the same for all.
            uplink: stages, applied in order at the party, undone in reverse at the sum.
            reducer: how replies are combined; by default plain addition.
            deadline: seconds after sending, or a deadline that several requests share: ``fed.deadline(...)``. A reducer's supersteps
                share the latter; a number is the limit of each.
            quorum: minimum number of replies; with fewer, the round fails.
            accept: number of replies after which the round closes, a rule that chooses among them (see ``Taker``), or a share of a ``Quota``.
            late: what to do with the others.
            at: label of the request in its random path; by default a count.
            down: bytes to each party, if they differ from the message's size; see ``Terms``.
            up: bytes of a reply, for the model of devices; see ``Terms``.
            expects: gives the form of the replies, where they follow from the request; see `ReplyForm`. Between organisations a reply of another form is
                rejected.

        Raises:
            CompositionError: stages and reducer cannot be combined; no party was contacted.
            QuorumError: fewer usable replies than the quorum. Then every party has the state from before the sum.
        """
        chain = uplink if isinstance(uplink, Chain) else Chain(uplink)
        chosen = reducer or Plain()
        terms = Terms(deadline, quorum, accept, late, down, up)
        chosen.check(chain, parties, terms, task)
        # Later arrivals are in other sums, of any size.
        chain = chain.within(1 if late == "arrive" else quorum, hidden=chosen.secure, indexing=chosen.indexes)
        request = expecting(self._request(task, message, at, uplink=chain), expects)
        return await self._reduce(chosen, request, parties, terms, f"{request.id}//{type(chosen).__name__}")

    # ------------------------------------------------------------------ predictions for devices

    def forecast(
        self, parties: Parties, task: Task, message: Tree = None, *, up: int | Callable[[], int] | None = None
    ) -> NDArray[np.float64] | None:
        """Seconds that each party is expected to take for a task without failures; ``None`` if there is no forecast."""
        ask = getattr(self.world.cost, "forecast", None)
        if ask is None:
            return None
        request = Request(f"{self.slot}/{task.name}/forecast", task, message, self.home, 0)
        plan = self.traffic.plan(request, parties, M.nbytes(message), self.clock.now(), up)
        return np.asarray(ask(parties, plan), dtype=np.float64)

    def available(self, parties: Parties) -> Parties:
        """The parties among these that are available now."""
        ask = getattr(self.world.cost, "available", None)
        if ask is None:
            return parties
        return Parties(self.world.roster, parties.positions[np.asarray(ask(parties, self.clock.now()), dtype=bool)])

    def scope(self, name: str, parties: Parties | None = None) -> Federation:
        """A view with its own random path, private state and checkpoint slot, for concurrent sub-programs.

        The same name returns the same scope. A scope that writes checkpoints resumes from them; any other is part of this scope's checkpoints.
        """
        return nesting.scope(self, name, parties)

    async def run(self, job: Any, parties: Parties | Sequence[str] | None = None, *, scope: str) -> Any:
        """Run a job inside this program, with the answer that it has alone in this scope, whatever runs beside it.

        Several jobs may run at once, each in a scope of its own: ``asyncio.gather(fed.run(a, scope="a"), fed.run(b, scope="b"))``. The scope names the job's
        requests, random numbers, private states, records and checkpoints. A resumed program runs it again from its own last checkpoint.

        Args:
            job: a job of any kind, such as a `Training`, or an ``async def program(fed)``.
            parties: its parties, or their names; by default all of this federation's. They take part in the federation's order.
            scope: a name that no other job or scope of this program has.

        Returns:
            The outcome of the job; what a program returns.

        Raises:
            ConfigError: the scope is used twice, a party is not of this federation, a helper that the job needs is not there, or the job runs between
                organisations and the program has not declared it (``program.jobs = {"a": job}``).
            AtollError: the job does not fit its parties.
        """
        return await nesting.run(self, job, parties, scope)

    async def nest(
        self, party: Party | str, program: Callable[..., Awaitable[Any]], parties: Parties, message: Tree = None
    ) -> Any:
        """Let a party run a program over its own federation: hierarchy is the waist, applied twice.

        Args:
            party: the party that is a server to its members and a client of this program.
            program: ``async (federation, message) -> reply``.
            parties: its members; they keep their private state between visits.
            message: this program's message to it.
        """
        name = party if isinstance(party, str) else party.name
        return await nesting.nest(self, name, program, parties, message)

    # ------------------------------------------------------------------ checkpoints

    async def restore(self, initial: Tree) -> Any:
        """The state of this scope's last checkpoint, or ``initial`` at the first start."""
        return await survival.restore(self, initial)

    @property
    def durable(self) -> bool:
        """Whether checkpoints go to a folder, so that another process can resume from them."""
        return self.world.folder is not None

    async def checkpoint(self, state: Tree) -> None:
        """Make everything so far durable, as one atomic generation: this scope, and those below it without their own checkpoints.

        Raises:
            CheckpointError: the checkpoint cannot be written; the previous generation stays intact.
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
        world.renew_secret()
        world.renew_record()
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
