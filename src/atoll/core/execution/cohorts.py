"""Cohorts in blocks: a task's ``many`` with its islands, and requests that wrap another, whose task runs for many parties at once.

The party half of a reducer wraps the program's task: it asks its island for the totals of the wrapped request. At one party that is `InnerRequest`. In blocks,
`WrappedCohort` runs the wrapped task for all; the half gets its totals from a `HalfCohort` if it has a ``many``, and else a `Stepper` runs each half until it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.aggregate import Aggregate
from ..errors import CompositionError, ConfigError, TaskError
from ..persistence.state_table import States, StateTable
from ..requests.cohort import Cohort, Population, TotalsBlock
from ..requests.request import PartialSum, Reply, TaskResult
from .sum_builder import ReplyBlock, StageMemory, UplinkEvents, aggregates_of, encode_reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..algebra.aggregate import Totals
    from ..algebra.tree import Tree
    from ..requests.island import Island
    from ..requests.party import Parties
    from ..requests.request import Request
    from ..requests.task import Batch, Summed
    from .sum_builder import Spend

__all__ = [
    "Answered",
    "HalfCohort",
    "InnerRequest",
    "IslandCohort",
    "Stepper",
    "UnfitReply",
    "WrappedCohort",
    "require_sums",
]


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


# ---------------------------------------------------------------------- a wrapped request

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
    spending: UplinkEvents
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
            places = self._ask_policies(places)
        for part in self._split_places(places):
            try:
                yield from self._run_part(part)
            except (Exception, SystemExit) as error:
                raise self.explain(error, self.request, None) from error

    def _ask_policies(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those whose policy admits a sum of so many replies."""
        positions = self.cohort.positions[places].tolist()
        refused = {p: why for p in positions if (why := self.refusal(p, self.request))}
        self.rejected.update(refused)
        return places[[p not in refused for p in positions]] if refused else places

    def _split_places(self, places: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Split the clients for a task that returns the totals of all in one piece, so that they fit into memory."""
        if self.request.task.summands is None or self.request.uplink:
            yield places
            return
        size = max(1, _MOST // max(1, M.nbytes(self.request.message)))
        yield from np.split(places, range(size, len(places), size))

    def _run_part(self, places: NDArray[np.int64]) -> Iterator[TotalsBlock]:
        task, message = self.request.task, self.request.message
        cohort = self.cohort.part(places) if len(places) < len(self.cohort) else self.cohort
        made = None
        if task.summands is not None and not self.request.uplink:
            made = task.summands(cohort, message, **task.args)
        if made is not None:
            found = self._wrap_totals(made, cohort, places)
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
            found = self._encode_batch(batch, cohort, places)
            if len(found.positions):
                yield found

    def _wrap_totals(self, made: Summed, cohort: Cohort, places: NDArray[np.int64]) -> TotalsBlock:
        """Wrap totals that the task has made itself."""
        if self.request.task.schema is not None:
            self.request.task.schema.require_totals(made.totals, apart=True)
        self.rejected.update({int(cohort.positions[place]): why for place, why in made.rejected.items()})
        for at, stacked in made.states:
            self._leave(self.request.slot, cohort.positions[at], stacked, np.isin(at, made.kept))
        return TotalsBlock(places[made.kept], made.totals)

    def _encode_batch(self, batch: Batch, cohort: Cohort, places: NDArray[np.int64]) -> TotalsBlock:
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

    def collect_states(self, senders: NDArray[np.int64]) -> dict[str, States]:
        """What was left at the parties in the sum, in blocks."""
        return {slot: some for slot, states in self.left.items() if (some := states.of(senders))}


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
            return await self._run_alone()
        answer = await self._turns.ask_wrapped(among)
        self.sealed = self._request.uplink.secret
        if answer.error is not None:
            raise answer.error
        if answer.rejected:
            self.rejected = answer.rejected
            raise UnfitReply(answer.rejected)
        self.left, self._told = answer.left, answer.totals
        return self._told

    async def _run_alone(self) -> Totals:
        """Run the task at this party only."""
        executor, request, position = self._executor, self._request, self._position
        key = int(executor.keys(request, np.array([position], dtype=np.int64))[0])
        island = executor.island(request, position, key, self._tables[request.slot], self._spend)
        memory = StageMemory(self._tables.get(request.memory), position)
        try:
            value = await request.answer(island)
            executor.policy_at(position).release(island.party, request.task.name, value)
            aggregates = aggregates_of(value, request.task.name, island.name)
            require_sums(aggregates)
            spending = UplinkEvents(request, executor.roster, self._spend)
            made = encode_reply(request, aggregates, key, memory, nbytes=0, spending=spending)
            spending.write()
        except (Exception, SystemExit) as error:
            raise executor.explain(error, request, position) from error
        finally:
            self.sealed = self.sealed or island.sealed or request.uplink.secret
        if made.rejected:
            self.rejected = made.rejected[position]
            raise UnfitReply(self.rejected)
        self.left = {**({request.memory: memory.now} if memory.now else {}), **island.behind(request.slot)}
        return made.totals


# ---------------------------------------------------------------------- cohorts that a `many` receives


class IslandCohort(Cohort):
    """The cohort of a ``many`` that uses islands: their letters, secrets, private states and ledgers.

    Args:
        parties: the parties.
        keys: one random key each.
        population: the federated data set.
        table: the private states.
        islands: makes the island of the party at a place.

    Attributes:
        islands: the islands that were used, by place in the whole cohort.
    """

    def __init__(
        self,
        parties: Parties,
        keys: NDArray[np.uint64],
        population: Population,
        table: StateTable | None,
        islands: Callable[[int], Island],
    ) -> None:
        super().__init__(parties, keys, population, table)
        self._make = islands
        self._places = np.arange(len(parties))
        self.islands: dict[int, Island] = {}

    def part(self, places: NDArray[np.int64]) -> Self:
        """Some clients of the cohort, by their places in it."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        Cohort.__init__(made, self.parties[places], self.keys[places], self.population, self._table)
        made._places = self._places[places]
        return made

    def island(self, i: int) -> Island:
        """See ``Cohort.island``."""
        place = int(self._places[i])
        if place not in self.islands:
            self.islands[place] = self._make(place)
        return self.islands[place]

    @property
    def out(self) -> Sequence[int]:
        """Positions of clients that are kept out whatever the batches say."""
        return ()

    def batches(self, made: Iterable[Batch], singly: dict[int, TaskResult], slot: str) -> Iterator[Batch]:
        """The batches, without the clients that are kept out and without those that used their islands.

        Args:
            made: the batches of the task's ``many``.
            singly: collects replies that may depend on letters, secrets or spent budget: maps a place in the whole cohort to the reply and what it leaves.
            slot: slot of the task's own private states.
        """
        for batch in made:
            places, out = self._places[batch.positions], self.out
            keep = ~np.isin(self.positions[batch.positions], out) if out else np.ones(len(batch.positions), bool)
            if self.islands:
                used = np.isin(places, list(self.islands))
                for i in np.flatnonzero(used & keep).tolist():
                    singly[int(places[i])] = self._take_result(batch, i, slot)
                keep &= ~used
            if keep.any() or batch.errors:
                yield batch if keep.all() else batch.part(keep)

    def wrapped_part(self, senders: NDArray[np.int64], singly: dict[int, TaskResult]) -> PartialSum | None:
        """What a wrapped request adds to the sum besides the replies; ``None`` without one. It adds what it left at the parties of ``singly`` to their results.

        Args:
            senders: the parties whose replies are in the sum in blocks.
            singly: maps a place to the reply of a party that is added alone.
        """
        del senders, singly
        return None

    def _take_result(self, batch: Batch, i: int, slot: str) -> TaskResult:
        """The reply of one client of a batch."""
        place = int(batch.positions[i])
        position, island = int(self.positions[place]), self.islands[int(self._places[place])]
        if place in batch.rejected:
            return TaskResult(Reply(position, rejected=batch.rejected[place]), sealed=island.sealed)
        state, left = batch.state(i), island.behind(slot)
        if state is not None:
            left.setdefault(slot, state)
        reply = Reply(position, {name: aggregate.row(i) for name, aggregate in batch.reply.items()})
        return TaskResult(reply, left, island.sealed, opened=tuple(island.opened), promised=island.promised)


class HalfCohort(IslandCohort):
    """The cohort that the ``many`` of a half receives.

    Args:
        wrapped: the wrapped request at these parties.
        keys: keys of the half's own request.
        table: the half's own private states.
        islands: makes the island of the party at a place.
    """

    def __init__(
        self,
        wrapped: WrappedCohort,
        keys: NDArray[np.uint64],
        table: StateTable | None,
        islands: Callable[[int], Island],
    ) -> None:
        whole = wrapped.cohort
        super().__init__(whole.parties, keys, whole.population, table, islands)
        self._wrapped = wrapped
        self._asked = np.zeros(len(whole), dtype=bool)

    @property
    def out(self) -> Sequence[int]:
        """Those whose wrapped reply must not be in the sum."""
        return [*self._wrapped.rejected, *self._wrapped.errors]

    def totals(self, among: int | None = None) -> Iterator[TotalsBlock]:
        """See ``Cohort.totals``."""
        if self._asked[self._places].any():
            raise ConfigError("the totals of a cohort were requested twice", remedy="keep what you need of each block")
        self._asked[self._places] = True
        own = np.zeros(len(self._asked), dtype=np.int64)
        own[self._places] = np.arange(len(self._places))
        for block in self._wrapped.blocks(self._places, among):
            yield replace(block, positions=own[block.positions])

    def wrapped_part(self, senders: NDArray[np.int64], singly: dict[int, TaskResult]) -> PartialSum:
        """See ``IslandCohort.wrapped_part``."""
        wrapped = self._wrapped
        whole = wrapped.cohort.positions
        rows = wrapped.rows(whole[list(singly)])
        for place, ran in singly.items():
            singly[place] = replace(ran, left={**ran.left, **rows.get(int(whole[place]), {})})
        return PartialSum(
            {},
            whole[:0],
            rejected=dict(wrapped.rejected),
            errors=dict(wrapped.errors),
            left=wrapped.collect_states(senders),
        )


# ---------------------------------------------------------------------- halves without a `many`

Half = Coroutine[Any, Any, TaskResult]
"""A running half at one party."""


@dataclass
class Answered:
    """The result of a wrapped request at one party: totals and what they leave, an error, or why its reply must not be in the sum."""

    totals: Totals = field(default_factory=dict)
    left: dict[str, Tree] = field(default_factory=dict)
    error: Exception | None = None
    rejected: str = ""


@dataclass(frozen=True)
class _Asks:
    """A half waits for its totals; only ``Stepper`` sees this.

    Attributes:
        among: see ``Island.totals``.
    """

    among: int | None

    def __await__(self) -> Generator[Any, Any, Answered]:
        answer: Answered = yield self
        return answer


@dataclass
class Stepper:
    """Run halves one after another, each until it requests its totals, and continue when these are known.

    The stepper drives the coroutines itself, so that nothing else runs in between; anything else that they await goes to the event loop.

    Attributes:
        take: called with each place in the cohort and the result of its half, in cohort order.
        done: maps a place to a result that was there already.
        active: whether it drives a half at this moment; a task that a half started may ask at another.
    """

    take: Callable[[int, TaskResult], None]
    done: dict[int, TaskResult]
    active: bool = False
    _waiting: dict[int, Half] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list)
    _among: list[int | None] = field(default_factory=list)

    async def ask_wrapped(self, among: int | None) -> Answered:
        """The result of the wrapped request; call it while ``active``."""
        return await _Asks(among)

    async def run(self, halves: dict[int, Half], wrapped: WrappedCohort) -> None:
        """Run halves, and their wrapped tasks in blocks.

        Args:
            halves: maps a place in the cohort to its running half.
            wrapped: the wrapped request.
        """
        self._order = sorted([*halves, *self.done], reverse=True)
        try:
            for place, half in halves.items():
                await self._go(place, half)
            failed = await self._in_blocks(wrapped) if self._waiting else None
            for place in list(self._waiting):
                await self._go(place, self._waiting.pop(place), _explain_no_totals(wrapped, place, failed))
            self._flush()
        finally:
            for half in halves.values():
                half.close()

    async def _in_blocks(self, wrapped: WrappedCohort) -> Exception | None:
        """Hand out totals as blocks are done; return an error that concerns no single client."""
        known = [among for among in self._among if among is not None]
        among = min(known) if len(known) == len(self._among) else None
        blocks = wrapped.blocks(np.array(list(self._waiting), dtype=np.int64), among)
        while True:
            try:
                block = next(blocks, None)
            except Exception as error:
                return error
            if block is None:
                return None
            left = wrapped.rows()
            for i, place in enumerate(block.positions.tolist()):
                own = left.get(int(wrapped.cohort.positions[place]), {})
                await self._go(place, self._waiting.pop(place), Answered(block.row(i), own))

    async def _go(self, place: int, half: Half, answer: Answered | None = None) -> None:
        """Run a half until it requests totals or ends."""
        ran = await _Leg(self, half, answer)
        if ran is None:
            self._waiting[place] = half
        else:
            self.done[place] = ran
            self._flush()

    def note_asks(self, asks: _Asks) -> None:
        """Remember what a half knows of its sum."""
        self._among.append(asks.among)

    def _flush(self) -> None:
        while self._order and self._order[-1] in self.done:
            place = self._order.pop()
            self.take(place, self.done.pop(place))


@dataclass
class _Leg:
    turns: Stepper
    half: Half
    answer: Answered | None

    def __await__(self) -> Generator[Any, Any, TaskResult | None]:
        send, sent = self.half.send, self.answer
        while True:
            self.turns.active = True
            try:
                said = send(sent)
            except StopIteration as stop:
                ran: TaskResult = stop.value
                return ran
            finally:
                self.turns.active = False
            if isinstance(said, _Asks):
                self.turns.note_asks(said)
                return None
            try:
                send, sent = self.half.send, (yield said)
            except BaseException as error:
                send, sent = self.half.throw, error  # type: ignore[assignment]


def _explain_no_totals(wrapped: WrappedCohort, place: int, failed: Exception | None) -> Answered:
    """Why a half gets no totals."""
    position = int(wrapped.cohort.positions[place])
    if position in wrapped.rejected:
        return Answered(rejected=wrapped.rejected[position])
    error = wrapped.errors.get(position) or failed
    name = wrapped.request.task.name
    nothing = TaskError(f"the task's `many` returned nothing for {wrapped.cohort.parties.names[place]}", where=name)
    return Answered(error=error or nothing)
