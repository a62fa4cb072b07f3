"""Computations: several parties compute on shares, each in a role of a session; nobody sees a value before it is opened.

Every party runs the same program, in step. A computation has the operations that need messages: `share`, `open`, `mul`, `dot`. What follows from them, such as
comparisons, is in `atoll.secure.shares.operations`.

| computation | parties | withstands | a product costs each party |
| --- | --- | --- | --- |
| `AdditiveComputation` | 2 or more, and a dealer (2 can do without: `ObliviousDealer`) | all but one, if they follow the protocol | 2 elements to each other |
| `AuthenticatedComputation` | the same | all but one, even if they cheat: then it stops | 2 elements to each other, 1 more an opening |
| `ReplicatedComputation` | 3 | any one that follows the protocol | 1 element to one other |
| `ShamirComputation` | n >= 2t - 1 | any t - 1 that follow the protocol | 1 element to each other |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.errors import ConfigError, DataError, LetterError
from atoll.core.message import Words

from .domain import Binary, WordRing
from .sharing import AdditiveSharing, ShamirSharing, lagrange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atoll.core.execution.session import PeerChannel, Peers
    from atoll.core.requests.island import Island

    from .dealer import Dealer
    from .domain import Array, Domain
    from .sharing import Parts, Sharing

__all__ = [
    "AdditiveComputation",
    "Computation",
    "Computing",
    "ShamirComputation",
    "SharedArray",
    "concatenated",
    "tell_all",
]


# ------------------------------------------------------------------ shared arrays: what a party holds of an array that nobody sees


class Computing(Protocol):
    """What a shared array and the circuits over it need of their computation; see `atoll.secure.shares.Computation`."""

    @property
    def domain(self) -> Domain:
        """Where the values live."""
        ...

    @property
    def arithmetic(self) -> Domain:
        """Where the parts live."""
        ...

    @property
    def bitwise(self) -> Computing:
        """The computation in which bits are shared."""
        ...

    def constant(self, values: Any) -> SharedArray:
        """Public values as a shared array."""
        ...

    def public_bits(self, bits: Any) -> Array:
        """Public rows of bits as elements."""
        ...

    async def open(self, x: SharedArray) -> Array:
        """Show masked values to every party."""
        ...

    async def reveal(self, x: SharedArray) -> Array:
        """Show a result to every party."""
        ...

    async def mul(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x y``, entry by entry."""
        ...

    async def dot(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x @ y``."""
        ...

    async def lifted(self, bit: SharedArray, shape: tuple[int, ...]) -> SharedArray:
        """A row of the bitwise computation as numbers 0 and 1."""
        ...


@dataclass(frozen=True, eq=False)
class SharedArray:
    """A party's share of an array.

    ``+``, ``-`` and public factors act at each party alone. A product of two shared arrays needs messages: ``await mul(x, y)``.
    Public operands are whole numbers, or arrays of them.

    Attributes:
        by: the computation that it belongs to.
        parts: arrays of the same shape.
    """

    by: Computing
    parts: Parts

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        shape: tuple[int, ...] = self.parts[0].shape
        return shape

    @property
    def _ring(self) -> Domain:
        return self.by.arithmetic

    def _each(self, fn: Callable[[Array], Any]) -> SharedArray:
        return SharedArray(self.by, tuple(np.asarray(fn(part)) for part in self.parts))

    def _other(self, other: Any) -> SharedArray:
        if isinstance(other, SharedArray):
            if other.by is not self.by:
                raise ConfigError("shares of two computations", where="SharedArray", remedy="convert one of them first")
            return other
        values = np.broadcast_to(self._ring.of(other), self.shape)
        return self.by.constant(values)

    def __add__(self, other: Any) -> SharedArray:
        theirs = self._other(other).parts
        return SharedArray(self.by, tuple(self._ring.add(a, b) for a, b in zip(self.parts, theirs, strict=True)))

    def __neg__(self) -> SharedArray:
        return self._each(self._ring.neg)

    def __sub__(self, other: Any) -> SharedArray:
        return self + (-self._other(other))

    __radd__ = __add__

    def __rsub__(self, other: Any) -> SharedArray:
        return self._other(other) - self

    def __mul__(self, factor: Any) -> SharedArray:
        if isinstance(factor, SharedArray):
            raise ConfigError("x * y of two shared arrays", where="SharedArray", remedy="write: await mul(x, y)")
        values = self._ring.of(factor)
        return self._each(
            lambda part: self._ring.mul(part, np.broadcast_to(values, np.broadcast_shapes(part.shape, values.shape)))
        )

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> SharedArray:
        return self._each(lambda part: part[index])

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, *shape: int) -> SharedArray:
        """The array in another shape."""
        return self._each(lambda part: part.reshape(*shape))

    @property
    def T(self) -> SharedArray:  # noqa: N802 - as NumPy has it
        """The array transposed."""
        return self._each(lambda part: part.T)

    def sum(self, axis: int = 0) -> SharedArray:
        """The sum along an axis."""
        return self._each(lambda part: self._ring.total(part, axis))


def concatenated(arrays: Sequence[SharedArray]) -> SharedArray:
    """Join shared arrays along their first axis."""
    first = arrays[0]
    rows = zip(*(array.parts for array in arrays), strict=True)
    return SharedArray(first.by, tuple(np.concatenate(row) for row in rows))


async def tell_all(peers: PeerChannel, parties: Sequence[str], me: str, message: Any) -> list[Any]:
    """Send a message to every other party and return theirs, in the order of the parties, with mine in its place."""
    for party in parties:
        if party != me:
            await peers.send(party, message)
    return [message if party == me else await peers.recv(party) for party in parties]


# ------------------------------------------------------------------ computations
#
# Computations: several parties compute on shares, each in a role of a session; nobody sees a value before it is opened.


class Computation:
    """One party's side of a computation.

    Args:
        island: this party's place; its secret is the source of all randomness.
        peers: the session.
        parties: the roles that compute, in the order that all agree on.
        me: this party's role.
        sharing: how values are split.
        dealer: where correlated randomness comes from, if the computation needs it.

    Attributes:
        place: this party's place among the parties.
        bitwise: the computation in which bits are shared: itself, or one whose elements are words of 64 bits.
    """

    def __init__(
        self,
        island: Island,
        peers: Peers,
        parties: Sequence[str],
        me: str,
        sharing: Sharing,
        dealer: Dealer | None = None,
    ) -> None:
        if len(parties) != sharing.n or len(set(parties)) != len(parties) or me not in parties:
            raise ConfigError(
                f"party {me!r} of {list(parties)} for a sharing among {sharing.n}",
                where=type(self).__name__,
                remedy="name each computing role once, this one too",
            )
        self.island, self.peers, self.parties, self.sharing = island, peers, tuple(parties), sharing
        self.place = self.parties.index(me)
        self.others = [party for party in self.parties if party != me]
        self._dealer = dealer
        self.bitwise: Computation = self
        self._begin()

    def _begin(self) -> None:
        """Set up what a kind of computation has beside this."""

    @property
    def me(self) -> str:
        """This party's role."""
        return self.parties[self.place]

    @property
    def domain(self) -> Domain:
        """Where the values live."""
        return self.sharing.domain

    @property
    def arithmetic(self) -> Domain:
        """Where the parts live: the domain, unless parts are wider than values."""
        return self.domain

    @property
    def dealer(self) -> Dealer:
        """The dealer.

        Raises:
            ConfigError: the computation has none.
        """
        if self._dealer is None:
            raise ConfigError(
                "no dealer",
                where=type(self).__name__,
                remedy="give the session a dealer: PartyDealer(peers, role, first=...), or of two parties await ObliviousDealer.begin(...)",
            )
        return self._dealer

    # ------------------------------------------------------------------ messages

    async def tell(self, message: Any) -> list[Any]:
        """Send a message to every other party and return theirs, in the order of the parties, with mine in its place."""
        return await tell_all(self.peers, self.parties, self.me, message)

    def _wire(self, part: Array) -> Array:
        bits = self.arithmetic.bits
        return part if bits == 64 else Words.of(part, bits)

    def _unwired(self, received: Any, shape: tuple[int, ...]) -> Array:
        """A received array, checked: of the shape that everyone knows, and elements of the domain."""
        if not isinstance(received, np.ndarray | Words):
            raise LetterError(
                f"a {type(received).__name__} in place of shares of shape {shape}",
                remedy="look at the party that sent it",
            )
        array = np.asarray(received)
        if array.shape != shape or array.dtype.kind != "u":
            raise LetterError(
                f"shares of shape {array.shape} and type {array.dtype} in place of {shape}",
                remedy="look at the party that sent them",
            )
        made = array.astype(np.uint64)
        if made.size and int(made.max()) >= self.arithmetic.order:
            raise LetterError(
                f"a share of {int(made.max())}, not an element of {self.arithmetic}",
                remedy="look at the party that sent it",
            )
        return made

    def _parts(self, received: Any, shape: tuple[int, ...]) -> Parts:
        """The received parts of a shared array, checked."""
        if not isinstance(received, list | tuple) or len(received) != self.sharing.parts:
            raise LetterError(
                f"something else in place of {self.sharing.parts} part(s) of shape {shape}",
                remedy="look at the party that sent it",
            )
        return tuple(self._unwired(row, shape) for row in received)

    # ------------------------------------------------------------------ the operations

    def constant(self, values: Any) -> SharedArray:
        """Public values as a shared array."""
        return SharedArray(self, self.sharing.constant(self.arithmetic.of(values), self.place))

    async def share(self, values: Any = None, *, owner: str, shape: tuple[int, ...]) -> SharedArray:
        """Share an owner's values among all parties.

        Args:
            values: whole numbers; needed at the owner only.
            owner: the role whose values they are.
            shape: their shape, which everyone knows.

        Raises:
            DataError: the owner's values do not fit the domain or the shape.
        """
        if self.parties[self.place] != owner:
            return SharedArray(self, self._parts(await self.peers.recv(owner), shape))
        split = self.sharing.split(self._own(values, shape), self.island.secret)
        for party, parts in zip(self.parties, split, strict=True):
            if party != owner:
                await self.peers.send(party, [self._wire(part) for part in parts])
        return SharedArray(self, split[self.place])

    def _own(self, values: Any, shape: tuple[int, ...]) -> Array:
        made = self.domain.of(values)
        if made.shape != shape:
            raise DataError(
                f"values of shape {made.shape}", where="share", remedy=f"share {shape}, as all parties expect"
            )
        return made

    async def open(self, x: SharedArray) -> Array:
        """Show the values to every party.

        Raises:
            LetterError: the shares do not fit together: one of them was altered.
        """
        told = await self.tell([self._wire(part) for part in x.parts])
        return self.sharing.joined([self._parts(rows, x.shape) for rows in told])

    async def reveal(self, x: SharedArray) -> Array:
        """Show a result to every party. Masked values on the way to it are opened with `open`.

        Raises:
            LetterError: a share was altered, as far as the sharing can tell.
        """
        return await self.open(x)

    async def mul(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x y``, entry by entry, of arrays of one shape."""
        raise NotImplementedError

    async def dot(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """The matrix product ``x @ y``."""
        raise NotImplementedError

    def public_bits(self, bits: Any) -> Array:
        """Public rows of bits ``(rows, entries)`` as elements of this computation."""
        made = np.asarray(bits, dtype=bool)
        return Binary.packed(made) if isinstance(self.domain, Binary) else made.astype(np.uint64)

    async def lifted(self, bit: SharedArray, shape: tuple[int, ...]) -> SharedArray:
        """A row of the bitwise computation as numbers 0 and 1 of this one."""
        return bit.reshape(*shape) if bit.by is self else await self._lifted(bit, shape)

    async def _lifted(self, bit: SharedArray, shape: tuple[int, ...]) -> SharedArray:
        raise NotImplementedError

    async def __aenter__(self) -> Computation:
        return self

    async def __aexit__(self, *_: object) -> None:
        close = getattr(self._dealer, "close", None)
        if close is not None:
            await close()


# ------------------------------------------------------------------ computing on additive shares, with a dealer's triples


class AdditiveComputation(Computation):
    """Additive shares; products by triples of a dealer (Beaver 1991): ``xy = ab + (x-a) b + (y-b) a + (x-a)(y-b)``, where the differences are opened."""

    sharing: AdditiveSharing

    def _begin(self) -> None:
        if type(self.sharing) is AdditiveSharing and isinstance(self.domain, WordRing):
            bits = AdditiveSharing(Binary(), self.sharing.n)
            self.bitwise = AdditiveComputation(self.island, self.peers, self.parties, self.me, bits, self._dealer)

    async def _dealt(self, what: str, *shapes: tuple[int, ...], by: int = 0) -> list[SharedArray]:
        rows = await self.dealer.get(what, *shapes, bitwise=isinstance(self.domain, Binary), by=by)
        return [SharedArray(self, parts) for parts in rows]

    async def mul(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x y`` by one triple an entry."""
        a, b, c = await self._dealt("triple", x.shape)
        opened = await self.open(_stacked(x - a, y - b))
        d, e = opened[0], opened[1]
        return c + _scaled(b, d) + _scaled(a, e) + self.constant(self.arithmetic.mul(d, e))

    async def dot(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x @ y`` by one triple of matrices: its bytes are those of the factors."""
        ring = self.arithmetic
        a, b, c = await self._dealt("dot", x.shape, y.shape)
        d, e = await self.open(x - a), await self.open(y - b)
        left = SharedArray(self, tuple(ring.dot(d, part) for part in b.parts))
        right = SharedArray(self, tuple(ring.dot(part, e) for part in a.parts))
        return c + left + right + self.constant(ring.dot(d, e))

    async def masks(self, shape: tuple[int, ...]) -> tuple[SharedArray, SharedArray]:
        """Random values, and their bits as rows of the bitwise computation, lowest first."""
        value, bits = await self.dealer.get("mask", shape)
        rows = SharedArray(self.bitwise, bits)
        return SharedArray(self, value), rows if self.bitwise is not self else rows.reshape(len(rows), -1)

    async def _lifted(self, bit: SharedArray, shape: tuple[int, ...]) -> SharedArray:
        """With a random bit ``r`` that is shared in both ways: ``b XOR r`` is opened, and ``b = r + m - 2 m r`` for the opened ``m``."""
        n = int(np.prod(shape, dtype=int))
        packed, number = await self.dealer.get("bit", (n,))
        opened = await self.bitwise.open(bit + SharedArray(self.bitwise, packed))
        m = Binary.unpacked(opened, n).astype(np.uint64)
        r = SharedArray(self, number)
        return (r + m - _scaled(r, self.arithmetic.add(m, m))).reshape(*shape)


def _stacked(x: SharedArray, y: SharedArray) -> SharedArray:
    return SharedArray(x.by, tuple(np.stack(pair) for pair in zip(x.parts, y.parts, strict=True)))


def _scaled(x: SharedArray, values: Array) -> SharedArray:
    """A shared array times public elements."""
    ring = x.by.arithmetic
    return SharedArray(x.by, tuple(ring.mul(part, values) for part in x.parts))


# ------------------------------------------------------------------ computing on Shamir shares, with an honest majority


class ShamirComputation(AdditiveComputation):
    """Shamir shares of an honest majority: a product of shares lies on a polynomial of degree ``2t - 2``, and is shared anew (Gennaro, Rabin, Rabin 1998)."""

    sharing: ShamirSharing  # type: ignore[assignment]

    def _begin(self) -> None:
        super()._begin()
        sharing = self.sharing
        if isinstance(sharing, ShamirSharing) and sharing.n < 2 * sharing.threshold - 1:
            raise ConfigError(
                f"threshold={sharing.threshold} of {sharing.n} parties", where="ShamirComputation",
                remedy=f"multiply with a threshold of at most {(sharing.n + 1) // 2}",
            )  # fmt: skip

    async def mul(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x y``: every party shares its product anew."""
        return await self._reduced(self.domain.mul(x.parts[0], y.parts[0]))

    async def dot(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x @ y`` for the bytes of the result."""
        return await self._reduced(self.domain.dot(x.parts[0], y.parts[0]))

    async def _reduced(self, product: Array) -> SharedArray:
        field = self.sharing.domain
        split = self.sharing.split(product, self.island.secret)
        for party, parts in zip(self.parties, split, strict=True):
            if party in self.others:
                await self.peers.send(party, self._wire(parts[0]))
        total = np.zeros_like(product)
        factors = lagrange(tuple(range(self.sharing.n)), field)
        for i, (party, factor) in enumerate(zip(self.parties, factors, strict=True)):
            part = split[i][0] if i == self.place else self._unwired(await self.peers.recv(party), product.shape)
            total = field.add(total, field.mul(part, np.array(factor, dtype=np.uint64)))
        return SharedArray(self, (total,))
