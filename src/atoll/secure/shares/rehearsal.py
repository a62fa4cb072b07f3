"""What three parties would send: one of them goes through a computation on shares alone, on zeros, and nothing leaves.

What parties send depends on public sizes alone, except how many comparisons a sort makes, which follows from a uniform order; a rehearsal draws one. So its bytes are those of the computation, up to
what the order varies, for a third of its work, less the masks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import SessionError

from .computation import SharedArray
from .domain import WordRing
from .replicated import ReplicatedComputation
from .sharing import ReplicatedSharing
from .trio import Array, Trio

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ShareRehearsal"]

_PARTIES = ("0", "1", "2")
_SEED = bytes(32)


class _NoStream:
    """A stream in common that is all zeros."""

    def draw(self, count: int, dtype: Any = np.uint8) -> Array:
        return np.zeros(count, dtype)

    def add_to(self, raw: Array, room: Array) -> None:
        del raw, room

    def draw_order(self, n: int) -> Array:
        return np.arange(n)


class _Tally:
    """The session: it counts what is sent."""

    def __init__(self, count: Callable[[int], int]) -> None:
        self._count, self.nbytes, self.messages, self.times = count, 0, 0, 1

    async def send(self, to: str, message: Any) -> None:
        del to
        self.nbytes += self.times * self._count(M.nbytes(message))
        self.messages += self.times

    async def recv(self, source: str) -> Any:
        raise SessionError(f"a message of {source} in a rehearsal", where="shares", remedy="receive words and numbers of known shapes alone")  # fmt: skip


class _Numbers(ReplicatedComputation):
    async def _agree(self) -> tuple[bytes, bytes]:
        return _SEED, _SEED

    async def _around(self, product: Array) -> SharedArray:
        await self.peers.send(self.before, self._wire(product))
        return SharedArray(self, (np.zeros_like(product), np.zeros_like(product)))


class _RehearsedTrio(Trio):
    """Words of one party, whose neighbours send zeros."""

    def __init__(self, numbers: Any, places: Any, rng: np.random.Generator, sizes: Mapping[str, Sequence[int]]) -> None:
        super().__init__(numbers, (_SEED, _SEED), places)
        self._rng, self._ranks, self._sizes = rng, np.zeros(0, np.int64), sizes
        silent: Any = _NoStream()
        self._zeros = [silent, silent]
        self.with_after, self.with_before = silent, silent

    async def receive(self, source: str, shape: tuple[int, ...], dtype: Any) -> Array:
        del source
        return np.zeros(shape, dtype)

    async def receive_order(self, source: str, n: int) -> Array:
        del source
        return np.arange(n)

    async def receive_rows(self, source: str, usual: int, most: int) -> int:
        del source, most
        return usual

    def settled(self, rows: int, usual: int) -> int:
        """A usual number of rows in place of that of zeros."""
        del rows
        return usual

    def ordered(self, smaller: Array, at: Array, to: Array, rows: int) -> Array:
        """Comparisons of a uniform order in place of those of zeros."""
        del smaller
        if len(self._ranks) != rows:
            self._ranks = self._rng.permutation(rows)
        return np.asarray(self._ranks[at] < self._ranks[to])

    def foreseen(self, what: str) -> Sequence[int]:
        """The sizes that the rehearsal was given."""
        return self._sizes.get(what, ())

    @contextlib.contextmanager
    def counted(self, times: int) -> Iterator[None]:
        """What is sent within counts so many times."""
        tally: Any = self.numbers.peers
        before = tally.times
        tally.times *= times
        try:
            yield
        finally:
            tally.times = before


class ShareRehearsal:
    """One party's part of a computation, without the others.

    Args:
        count: bytes on the wire of a message's bytes.
        seed: draws the orders of sorts.
        place: which of the three parties it is. The second one sends what the others send on the average, but for words that become numbers and what one party alone does.
        sizes: what is opened on the way and steers what is sent, by name; see `Trio.note`.

    Attributes:
        trio: the three parties, to compute with.
    """

    def __init__(self, count: Callable[[int], int] = lambda nbytes: nbytes, seed: int = 0, place: int = 1, sizes: Mapping[str, Sequence[int]] | None = None) -> None:  # fmt: skip
        self._tally: Any = _Tally(count)
        numbers, places = (_Numbers(None, self._tally, _PARTIES, str(place), ReplicatedSharing(WordRing(bits))) for bits in (64, 32))  # type: ignore[arg-type]  # fmt: skip
        self.trio: Trio = _RehearsedTrio(numbers, places, np.random.default_rng(seed), sizes or {})

    @property
    def sent(self) -> int:
        """Bytes that this party would have sent so far."""
        return int(self._tally.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes that the three parties would have sent to each other so far."""
        return 3 * int(self._tally.nbytes)

    @property
    def messages(self) -> int:
        """Messages that one party would have sent, most of them one after the other."""
        return int(self._tally.messages)

    def play(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a computation on the trio to its end: it never waits."""
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        work.close()
        raise SessionError("a rehearsal that waits", where="shares", remedy="await nothing but the trio")
