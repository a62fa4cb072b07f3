"""Which worker holds an up-to-date copy of which client's private state, so that only what it lacks travels to it."""

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
    """The holders of one slot: by position the worker, -1 for none."""

    def __init__(self) -> None:
        self.holders = np.full(0, _NOBODY, dtype=np.int64)
        self.running = 0
        self.latest = -1

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the holders of some clients, and forget them."""
        missing = int(positions.max(initial=-1)) + 1 - len(self.holders)
        if missing > 0:
            more = np.full(max(missing, len(self.holders)), _NOBODY, dtype=np.int64)
            self.holders = np.concatenate([self.holders, more])
        found = self.holders[positions]
        self.holders[positions] = _NOBODY
        return found


class Loan:
    """What one request knows about the copies of its clients' states.

    Args:
        positions: of the clients.
        holders: slot -> the worker that holds each client's copy as the request begins, -1 for none; shape ``(clients,)``.
        number: of the request.
    """

    def __init__(self, positions: NDArray[np.int64], holders: dict[str, NDArray[np.int64]], number: int = 0) -> None:
        self.number = number
        self._row = {position: i for i, position in enumerate(positions.tolist())}
        self._holders = holders
        self.alone: dict[str, bool] = {}
        self.placed: list[tuple[NDArray[np.int64], int]] | None = None

    def held(self, worker: int, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a worker holds the copies of these clients in every slot; they are some of the request's."""
        rows = [self._row[position] for position in positions.tolist()]
        found = np.ones(len(positions), dtype=bool)
        for holders in self._holders.values():
            found &= holders[rows] == worker
        return found

    @property
    def slots(self) -> list[str]:
        """What the request may change."""
        return list(self._holders)

    def place(self, parts: list[tuple[NDArray[np.int64], int]]) -> None:
        """The request's results are kept: each of these workers holds an up-to-date copy of these clients' states."""
        self.placed = parts


class Copies:
    """The holders of all slots.

    Nobody counts as a holder of what a request on its way may change. When two requests share a slot at any time, their clients' copies count as lost:
    a worker may finish them in another order than the one in which their results are kept.
    """

    def __init__(self) -> None:
        self._books: dict[str, _Book] = {}
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def lend(self, slots: list[str], positions: NDArray[np.int64]) -> Iterator[Loan]:
        """Take the copies of some clients out of the books while a request may change them."""
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
        """The results of a request that is over are kept, where no other request has shared its slots since."""
        for slot in loan.slots:
            book = self._books.get(slot)
            if book is not None and loan.alone[slot] and book.latest == loan.number and not book.running:
                for part, worker in parts:
                    book.holders[part] = worker

    def forget(self, slot: str) -> bool:
        """A slot ended or went back to another state, with every slot inside it; whether anything was known of it."""
        gone = [name for name in self._books if within(name, slot)]
        for name in gone:
            del self._books[name]
        return bool(gone)
