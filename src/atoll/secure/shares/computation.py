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

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError, LetterError
from atoll.core.message import Words

from .binary import Binary
from .shared_array import SharedArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Island

    from .dealer import Dealer
    from .domain import Array, Domain
    from .sharing import Parts, Sharing

__all__ = ["Computation"]


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
        for other in self.others:
            await self.peers.send(other, message)
        return [message if i == self.place else await self.peers.recv(party) for i, party in enumerate(self.parties)]

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
