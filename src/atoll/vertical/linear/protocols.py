"""Who multiplies what: the protocols of linear models whose loss is quadratic, with and without a third party.

With Taylor's loss, or least squares, each step needs one thing of the others: a party's own columns x times the sum of all parties' numbers ``v`` of the rows, ``x' sum_k v_k``. A party
multiplies its own ``v`` itself, and the others multiply theirs with its ciphertexts (`atoll.vertical.linear.sealed`).

* ``pair`` (the setting of S. Yang et al. 2019: no third party): each party has a key of its own, and opens the products of its own columns. There the host tells the guest its margins of
  all rows in every step, from which the guest finds the host's columns up to a linear map. Here no party sees another's rows, at the price of Taylor's loss.
* ``ckks``: the same under CKKS, whose sums have an error of ``2^-24``, among parties that make their ciphertexts as they should: see `atoll.secure.encrypted.slots`.
* ``arbiter`` (Hardy et al. 2017): the key is at a third party. The owner of the columns adds the others' products up, hides each sum behind a uniform number, and has it opened. So with
  several hosts it learns the sum alone, and the arbiter learns nothing. Hardy's parties encrypt derivatives of the rows in each step; ours encrypt columns, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.secure.encrypted import Paillier
from atoll.secure.encrypted.slots import SlotForm, SlotOwner, SlotVector
from atoll.secure.encrypted.vectors import KeyOwner, SealedVector

from ..model import Save, require
from .sealed import ColumnFields, PeerColumns, encrypt_columns, require_ciphertexts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel
    from atoll.core.requests.island import Secret

    from .rows import GuestTotals, HostTotals
    from .solver import OwnBlock

__all__ = [
    "ARBITER",
    "ArbiterProducts",
    "CkksColumns",
    "JointProducts",
    "LocalProducts",
    "PaillierColumns",
    "PairProducts",
    "TaylorRows",
    "run_arbiter",
]

ARBITER = "arbiter"
"""The party with the key, and what it plays."""


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
        batch: the rows of `SampledRows`; ``None`` for none.
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
        batch: NDArray[np.int64] | None = None,
    ) -> None:
        self.batch = batch
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

    async def bend_batch(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `SampledRows.bend_batch`: numbers of other rows are 0, and cost nothing where they are raised to."""
        v, batch = np.zeros((len(self.block.x), p.shape[1])), self.batch
        v[batch] = self.block.x[batch] @ p
        times = self.curvature * len(v) / len(v[batch])
        found: NDArray[np.float64] = times * await self.products.multiply(v)
        return found

    async def search(self, p: NDArray[np.float64], slope: float, bow: float, l1: tuple[float, float]) -> float:
        """1: the step ends at the optimum."""
        del p, slope, bow, l1
        return 1.0


class PaillierColumns:
    """A party's columns under a Paillier key of its own.

    Args:
        cipher: the encryption.
        x: the columns.
        secret: the party's entropy.
        short: see `KeyOwner`.
    """

    def __init__(self, cipher: Paillier, x: NDArray[np.float64], secret: Secret, short: bool) -> None:
        self.cipher, self.x = cipher, x
        self.fields = ColumnFields(x.shape[0], x.shape[1], cipher.key_bits)
        self.owner = KeyOwner(cipher, secret, short=short)

    def message(self) -> dict[str, Any]:
        """What the others need to multiply them."""
        return {"key": self.owner.public, **encrypt_columns(self.cipher, self.x, self.owner.encrypt)}

    def read(self, told: Any, name: str) -> PeerColumns:
        """Another party's columns from its message."""
        key = told.get("key") if isinstance(told, Mapping) else None
        return PeerColumns(self.cipher, key, told, len(self.x), name)

    def open(self, sealed: Any, outputs: int, name: str) -> NDArray[np.float64]:
        """Another's product with these columns."""
        found = require_ciphertexts(sealed, outputs * self.fields.count, self.cipher.key_bits, name)
        return self.fields.open(self.owner.decrypt(found), outputs)


class CkksColumns:
    """A party's columns under a CKKS key of its own; see `atoll.secure.encrypted.slots`.

    Args:
        x: the columns.
        secret: the party's entropy.
    """

    def __init__(self, x: NDArray[np.float64], secret: Secret) -> None:
        self.x, self.owner = x, SlotOwner(secret)

    def message(self) -> dict[str, Any]:
        """What the others need to multiply them."""
        return self.owner.seal_columns(self.x)

    def read(self, told: Any, name: str) -> SlotVector:
        """Another party's columns from its message."""
        del name
        return SlotVector(told, len(self.x))

    def open(self, sealed: Any, outputs: int, name: str) -> NDArray[np.float64]:
        """Another's product with these columns."""
        del name
        return self.owner.open(sealed, SlotForm(self.x.shape[0], self.x.shape[1]), outputs)


