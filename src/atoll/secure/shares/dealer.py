"""The dealer: a party that hands out correlated random shares, and sees nothing else.

Products, comparisons and truncations use up randomness that fits together, such as shares of ``a``, ``b`` and ``ab`` (Beaver 1991). A `Dealer` provides it.
Here it is a party of its own that follows the protocol and colludes with nobody. It never sees an input or a result, only how many operations there are. Two parties can do without:
`ObliviousDealer`.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.errors import LetterError
from atoll.core.requests.task import task

from ..keystream import SEED, opened
from .domain import Binary, WordRing
from .sharing import AdditiveSharing, AuthenticatedSharing, BitSharing, Parts, Sharing, sharing_of, split_additive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from atoll.core.execution.session import PeerChannel, Peers
    from atoll.core.requests.island import Island, Secret

    from .domain import Array, Domain

__all__ = ["BitStock", "Dealer", "Order", "PartyDealer", "Stock", "deal", "read_stream", "serve_groups", "serve_orders"]


# ------------------------------------------------------------------ orders: what a dealer is asked for. A dealer serves only orders that its sharing can need


MOST = 1 << 27
"""Entries of one order: a gigabyte of words a party."""
_SHAPES = {
    "triple": 1,
    "dot": 2,
    "mask": 1,
    "bit": 1,
    "cut": 1,
    "random": 1,
    "input": 1,
    "key": 0,
    "lend": 1,
    "borrow": 1,
}


@dataclass(frozen=True)
class Order:
    """An order; the arguments are those of `Dealer.get`."""

    what: str
    shapes: tuple[tuple[int, ...], ...]
    bitwise: bool = False
    by: int = 0
    owner: int | None = None

    def packed(self) -> dict[str, Any]:
        """The order as it travels."""
        shapes = [list(map(int, shape)) for shape in self.shapes]
        return {"what": self.what, "shapes": shapes, "bitwise": self.bitwise, "by": self.by, "owner": self.owner}

    def __str__(self) -> str:
        return f"{self.what} {list(self.shapes)}"

    @classmethod
    def read(cls, told: Any, sharing: Sharing, party: str) -> Order:
        """The order that a party has sent.

        Raises:
            LetterError: it has no form, is too large, or is for something that the sharing does not have.
        """
        made = _formed(told)
        if made is None or made._unfit(sharing):
            raise LetterError(
                f"an order of {party} that the dealer cannot serve: {told!r:.200}",
                remedy=f"look at {party}: the parties and the dealer must run the same version and the same sharing",
            )
        return made

    def _unfit(self, sharing: Sharing) -> bool:
        coded = isinstance(sharing, AuthenticatedSharing | BitSharing)
        of_bits = ("key", "triple", "input", "lend", "borrow")
        if isinstance(sharing, BitSharing) and self.what not in of_bits:
            return True
        if self.what in of_bits[3:]:
            return not isinstance(sharing, BitSharing)
        if self.what == "dot" and not (
            all(len(shape) == 2 for shape in self.shapes) and self.shapes[0][1] == self.shapes[1][0]
        ):
            return True
        if self.what == "cut":
            return coded or not isinstance(sharing.domain, WordRing) or not 1 <= self.by <= sharing.domain.bits - 2
        if self.what == "input":
            return not coded or self.owner is None or not 0 <= self.owner < sharing.n
        return self.what == "key" and not coded


def _formed(told: Any) -> Order | None:
    """An order of the right types and of a size that can be served."""
    if not isinstance(told, dict) or set(told) != {"what", "shapes", "bitwise", "by", "owner"}:
        return None
    what, shapes, bitwise, by, owner = (told[name] for name in ("what", "shapes", "bitwise", "by", "owner"))
    if not isinstance(what, str) or _SHAPES.get(what) is None or not isinstance(shapes, list):
        return None
    formed = all(isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) for shape in shapes)
    if not formed or len(shapes) != _SHAPES[what] or any(math.prod(shape) > MOST for shape in shapes):
        return None
    if what == "dot" and len(shapes[0]) == 2 == len(shapes[1]) and shapes[0][0] * shapes[1][1] > MOST:
        return None
    if type(bitwise) is not bool or type(by) is not int or not (owner is None or type(owner) is int):
        return None
    return Order(what, tuple(map(tuple, shapes)), bitwise, by, owner)


# ------------------------------------------------------------------ the dealer: a party that hands out correlated random shares, and sees nothing else


class Dealer(Protocol):
    """Where correlated randomness comes from; all parties ask for the same, in the same order."""

    async def get(
        self, what: str, *shapes: tuple[int, ...], bitwise: bool = False, by: int = 0, owner: int | None = None
    ) -> list[Parts]:
        """Return this party's parts of random values.

        Args:
            what: ``triple`` (a, b, ab), ``dot`` (a, b, a @ b), ``mask`` (a random r, and its bits as rows), ``bit`` (a random bit, and itself as 0 or 1),
                ``cut`` (r, ``(r mod 2^(k-1)) >> by``, the top bit of r), ``input`` (r; the owner also gets r itself), ``random`` (r),
                ``key`` (a share of the key of authenticated shares), ``lend`` (random bits), ``borrow`` (the bits that another group lent, under this group's key).
            shapes: of the values.
            bitwise: whether the values are bits of a binary computation.
            by: bits that are cut off; of ``borrow``, the number of the group that lent.
            owner: the place of the party that an input belongs to.
        """
        ...


class PartyDealer:
    """A dealer that is a party of the session, in the role `deal`.

    Every delivery says which order it is for, and each party compares that with the order that it would have placed. So the party that places the orders cannot have
    others mask their values with something else, such as bits in place of uniform numbers.

    Args:
        peers: the session.
        role: the dealer's role.
        first: whether this party places the orders.
    """

    def __init__(self, peers: PeerChannel, role: str, *, first: bool) -> None:
        self._peers, self._role, self._first = peers, role, first

    async def get(
        self, what: str, *shapes: tuple[int, ...], bitwise: bool = False, by: int = 0, owner: int | None = None
    ) -> list[Parts]:
        """Order, and wait for the delivery; see `Dealer.get`.

        Raises:
            LetterError: the delivery is for another order.
        """
        order = Order(what, tuple(map(tuple, shapes)), bitwise, by, owner)
        if self._first:
            await self._peers.send(self._role, order.packed())
        told = await self._peers.recv(self._role)
        if not isinstance(told, dict) or told.get("order") != order.packed():
            raise LetterError(
                f"the dealer deals for another order than {order}",
                remedy="look at the party that places the orders: it must run the same program as the others",
            )
        return [tuple(parts) for parts in told["rows"]]

    async def close(self) -> None:
        """Tell the dealer that no more is needed."""
        if self._first:
            await self._peers.send(self._role, {"what": "end"})


@task
async def deal(island: Island, peers: Peers, parties: list[str], sharing: dict[str, Any]) -> int:
    """The dealer's role: serve the orders of the first party until it says that it is done; return how many there were.

    Args:
        island: the dealer's place; its secret is the source of what it deals.
        peers: the session.
        parties: the roles of the computing parties, in order.
        sharing: the sharing's ``spec()``.

    Raises:
        LetterError: an order has no form, or is for something that this sharing does not have.
    """
    made, secret = sharing_of(sharing), island.secret
    if isinstance(made, AuthenticatedSharing):
        bits = 64 - made.domain.k if isinstance(made.domain, WordRing) else 0
        key = secret.integer(1 << bits) if bits else int(made.domain.random(secret, (1,))[0])
        made = made.keyed(key)
    stock = BitStock(made.n, secret) if isinstance(made, BitSharing) else _Stock(made, secret)
    return await serve_orders(peers, parties, made, stock)


async def serve_orders(peers: PeerChannel, parties: Sequence[str], sharing: Sharing, stock: Stock) -> int:
    """Serve the orders of the first party until it says that it is done; return how many there were.

    Raises:
        LetterError: an order has no form, or is for something that this sharing does not have.
    """
    served = 0
    while (told := await peers.recv(parties[0])) != {"what": "end"}:
        order = Order.read(told, sharing, parties[0])
        for party, row in zip(parties, await stock.make(order), strict=True):
            await peers.send(party, {"order": order.packed(), "rows": [list(parts) for parts in row]})
        served += 1
    return served


async def serve_groups(island: Island, peers: Peers, groups: Mapping[str, Sequence[str]]) -> int:
    """Deal bits with codes to groups of parties, each on a channel and under a key of its own; return how many orders there were.

    Args:
        island: the dealer's place; its secret is the source of what it deals.
        peers: the session.
        groups: channel -> parties, in order. A group may borrow of those before it, by their numbers from 0.

    Raises:
        LetterError: an order has no form, or is for something that bits with codes do not have.
    """
    stocks, serving = list[BitStock](), []
    for name, parties in groups.items():
        stocks.append(BitStock(len(parties), island.secret, tuple(stocks)))
        sharing = BitSharing(Binary(), len(parties))
        serving.append(asyncio.ensure_future(serve_orders(peers.channel(name), parties, sharing, stocks[-1])))
    try:
        return sum(await asyncio.gather(*serving))
    finally:
        for one in serving:  # where one group fails, no other waits on
            one.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


class Stock(Protocol):
    """Makes what is ordered."""

    async def make(self, order: Order) -> list[list[Parts]]:
        """The rows of each party."""
        ...


class _Stock:
    """Makes correlated values and splits them."""

    def __init__(self, sharing: Sharing, secret: Secret) -> None:
        self.sharing, self.secret = sharing, secret
        packed = isinstance(sharing, AdditiveSharing) and isinstance(sharing.domain, WordRing)
        self.bitwise: Sharing = AdditiveSharing(Binary(), sharing.n) if packed else sharing

    async def make(self, order: Order) -> list[list[Parts]]:
        """The rows of each party."""
        what, shapes = order.what, order.shapes
        makers: dict[str, Callable[[], list[tuple[Sharing, Array]]]] = {
            "triple": lambda: self._product(self.bitwise if order.bitwise else self.sharing, shapes, dot=False),
            "dot": lambda: self._product(self.sharing, shapes, dot=True),
            "mask": lambda: self._mask(shapes[0]),
            "bit": lambda: self._bit(shapes[0]),
            "cut": lambda: self._cut(shapes[0], order.by),
            "random": lambda: [(self.sharing, self._random(self.sharing, shapes[0]))],
            "input": lambda: [(self.sharing, self._random(self.sharing, shapes[0]))],
        }
        if what == "key":
            return self._key()
        dealt = makers[what]()
        split = [sharing.split(values, self.secret) for sharing, values in dealt]
        rows = [[parts[i] for parts in split] for i in range(self.sharing.n)]
        if what == "input" and order.owner is not None:
            rows[order.owner].append((dealt[0][1],))
        return rows

    def _domain(self, sharing: Sharing) -> Domain:
        return sharing.wide if isinstance(sharing, AuthenticatedSharing) else sharing.domain

    def _random(self, sharing: Sharing, shape: tuple[int, ...]) -> Array:
        return self._domain(sharing).random(self.secret, shape)

    def _product(
        self, sharing: Sharing, shapes: Sequence[tuple[int, ...]], *, dot: bool
    ) -> list[tuple[Sharing, Array]]:
        domain = self._domain(sharing)
        a, b = (self._random(sharing, shape) for shape in (shapes[0], shapes[-1]))
        return [(sharing, a), (sharing, b), (sharing, domain.dot(a, b) if dot else domain.mul(a, b))]

    def _as_bits(self, bits: Array) -> Array:
        """Rows of bits, as elements of the bitwise sharing."""
        return Binary.packed(bits.reshape(len(bits), -1)) if isinstance(self.bitwise.domain, Binary) else bits

    def _mask(self, shape: tuple[int, ...]) -> list[tuple[Sharing, Array]]:
        r = self._random(self.sharing, shape)
        places = np.arange(self.sharing.domain.bits, dtype=np.uint64).reshape(-1, *[1] * len(shape))
        return [(self.sharing, r), (self.bitwise, self._as_bits((r >> places) & np.uint64(1)))]

    def _bit(self, shape: tuple[int, ...]) -> list[tuple[Sharing, Array]]:
        bit = self.secret.uint64(shape) & np.uint64(1)
        return [(self.bitwise, self._as_bits(bit[None])[0]), (self.sharing, bit)]

    def _cut(self, shape: tuple[int, ...], by: int) -> list[tuple[Sharing, Array]]:
        r, k = self._random(self.sharing, shape), self.sharing.domain.bits
        top = np.uint64(k - 1)
        low = r & np.uint64((1 << (k - 1)) - 1)
        return [(self.sharing, row) for row in (r, low >> np.uint64(by), (r >> top) & np.uint64(1))]

    def _key(self) -> list[list[Parts]]:
        key = np.array([getattr(self.sharing, "key", 0)], dtype=np.uint64)
        split = AdditiveSharing(self._domain(self.sharing), self.sharing.n).split(key, self.secret)
        return [[parts] for parts in split]


class BitStock:
    """Makes bits with codes. All parties but the last draw their parts from a seed that they got once, so only the last one's are sent: 8 bytes a bit.

    Args:
        n: number of parties.
        secret: the source of all.
        lenders: the stocks of other groups, by number: bits that one of them lent are dealt here under this group's key.
    """

    def __init__(self, n: int, secret: Secret, lenders: Sequence[BitStock] = ()) -> None:
        self._lenders = lenders
        self._lent: asyncio.Queue[Array] = asyncio.Queue()
        self._secret, self._key = secret, secret.uint64(1) | np.uint64(1)
        self._keys = split_additive(self._key, n, Binary(), secret)
        self._seeds = [secret.bytes(SEED) for _ in range(n - 1)]
        self._streams = [opened(seed) for seed in self._seeds]

    async def make(self, order: Order) -> list[list[Parts]]:
        """The rows of each party.

        Raises:
            LetterError: bits are borrowed of a group that lends none here, or another number of bits than it lent.
        """
        if order.what == "key":
            rows: list[list[Parts]] = [[(key,)] for key in self._keys]
            for row, seed in zip(rows, self._seeds, strict=False):
                row.append((np.frombuffer(seed, dtype="<u8").astype(np.uint64),))
            return rows
        count, rows = math.prod(order.shapes[0]), [[] for _ in self._keys]
        if order.what == "triple":
            bits = self._draw_bits(2 * count).reshape(2, count)
            values = np.stack([*bits, bits[0] & bits[1]])
        else:
            values = bits = await self._borrow(order, count) if order.what == "borrow" else self._draw_bits(count)
        if order.what == "lend":
            self._lent.put_nowait(bits)
        words = values * self._key
        for stream in self._streams:
            words ^= read_stream(stream, words.shape)
        rows[-1].append((words,))
        if order.what == "input" and order.owner is not None:
            rows[order.owner].append((Binary.packed(bits),))
        return rows

    async def _borrow(self, order: Order, count: int) -> Array:
        """Bits that another group has masked its own with, or will have."""
        if 0 <= order.by < len(self._lenders) and len(bits := await self._lenders[order.by]._lent.get()) == count:
            return bits
        raise LetterError(f"an order that the dealer cannot serve: {order} of group {order.by}", remedy="look at the party that places the orders: it must run the same program as the others")  # fmt: skip

    def _draw_bits(self, count: int) -> Array:
        packed = np.frombuffer(self._secret.bytes(-(-count // 8)), dtype=np.uint8)
        return np.unpackbits(packed, count=count, bitorder="little").astype(np.uint64)


def read_stream(stream: Any, shape: tuple[int, ...]) -> Array:
    """The next words of a seed's stream, as the dealer and a party draw them."""
    raw = stream.update(bytes(8 * math.prod(shape)))
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False).reshape(shape)
