"""Blocks of parties that use their islands, and the party half of a reducer in blocks: the wrapped task runs for many parties at once, and so does the half if it has a ``many``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..errors import ConfigError, TaskError
from ..requests.cohort import Cohort, Population, TotalsBlock
from ..requests.request import Reply, TaskResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..algebra.aggregate import Totals
    from ..algebra.tree import Tree
    from ..persistence.state_table import StateTable
    from ..requests.island import Island
    from ..requests.party import Parties
    from ..requests.task import Batch
    from .wrapped import WrappedCohort

__all__ = ["Answered", "HalfCohort", "IslandCohort", "Stepper"]


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
                    singly[int(places[i])] = self._ran(batch, i, slot)
                keep &= ~used
            if keep.any() or batch.errors:
                yield batch if keep.all() else batch.part(keep)

    def _ran(self, batch: Batch, i: int, slot: str) -> TaskResult:
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

    async def asked(self, among: int | None) -> Answered:
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
                await self._go(place, self._waiting.pop(place), _refused(wrapped, place, failed))
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

    def noted(self, asks: _Asks) -> None:
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
                self.turns.noted(said)
                return None
            try:
                send, sent = self.half.send, (yield said)
            except BaseException as error:
                send, sent = self.half.throw, error  # type: ignore[assignment]


def _refused(wrapped: WrappedCohort, place: int, failed: Exception | None) -> Answered:
    """Why a half gets no totals."""
    position = int(wrapped.cohort.positions[place])
    if position in wrapped.rejected:
        return Answered(rejected=wrapped.rejected[position])
    error = wrapped.errors.get(position) or failed
    name = wrapped.request.task.name
    nothing = TaskError(f"the task's `many` returned nothing for {wrapped.cohort.parties.names[place]}", where=name)
    return Answered(error=error or nothing)