class JointProducts:
    """What a party multiplies with others: its columns with their numbers of the rows.

    Args:
        outputs: margins of a row.
        peers: the session.
        others: the other roles with columns, in the order that they are added up.
        secret: this party's entropy.
    """

    def __init__(self, outputs: int, peers: PeerChannel, others: Sequence[str], secret: Secret) -> None:
        self.outputs, self.peers, self.others, self.secret = outputs, peers, list(others), secret
        self.theirs: dict[str, Any] = {}

    @property
    def columns_of(self) -> dict[str, int]:
        """How many columns each other party has."""
        return {name: each.fields.columns for name, each in self.theirs.items()}

    async def begin(self) -> None:
        """Exchange encrypted columns: at each start, also after a crash."""
        raise NotImplementedError

    async def multiply(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """``x'`` times the sum of all parties' v."""
        raise NotImplementedError


class PairProducts(JointProducts):
    """Each party's columns are under its own key.

    Args:
        columns: this party's, with its key.
        place: the arguments of `JointProducts`.
    """

    def __init__(self, columns: PaillierColumns | CkksColumns, *place: Any) -> None:
        super().__init__(*place)
        self.columns = columns

    async def begin(self) -> None:
        """Exchange encrypted columns: at each start, also after a crash."""
        await self.peers.broadcast(self.columns.message(), self.others)
        for name in self.others:
            self.theirs[name] = self.columns.read(await self.peers.recv(name), name)

    async def multiply(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """``x'`` times the sum of all parties' v."""
        for name in self.others:
            await self.peers.send(name, self.theirs[name].multiply(v, self.secret))
        made = self.columns.x.T @ v
        for name in self.others:
            made = made + self.columns.open(await self.peers.recv(name), self.outputs, name)
        return np.asarray(made)


class ArbiterProducts(JointProducts):
    """All columns are under the arbiter's key.

    Args:
        cipher: the encryption.
        x: this party's columns.
        place: the arguments of `JointProducts`.
    """

    def __init__(self, cipher: Paillier, x: NDArray[np.float64], *place: Any) -> None:
        super().__init__(*place)
        self.cipher, self.x = cipher, x
        self.fields = ColumnFields(x.shape[0], x.shape[1], cipher.key_bits)
        self.key: Any = None

    async def begin(self) -> None:
        """Take the arbiter's key, and exchange columns that are encrypted with it: at each start, also after a crash."""
        told = await self.peers.recv(ARBITER)
        self.key = told.get("key") if isinstance(told, Mapping) else None
        require(isinstance(self.key, Mapping), "no key from the arbiter", "VerticalLinear")
        public = SealedVector(self.cipher, self.key, np.zeros((0, self.cipher.key_bits // 4), np.uint8)).key
        n, size = public.n, self.cipher.key_bits // 4

        def encrypt(numbers: Sequence[int]) -> NDArray[np.uint8]:
            raw = b"".join(int(public.encrypt(m % n, self.secret)).to_bytes(size, "little") for m in numbers)
            return np.frombuffer(raw, np.uint8).reshape(len(numbers), size)

        await self.peers.broadcast(encrypt_columns(self.cipher, self.x, encrypt), self.others)
        for name in self.others:
            self.theirs[name] = PeerColumns(self.cipher, self.key, await self.peers.recv(name), len(self.x), name)

    async def multiply(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """``x'`` times the sum of all parties' v: each sum is opened behind a uniform number modulo n."""
        for name in self.others:
            await self.peers.send(name, self.theirs[name].multiply(v, self.secret))
        count, bits = self.outputs * self.fields.count, self.cipher.key_bits
        sums: list[Any] = [1] * count
        n: Any = 1
        square: Any = 1
        for name in self.others:
            sealed = SealedVector(
                self.cipher, self.key, require_ciphertexts(await self.peers.recv(name), count, bits, name)
            )
            n, square = sealed.key.n, sealed.key.square
            sums = [a * b % square for a, b in zip(sums, sealed.numbers, strict=True)]
        masks = [self.secret.integer(int(n)) for _ in sums]
        hidden = [one * (1 + mask * n) % square for one, mask in zip(sums, masks, strict=True)]
        raw = b"".join(int(one).to_bytes(bits // 4, "little") for one in hidden)
        await self.peers.send(ARBITER, {"do": "open", "sealed": np.frombuffer(raw, np.uint8).reshape(count, bits // 4)})
        opened = await self.peers.recv(ARBITER)
        good = isinstance(opened, np.ndarray) and opened.dtype == np.uint8 and opened.shape == (count, bits // 8)
        require(good, f"no {count} opened sums from the arbiter", "VerticalLinear")
        plain = [
            (int.from_bytes(row.tobytes(), "little") - mask) % int(n) for row, mask in zip(opened, masks, strict=True)
        ]
        centred = [m - int(n) if 2 * m > int(n) else m for m in plain]
        return np.asarray(self.x.T @ v + self.fields.open(centred, self.outputs))


async def run_arbiter(
    cipher: Paillier,
    peers: PeerChannel,
    parties: Sequence[str],
    secret: Secret,
    short: bool,
    state: Any,
    save: Save | None,
) -> None:
    """The arbiter's role: make a key, and open as many ciphertexts for each party and round as in its first.

    Args:
        cipher: the encryption.
        peers: the session.
        parties: the roles with columns, the guest first.
        secret: the arbiter's entropy.
        short: see `KeyOwner`.
        state: what ``save`` kept last: the number of steps. A resumed arbiter makes a new key, and the parties encrypt anew.
        save: called when the guest says that a step ends.

    Raises:
        MessageError: a party asks for something else.
    """
    owner, steps = KeyOwner(cipher, secret, short=short), int(state["step"]) if state else 0
    await peers.broadcast({"key": owner.public}, parties)
    counts: dict[str, int] = {}
    while True:
        for place, name in enumerate(parties):
            told = await peers.recv(name)
            asked = told.get("do") if isinstance(told, Mapping) else None
            if place == 0 and asked == "end":
                return
            if place == 0 and asked == "save":
                steps += 1
                if save is not None:
                    await save({"step": steps})
                break
            require(asked == "open", f"{asked!r} asked of the arbiter by {name!r}", "VerticalLinear")
            sealed = np.asarray(told["sealed"])
            found = counts.setdefault(name, len(sealed))
            numbers = owner.decrypt(require_ciphertexts(sealed, found, cipher.key_bits, name))
            n, size = owner.modulus, cipher.key_bits // 8
            raw = b"".join((m % n).to_bytes(size, "little") for m in numbers)
            await peers.send(name, np.frombuffer(raw, np.uint8).reshape(found, size))
