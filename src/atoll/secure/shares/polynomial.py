"""Computing on Shamir shares, with an honest majority."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import ConfigError

from .additive import AdditiveComputation
from .schemes import lagrange
from .shared_array import SharedArray
from .sharing import ShamirSharing

if TYPE_CHECKING:
    from .domain import Array

__all__ = ["ShamirComputation"]


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
