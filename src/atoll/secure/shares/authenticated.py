"""Computing on shares with codes: whoever alters a share is found out."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, LetterError

from ..keystream import SEED, keystream
from .computation import AdditiveComputation, SharedArray
from .domain import Field, WordRing
from .sharing import AuthenticatedSharing

if TYPE_CHECKING:
    from atoll.core.requests.island import Island

    from .domain import Array, Domain

__all__ = ["AuthenticatedComputation", "Committing"]

_WAITING = 1 << 21
"""Opened values from which a check is due: 32 MiB of values and codes that wait for it."""


class Committing:
    """Values that are fixed before any is shown, and coins that no party can choose.

    Attributes:
        island: this party's place.
        parties: the roles that compute, in order.
        place: this party's place among them.
    """

    island: Island
    parties: tuple[str, ...]
    place: int

    async def tell(self, message: Any) -> list[Any]:
        """Everyone's message, in the order of the parties."""
        raise NotImplementedError

    async def _coin(self) -> bytes:
        """A random seed that no party can choose: the hash of what all have committed to."""
        return hashlib.sha256(b"atoll coin" + b"".join(await self._committed(self.island.secret.bytes(SEED)))).digest()

    async def _committed(self, value: bytes) -> list[bytes]:
        """Everyone's value; each is fixed by a commitment before any is shown."""
        nonce = self.island.secret.bytes(SEED)
        promised = await self.tell(self._promise(self.parties[self.place], nonce, value))
        shown = await self.tell([nonce, value])
        for party, promise, pair in zip(self.parties, promised, shown, strict=True):
            fits = isinstance(pair, list) and [_length(part) for part in pair] == [SEED, len(value)]
            if not fits or self._promise(party, *pair) != promise:
                raise LetterError(
                    f"{party} showed another value than it had committed to",
                    remedy="do not use any result of this computation",
                )
        return [what for _, what in shown]

    @staticmethod
    def _promise(party: str, nonce: bytes, value: bytes) -> bytes:
        """A commitment. It names its party, so that nobody can repeat another's; nonce and value have lengths that all know."""
        name = party.encode()
        return hashlib.sha256(b"atoll commitment" + len(name).to_bytes(4, "little") + name + nonce + value).digest()


class AuthenticatedComputation(AdditiveComputation, Committing):
    """Additive shares with codes. Openings are noted and checked many together: at the latest when `checked` is called, which the end of ``async with`` does.

    Nothing that follows from an unchecked opening may leave a party.
    """

    sharing: AuthenticatedSharing  # type: ignore[assignment]

    def _begin(self) -> None:
        super()._begin()
        self._opened: list[tuple[Array, Array]] = []
        self._keyed = False

    @property
    def arithmetic(self) -> Domain:
        """``Z_2^64`` for a ring, else the field."""
        return self.sharing.wide

    async def __aenter__(self) -> AuthenticatedComputation:
        """Get this party's share of the key."""
        ((key,),) = await self.dealer.get("key")
        self.sharing = self.sharing.keyed(int(key[0]))
        self._keyed = True
        return self

    async def __aexit__(self, *raised: object) -> None:
        if raised[0] is None:
            await self.checked()
        await super().__aexit__(*raised)

    def constant(self, values: Any) -> SharedArray:
        """Public values as a shared array.

        Raises:
            ConfigError: the computation has no key yet.
        """
        if not self._keyed:
            raise ConfigError(
                "no key yet",
                where="AuthenticatedComputation",
                remedy="write: async with AuthenticatedComputation(...) as it",
            )
        return super().constant(values)

    async def share(self, values: Any = None, *, owner: str, shape: tuple[int, ...]) -> SharedArray:
        """Share an owner's values: they are sent as differences to random shared values, which the dealer shows to the owner alone."""
        mask, *shown = await self.dealer.get("input", shape, owner=self.parties.index(owner))
        shared = SharedArray(self, mask)
        if self.parties[self.place] != owner:
            return shared + self._unwired(await self.peers.recv(owner), shape)
        difference = self.arithmetic.sub(self._own(values, shape), self._unwired(shown[0][0], shape))
        for other in self.others:
            await self.peers.send(other, difference)
        return shared + difference

    async def open(self, x: SharedArray) -> Array:
        """Show the values to every party, and note them for `checked`. Above the low ``k`` bits of a ring they show nothing."""
        if isinstance(self.domain, WordRing):
            (noise,) = await self._dealt("random", x.shape)
            x = x + noise * np.uint64(1 << self.domain.k)
        told = await self.tell(x.parts[0])
        wide = functools.reduce(self.arithmetic.add, [self._unwired(row, x.shape) for row in told])
        self._opened.append((np.ravel(wide), np.ravel(x.parts[1])))
        if sum(len(values) for values, _ in self._opened) >= _WAITING:
            await self.checked()
        return wide & self.domain.mask if isinstance(self.domain, WordRing) else wide

    async def reveal(self, x: SharedArray) -> Array:
        """Show a result to every party, after all that it follows from was checked, and check it too.

        A result that follows from an altered opening tells the cheat more than the result would, so it is not shown.

        Raises:
            LetterError: a share or a code was altered.
        """
        await self.checked()
        made = await self.open(x)
        await self.checked()
        return made

    async def checked(self) -> None:
        """Check all openings so far: their random combination must have the code that the key gives it.

        Each party commits to its part ``sum_j r_j (m_j - alpha_i x_j)`` of a sum that is 0 if no share was altered, before it sees the others'.

        Raises:
            LetterError: a share or a code was altered.
        """
        if not self._opened:
            return
        ring, (values, codes) = self.arithmetic, (np.concatenate(rows) for rows in zip(*self._opened, strict=True))
        self._opened = []
        factors = self._factors(await self._coin(), len(values))
        key = np.array(self.sharing.key, dtype=np.uint64)
        mine = ring.total(ring.mul(factors, ring.sub(codes, ring.mul(values, key))))
        told = await self._committed(int(mine).to_bytes(8, "little"))
        total = functools.reduce(ring.add, [np.array(int.from_bytes(row, "little"), dtype=np.uint64) for row in told])
        if int(total) % ring.order:
            raise LetterError(
                "an opened value does not have its code: a party altered its share",
                remedy="do not use any result of this computation",
            )

    def _factors(self, seed: bytes, count: int) -> Array:
        words = np.asarray(keystream(seed, 64, count)).astype(np.uint64)
        return (
            words % np.uint64(self.domain.order)
            if isinstance(self.domain, Field)
            else words >> np.uint64(self.domain.bits)
        )


def _length(part: Any) -> int:
    return len(part) if isinstance(part, bytes) else -1
