"""Who multiplies what: the protocols of linear models whose loss is quadratic, with and without a third party.

With Taylor's loss, or least squares, each step needs one thing of the others: a party's own columns x times the sum of all parties' numbers ``v`` of the rows, ``x' sum_k v_k``. A party
multiplies its own ``v`` itself, and the others multiply theirs with its ciphertexts (`atoll.vertical.linear.sealed`).

* ``pair`` (the setting of S. Yang et al. 2019: no third party): each party has a key of its own, and opens the products of its own columns. There the host tells the guest its margins of
  all rows in every step, from which the guest finds the host's columns up to a linear map. Here no party sees another's rows, at the price of Taylor's loss.
* ``arbiter`` (Hardy et al. 2017): the key is at a third party. The owner of the columns adds the others' products up, hides each sum behind a uniform number, and has it opened. So with
  several hosts it learns the sum alone, and the arbiter learns nothing. Hardy's parties encrypt derivatives of the rows in each step; ours encrypt columns, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.secure.encrypted import Paillier
from atoll.secure.encrypted.vectors import KeyOwner

from .sealed import ColumnFields, PeerColumns, encrypt_columns, require_ciphertexts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel
    from atoll.core.requests.island import Secret

    from .rows import GuestTotals, HostTotals
    from .solver import OwnBlock

__all__ = ["LocalProducts", "PairProducts", "TaylorRows"]


class LocalProducts:
    """The products of a party that is alone."""

    def __init__(self, x: NDArray[np.float64]) -> None:
        self.x = x

    async def multiply(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """``x' v``."""
        return self.x.T @ v


class TaylorRows:
    """`JointRows` of a quadratic loss ``c (m - t)^2 / 2``.

    Args:
        block: this party's columns.
        curvature: c.
        targets: t, at the guest; ``None`` at a host.
        products: what needs the other parties' rows.
        totals: adds a few numbers up.
        exact: see `JointRows`.
    """

    quadratic = True

    def __init__(
        self,
        block: OwnBlock,
        curvature: float,
        targets: NDArray[np.float64] | None,
        products: Any,
        totals: GuestTotals | HostTotals,
        exact: float,
    ) -> None:
        self.block, self.curvature, self.targets = block, curvature, targets
        self.products, self.total, self.exact = products, totals.total, exact

    async def find_gradient(self, w: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See `JointRows.find_gradient`."""
        v = self.block.x @ w if self.targets is None else self.block.x @ w - self.targets
        return self.curvature * await self.products.multiply(v), np.array(self.curvature)

    async def bend(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `JointRows.bend`."""
        found: NDArray[np.float64] = self.curvature * await self.products.multiply(self.block.x @ p)
        return found

    async def search(self, p: NDArray[np.float64], slope: float, bow: float, l1: tuple[float, float]) -> float:
        """1: the step ends at the optimum."""
        del p, slope, bow, l1
        return 1.0


class PairProducts:
    """Each party's columns are under its own key.

    Args:
        cipher: the encryption.
        x: this party's columns.
        outputs: margins of a row.
        peers: the session.
        others: the other roles with columns, in the order that they are added up.
        secret: this party's entropy.
        short: see `KeyOwner`.
    """

    def __init__(
        self,
        cipher: Paillier,
        x: NDArray[np.float64],
        outputs: int,
        peers: PeerChannel,
        others: Sequence[str],
        secret: Secret,
        short: bool,
    ) -> None:
        self.cipher, self.x, self.outputs, self.peers, self.others = cipher, x, outputs, peers, list(others)
        self.secret, self.owner = secret, KeyOwner(cipher, secret, short=short)
        self.fields = ColumnFields(x.shape[0], x.shape[1], cipher.key_bits)
        self.columns: dict[str, PeerColumns] = {}

    async def begin(self) -> None:
        """Exchange encrypted columns: at each start, also after a crash."""
        sealed = encrypt_columns(self.cipher, self.x, self.owner.encrypt)
        await self.peers.broadcast({"key": self.owner.public, **sealed}, self.others)
        for name in self.others:
            told = await self.peers.recv(name)
            key = told.get("key") if isinstance(told, Mapping) else None
            self.columns[name] = PeerColumns(self.cipher, key, told, len(self.x), name)

    async def multiply(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """``x'`` times the sum of all parties' v."""
        for name in self.others:
            await self.peers.send(name, self.columns[name].multiply(v, self.secret))
        made = self.x.T @ v
        for name in self.others:
            count = self.outputs * self.fields.count
            sealed = require_ciphertexts(await self.peers.recv(name), count, self.cipher.key_bits, name)
            made = made + self.fields.open(self.owner.decrypt(sealed), self.outputs)
        return np.asarray(made)
