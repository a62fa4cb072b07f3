"""A wrapped request: at one party, and in blocks, where its task runs for many parties at once and its totals have a leading client axis."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.aggregate import Aggregate
from ..errors import CompositionError
from ..persistence.state_table import StateTable
from ..persistence.states import States
from ..requests.cohort import TotalsBlock
from .blocks import ReplyBlock
from .memory import StageMemory
from .spending import UplinkSpending
from .summands import aggregates_of, summands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..algebra.aggregate import Totals
    from ..algebra.tree import Tree
    from ..requests.cohort import Cohort
    from ..requests.island import Island
    from ..requests.request import Request
    from ..requests.task import Batch, Summed
    from .spending import Spend

__all__ = ["InnerRequest", "UnfitReply", "WrappedCohort", "answer_request", "require_sums"]

_MOST = 32 << 20  # maximum number of bytes of totals to request at once


@dataclass
class WrappedCohort:
    """A wrapped request, at the parties of one fold.

    The task runs as it would alone: with its own random keys, private states and stages. Rejections, errors and states are collected here, because only
    the replies of the wrapping request decide which parties are in the sum.

    Attributes:
        request: the wrapped request.
        cohort: its parties.
        tables: the parties' private states, by slot.
        spending: collects what the stages release, before a block is handed out.
        explain: adds the request to an error.
        refusal: why a party refuses the wrapped request in a sum of fewer replies than it promises; empty if it does not.
        rejected: maps a position to why its reply must not be in the sum.
        errors: maps a position to the error that its task raised.
        left: new states by slot, of the parties whose totals were handed out.
    """

    request: Request
    cohort: Cohort
    tables: Mapping[str, StateTable]
    spending: UplinkSpending
    explain: Callable[[Exception | SystemExit, Request, int | None], Exception]
    refusal: Callable[[int, Request], str]
    rejected: dict[int, str] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    left: dict[str, States] = field(default_factory=dict)

    def blocks(self, places: NDArray[np.int64], among: int | None = None) -> Iterator[TotalsBlock]:
        """Run the task for some clients of the cohort, in blocks that it chooses; each block has at least one client.

        Args:
            places: the clients' places in the cohort.
            among: see ``Island.totals``.

        Raises:
            CompositionError: the task replies with ``Parts``, which cannot be summed.
            Exception: an error of the task that concerns no single client, with its request.
        """
        self.request = self.request.among(among or 1)
        if among is not None:
            places = self._willing(places)
        for part in self._parts(places):
            try:
                yield from self._of(part)
            except (Exception, SystemExit) as error:
                raise self.explain(error, self.request, None) from error

    def _willing(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those whose policy admits a sum of so many replies."""
        positions = self.cohort.positions[places].tolist()
        refused = {p: why for p in positions if (why := self.refusal(p, self.request))}
        self.rejected.update(refused)
        return places[[p not in refused for p in positions]] if refused else places

    def _parts(self, places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Split the clients for a task that returns the totals of all in one piece, so that they fit into memory."""
        if self.request.task.summands is None or self.request.uplink:
            yield places
            return
        size = max(1, _MOST // max(1, M.nbytes(self.request.message)))
        yield from np.split(places, range(size, len(places), size))

    def _of(self, places: NDArray[np.int64]) -> Iterator[TotalsBlock]:
        task, message = self.request.task, self.request.message
        cohort = self.cohort.part(places) if len(places) < len(self.cohort) else self.cohort
        made = None
        if task.summands is not None and not self.request.uplink:
            made = task.summands(cohort, message, **task.args)
        if made is not None:
            found = self._summed(made, cohort, places)
            if len(found.positions):
                yield found
            return
        for batch in task.batches(cohort, message):
            for place, error in batch.errors.items():
                self.errors[int(cohort.positions[place])] = self.explain(
                    error, self.request, int(cohort.positions[place])
                )
            if not len(batch.positions):
                continue
            found = self._encoded(batch, cohort, places)
            if len(found.positions):
                yield found

    def _summed(self, made: Summed, cohort: Cohort, places: NDArray[np.int64]) -> TotalsBlock:
        """Wrap totals that the task has made itself."""
        if self.request.task.schema is not None:
            self.request.task.schema.require_totals(made.totals, apart=True)
        self.rejected.update({int(cohort.positions[place]): why for place, why in made.rejected.items()})
        for at, stacked in made.states:
            self._leave(self.request.slot, cohort.positions[at], stacked, np.isin(at, made.kept))
        return TotalsBlock(places[made.kept], made.totals)

    def _encoded(self, batch: Batch, cohort: Cohort, places: NDArray[np.int64]) -> TotalsBlock:
        """Send a block of replies through the uplink."""
        request, positions = self.request, cohort.positions
        require_sums(batch.reply)
        block = ReplyBlock(request, batch, positions[batch.positions], cohort.keys[batch.positions], None)
        block.leave_out(batch, positions, self.rejected)
        totals = block.totals(self.tables.get(request.memory) or StateTable(), self.rejected)
        self.spending.add(block.positions[block.encoded].tolist(), len(block.reply))
        self.spending.write()
        if batch.states is not None:
            self._leave(request.slot, block.positions, batch.states, block.keep)
        if batch.singles:
            singles = self.left.setdefault(request.slot, States()).singles
            singles.update({int(positions[p]): batch.singles[p] for p in batch.positions[block.keep].tolist()})
        memories = States()
        block.leave(memories)
        if memories:
            self.left.setdefault(request.memory, States()).update(memories)
        return TotalsBlock(places[batch.positions[block.keep]], totals)

    def _leave(self, slot: str, positions: NDArray[np.int64], stacked: Tree, keep: NDArray[np.bool_]) -> None:
        states = stacked if keep.all() else T.map(lambda leaf: None if leaf is None else leaf[keep], stacked)
        self.left.setdefault(slot, States()).add_block(positions[keep], states)

    def rows(self, positions: NDArray[np.int64] | None = None) -> dict[int, dict[str, Tree]]:
        """What was left at these parties: maps a position to states by slot. ``None`` returns everything left since the last call."""
        found: dict[int, dict[str, Tree]] = {}
        for slot, states in self.left.items():
            some = states if positions is None else states.of(positions)
            for position, state in some.by_position().items():
                found.setdefault(position, {})[slot] = state
        if positions is None:
            self.left = {}
        return found

    def kept(self, senders: NDArray[np.int64]) -> dict[str, States]:
        """What was left at the parties in the sum, in blocks."""
        return {slot: some for slot, states in self.left.items() if (some := states.of(senders))}


def require_sums(reply: Mapping[str, Aggregate]) -> None:
    """Refuse single replies if only sums may be seen.

    Raises:
        CompositionError: the reply has single values.
    """
    for name, aggregate in reply.items():
        if not aggregate.summable:
            raise CompositionError(
                f"{name!r} is a single reply, which this reducer does not reveal",
                remedy="use a plain reducer, or an algorithm whose replies are sums",
            )


class UnfitReply(Exception):  # noqa: N818  it ends a task, and is no fault
    """The reply of a wrapped task must not be in a sum; this passes through the task that wraps it."""


async def answer_request(request: Request, island: Island) -> Any:
    """A task's reply, after checking its message and reply against the task's schema."""
    if request.misfit is not None:
        raise request.misfit
    value = request.task(island, request.message)
    if inspect.isawaitable(value):
        value = await value
    if request.task.schema is not None:
        request.task.schema.require_reply(value)
    return value


class InnerRequest:
    """The wrapped request of a task, at one party: it runs as it would alone, with its own random key, private state and stages."""

    def __init__(
        self,
        executor: Any,  # an `Executor`: its module imports this one
        outer: Request,
        request: Request,
        position: int,
        tables: Mapping[str, StateTable],
        spend: Spend | None,
        turns: Any,  # a `Stepper`, or None
    ) -> None:
        self._executor = executor
        self._outer = outer
        self._request = request
        self._position = position
        self._tables = tables
        self._spend = spend
        self._turns = turns
        self._told: Totals | None = None
        self.left: dict[str, Tree] = {}
        self.rejected = ""
        self.sealed = False

    async def totals(self, among: int | None = None) -> Totals:
        """See ``Island.totals``."""
        if self._told is not None:
            return self._told
        if self._turns is None or not self._turns.active:
            self._request = self._request.among(among or 1)
            if among is not None and self._request is not self._outer.inner:
                self._executor.policy_at(self._position).admit(replace(self._outer, wraps=self._request))
            return await self._alone()
        answer = await self._turns.asked(among)
        self.sealed = self._request.uplink.secret
        if answer.error is not None:
            raise answer.error
        if answer.rejected:
            self.rejected = answer.rejected
            raise UnfitReply(answer.rejected)
        self.left, self._told = answer.left, answer.totals
        return self._told

    async def _alone(self) -> Totals:
        """Run the task at this party only."""
        executor, request, position = self._executor, self._request, self._position
        key = int(executor.keys(request, np.array([position], dtype=np.int64))[0])
        island = executor.island(request, position, key, self._tables[request.slot], self._spend)
        memory = StageMemory(self._tables.get(request.memory), position)
        try:
            value = await answer_request(request, island)
            executor.policy_at(position).release(island.party, request.task.name, value)
            aggregates = aggregates_of(value, request.task.name, island.name)
            require_sums(aggregates)
            made = summands(request, aggregates, key, memory)
            spending = UplinkSpending(request, executor.roster, self._spend)
            spending.add([position], made.encoded)
            spending.write()
        except (Exception, SystemExit) as error:
            raise executor.explain(error, request, position) from error
        finally:
            self.sealed = self.sealed or island.sealed or request.uplink.secret
        if made.rejected:
            self.rejected = made.rejected
            raise UnfitReply(made.rejected)
        self.left = {**({request.memory: memory.now} if memory.now else {}), **island.behind(request.slot)}
        return made.totals
