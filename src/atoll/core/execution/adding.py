"""Adding single replies to a sum, one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..algebra.aggregate import merge_totals
from ..errors import MessageError, PolicyError
from ..persistence.states import States
from ..requests.request import PartialSum
from ..sealing import Record
from .admission import refused
from .memory import StageMemory
from .summands import Summands, aggregates_of, measured

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..algebra.tree import Tree
    from ..persistence.state_table import StateTable
    from ..requests.party import Roster
    from ..requests.request import Reply, Request, TaskResult
    from ..sealing import Row
    from .spending import UplinkSpending

__all__ = ["Adding"]


@dataclass
class Adding:
    """Send replies through the uplink and add them up, in the order of arrival.

    Attributes:
        request: the request that they answer.
        roster: all parties, for names.
        largest: maps a position to the maximum number of bytes of the party's reply, ``None`` for no limit.
        tables: the parties' private states, by slot.
        spending: collects what the stages release.
        refused: maps a position to why its policy refuses the request.
        record: the parties' record, which hashes what leaves.
    """

    request: Request
    roster: Roster
    largest: Callable[[int], int | None]
    tables: Mapping[str, StateTable]
    spending: UplinkSpending
    refused: dict[int, str]
    record: Record = field(default_factory=Record)
    folded: PartialSum = field(init=False)
    _senders: list[int] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _left: dict[str, dict[int, Tree]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        none = np.zeros(0, dtype=np.int64)
        self.folded = PartialSum({}, none, none, rejected=self.refused)

    def take(self, ran: TaskResult, key: int, fresh: bool = True) -> None:
        """Add one reply; a reply that is kept out leaves no state.

        Args:
            ran: the reply, and what it leaves at the party.
            key: the party's random key for the request.
            fresh: whether it was just made, and must be in the journal if it must not be made twice.
        """
        if fresh:
            self.folded.keep(ran)
        position = ran.reply.party
        memory = StageMemory(self.tables.get(self.request.memory), position)
        made = self._add(ran.reply, key, memory)
        if made is None:
            return
        for slot, state in {**ran.left, **({self.request.memory: memory.now} if memory.now else {})}.items():
            self._left.setdefault(slot, {})[position] = state
        if self.request.recorded or ran.sealed or ran.opened:
            self.folded.promised[position] = self._promises(ran, made)
        self._senders.append(position)
        self._sizes.append(made.nbytes)

    def _promises(self, ran: TaskResult, made: Summands) -> tuple[Row, ...]:
        """What the party promises with what it adds: these very words, and all that they follow from."""
        reply = ran.reply
        words = {
            name: [
                [[part.value, part.weight] for part in total.value] if total.kind == "parts" else total.value,
                total.weight,
            ]
            for name, total in made.totals.items()
        }
        content = self.record.hash_reply(words, reply.mail, masked=self.request.wraps is not None)
        return self.request.promises(self.roster.name(reply.party), ran, "fold", content)

    def _add(self, reply: Reply, key: int, memory: StageMemory) -> Summands | None:
        """Return what the reply adds, or ``None`` if it is kept out."""
        request, folded = self.request, self.folded
        if isinstance(reply.error, PolicyError):
            folded.rejected[reply.party] = refused(reply.error)
            return None
        if reply.error is not None:
            folded.errors[reply.party] = reply.error
            return None
        if reply.rejected:
            folded.rejected[reply.party] = reply.rejected
            return None
        try:
            aggregates = aggregates_of(reply.value, request.task.name, self.roster.name(reply.party))
        except MessageError as error:
            folded.errors[reply.party] = error
            return None
        # Without an encoding, the size is the one that the party computed.
        plain = not (request.uplink or reply.mail or reply.notes) and all(
            type(a.weight) is float for a in aggregates.values()
        )
        nbytes = reply.nbytes if plain else 0
        made = measured(request, aggregates, key, memory, self.largest(reply.party), nbytes)
        self.spending.add([reply.party], made.encoded)
        if made.rejected:
            folded.rejected[reply.party] = made.rejected
            return None
        folded.totals = merge_totals([folded.totals, made.totals])
        return made

    def finish(self, others: PartialSum | None = None, order: NDArray[np.int64] | None = None) -> PartialSum:
        """Return the sums, after recording what the stages release.

        Args:
            others: replies of the same cohort that were added up in blocks.
            order: the cohort, if there are others.
        """
        self.spending.write()
        folded = self.folded
        folded.senders = np.array(self._senders, dtype=np.int64)
        folded.nbytes = np.array(self._sizes, dtype=np.int64)
        for slot, rows in self._left.items():
            folded.leave(slot, States(rows))
        return folded if others is None or order is None else others.merge(folded).arrange(order)
