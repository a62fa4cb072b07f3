"""Which worker has an up-to-date copy of which client's private state, so that requests send only what a worker lacks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.persistence.checkpoint import within

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Copies", "Loan"]

_NOBODY = -1


class _Book:
    """The workers that have the copies of one slot, by client position; -1 for none."""

    def __init__(self) -> None:
        self.holders = np.full(0, _NOBODY, dtype=np.int64)
        self.running = 0
        self.latest = -1

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the workers that have the copies of some clients, and remove the entries."""
        missing = int(positions.max(initial=-1)) + 1 - len(self.holders)
        if missing > 0:
            more = np.full(max(missing, len(self.holders)), _NOBODY, dtype=np.int64)
            self.holders = np.concatenate([self.holders, more])
        found = self.holders[positions]
        self.holders[positions] = _NOBODY
        return found


class Loan:
    """The copies of client states during one request.

    Args:
        positions: positions of the clients.
        holders: maps a slot to the worker that has each client's copy when the request begins, -1 for none; shape ``(clients,)``.
        number: the request's number.
    """

    def __init__(self, positions: NDArray[np.int64], holders: dict[str, NDArray[np.int64]], number: int = 0) -> None:
        self.number = number
        self._row = {position: i for i, position in enumerate(positions.tolist())}
        self._holders = holders
        self.alone: dict[str, bool] = {}
        self.placed: list[tuple[NDArray[np.int64], int]] | None = None

    def held(self, worker: int, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a worker has the copies of these clients in every slot; they are some of the request's clients."""
        rows = [self._row[position] for position in positions.tolist()]
        found = np.ones(len(positions), dtype=bool)
        for holders in self._holders.values():
            found &= holders[rows] == worker
        return found

    @property
    def slots(self) -> list[str]:
        """The slots that the request may change."""
        return list(self._holders)

    def place(self, parts: list[tuple[NDArray[np.int64], int]]) -> None:
        """Record that the request's results are kept, so each of these workers has up-to-date copies of these clients' states."""
        self.placed = parts


class Copies:
    """The workers that have up-to-date copies, for all slots.

    While a request may change a state, no worker counts as having its copy. When two requests share a slot at any time, their clients' copies count
    as lost, since a worker may finish the requests in another order than the one in which their results are kept.
    """

    def __init__(self) -> None:
        self._books: dict[str, _Book] = {}
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def lend(self, slots: list[str], positions: NDArray[np.int64]) -> Iterator[Loan]:
        """Remove the entries of some clients while a request may change their states."""
        number = next(self._numbers)
        books = {slot: self._books.setdefault(slot, _Book()) for slot in slots}
        loan = Loan(positions, {slot: book.take(positions) for slot, book in books.items()}, number)
        alone = loan.alone = {slot: book.running == 0 for slot, book in books.items()}
        for book in books.values():
            book.running += 1
            book.latest = number
        try:
            yield loan
        finally:
            for slot, book in books.items():
                book.running -= 1
                if alone[slot] and book.latest == number:
                    for part, worker in loan.placed or []:
                        book.holders[part] = worker

    def place(self, loan: Loan, parts: list[tuple[NDArray[np.int64], int]]) -> None:
        """Record the copies of a finished request whose results are kept, unless another request has shared its slots since."""
        for slot in loan.slots:
            book = self._books.get(slot)
            if book is not None and loan.alone[slot] and book.latest == loan.number and not book.running:
                for part, worker in parts:
                    book.holders[part] = worker

    def forget(self, slot: str) -> bool:
        """Remove a slot that ended or returned to an earlier state, with every slot inside it; return whether it had entries."""
        gone = [name for name in self._books if within(name, slot)]
        for name in gone:
            del self._books[name]
        return bool(gone)
