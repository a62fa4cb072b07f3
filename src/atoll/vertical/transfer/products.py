"""Products of one party's numbers with another's: ``w^T c``, where one has c and the other has w and gets the result.

That is all that two parties have to tell each other in `SFTL`: its gradients are bilinear. A party *gives* c, the other *takes* the product with its own w.

============  ==========================================================  ====================================================
class         what the giver sees                                         what the taker sees beside the product
============  ==========================================================  ====================================================
`PlainPair`   nothing                                                     c
`SealedPair`  the product under a uniform mask modulo the key             ciphertexts of c under the giver's key
`SharedPair`  w under a uniform mask modulo 2^64, and its share           c under a uniform mask modulo 2^64
============  ==========================================================  ====================================================

The last two compute with whole multiples of 2^-20. Both round c and w alike and add without error, so that they give the same product to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from timeit import timeit
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError
from atoll.secure.encrypted import JoinedFields, KeyOwner, Paillier, SealedVector
from atoll.secure.encrypted.paillier import gmp, to_number
from atoll.secure.shares import AdditiveComputation, AdditiveSharing, ObliviousDealer, WordRing, transfer_frames
from atoll.secure.shares.dealer import Order

from ..model import require

if TYPE_CHECKING:
    from atoll.core.execution.session import PeerChannel, Peers
    from atoll.core.requests.island import Secret

__all__ = [
    "Pair",
    "PlainPair",
    "SealedPair",
    "SharedPair",
    "begin_later",
    "begin_pair",
    "product_bytes",
    "seconds_of_product",
]

Numbers = Any
"""An array of float64 numbers."""
FRACTION = 20
"""Bits behind the point."""
_ROOM = 62
"""Bits that a sum of products may have."""


@dataclass
class Pair:
    """One of two parties, whose protocol sends nothing else on its channel.

    Attributes:
        peers: the channel.
        peer: the other party.
    """

    peers: Any
    peer: str

    async def give(self, c: Numbers, m: int) -> None:
        """Let the other take products with c.

        Args:
            c: this party's numbers, ``(blocks, n)``.
            m: how many columns of numbers the other has in a block.

        Raises:
            MessageError: the other sends something else.
        """
        raise NotImplementedError

    async def take(self, w: Numbers, bound: float) -> Numbers:
        """The products with what the other gives: ``sum_i w[b, i, j] c[b, i]``, ``(blocks, m)``.

        Args:
            w: this party's numbers, ``(blocks, n, m)``.
            bound: no number of c is larger in magnitude.

        Raises:
            MessageError: the other sends something else.
            DataError: the sums may be too large for fixed point.
        """
        raise NotImplementedError

    async def give_rows(self, c: Numbers, m: int) -> None:
        """Let the other multiply rows ``c``, ``(rows, n)``, with one matrix of m columns."""
        await self.give(c, m)

    async def take_rows(self, w: Numbers, rows: int, bound: float) -> Numbers:
        """The products of the other's rows with ``w``, ``(n, m)``: ``(rows, m)``; see `take`."""
        return await self.take(np.broadcast_to(w, (rows, *w.shape)), bound)

    def captured(self) -> Any:
        """The state as a message, for a checkpoint; it is secret."""
        return {}


class PlainPair(Pair):
    """Without protection: c travels as it is."""

    async def give(self, c: Numbers, m: int) -> None:
        """Send c."""
        del m
        await self.peers.send(self.peer, {"c": np.asarray(c, np.float64)})

    async def take(self, w: Numbers, bound: float) -> Numbers:
        """Multiply what the other sent."""
        told = await self.peers.recv(self.peer)
        c = told.get("c") if isinstance(told, Mapping) else None
        good = isinstance(c, np.ndarray) and c.dtype == np.float64 and c.shape == w.shape[:2]
        # Beyond the bound, or NaN: no party that follows the protocol sends it.
        good = good and bool((np.abs(np.asarray(c)) <= bound * (1 + 1e-9)).all())
        require(good, f"no {w.shape[0]} x {w.shape[1]} numbers up to {bound:g} of {self.peer!r}", "SFTL")
        return np.matmul(np.asarray(c)[:, None], w)[:, 0]


@dataclass
class SealedPair(Pair):
    """Paillier: the giver sends ciphertexts, the taker weighted sums of them under a mask, which the giver decrypts.

    The mask is uniform modulo the key, and so hides the packed sums perfectly.

    Attributes:
        owner: this party's key, with which it gives.
        public: the other's key.
        secret: this party's entropy.
    """

    owner: KeyOwner
    public: Any
    secret: Secret

    @property
    def cipher(self) -> Paillier:
        """The length of both keys."""
        return self.owner.cipher

    async def give(self, c: Numbers, m: int) -> None:
        """Send ciphertexts, and decrypt what comes back: so many sums as there are, and no more."""
        await self.peers.send(self.peer, {"sealed": self.owner.encrypt(_whole(c).ravel().tolist())})
        told = await self.peers.recv(self.peer)
        sealed = told.get("masked") if isinstance(told, Mapping) else None
        expected = -(-len(c) * m // self._fields(c.shape[1]).per_plaintext(self.cipher.key_bits))
        good = isinstance(sealed, np.ndarray) and sealed.ndim == 2 and len(sealed) == expected
        require(good, f"no {expected} masked sums of {self.peer!r}", "SFTL")
        n, size = to_number(self.cipher.own(self.owner.public, "n", "h")["n"]), self.cipher.key_bits // 8
        opened = [int(one % n) for one in self.owner.decrypt(np.asarray(sealed))]
        await self.peers.send(self.peer, {"opened": _bytes_of(opened, size)})

    async def take(self, w: Numbers, bound: float) -> Numbers:
        """Add up ciphertexts with weights, mask the sums, and take the mask off what the other decrypted."""
        whole, (blocks, n, m) = _weights(w, bound), w.shape
        told = await self.peers.recv(self.peer)
        sealed = told.get("sealed") if isinstance(told, Mapping) else None
        good = isinstance(sealed, np.ndarray) and sealed.ndim == 2 and len(sealed) == blocks * n
        require(good, f"no {blocks * n} ciphertexts of {self.peer!r}", "SFTL")
        vectors = [SealedVector(self.cipher, self.public, np.asarray(part)) for part in np.split(np.asarray(sealed), blocks)]  # fmt: skip
        sums = [one for vector, columns in zip(vectors, whole, strict=True) for one in vector.weighted_sums(columns)]
        fields = self._fields(n)
        key = vectors[0].key
        packed = vectors[0].pack(sums, fields, self.secret)
        masks = [self.secret.integer(int(key.n)) for _ in packed]
        hidden = [
            int(gmp().mpz(int.from_bytes(one.tobytes(), "little")) * (1 + mask * key.n) % key.square)
            for one, mask in zip(packed, masks, strict=True)
        ]
        await self.peers.send(self.peer, {"masked": _bytes_of(hidden, self.cipher.key_bits // 4)})
        told = await self.peers.recv(self.peer)
        opened = told.get("opened") if isinstance(told, Mapping) else None
        shape = (len(masks), self.cipher.key_bits // 8)
        good = isinstance(opened, np.ndarray) and opened.dtype == np.uint8 and opened.shape == shape
        require(good, f"no {len(masks)} decrypted sums of {self.peer!r}", "SFTL")
        raw = [int.from_bytes(row.tobytes(), "little") for row in np.asarray(opened)]
        require(all(one < key.n for one in raw), f"a decrypted sum of {self.peer!r} beyond its key", "SFTL")
        plain = [(one - mask) % int(key.n) for one, mask in zip(raw, masks, strict=True)]
        half = int(key.n) // 2
        found = fields.split([one - int(key.n) if one > half else one for one in plain], blocks * m, self.cipher.key_bits)  # fmt: skip
        return found[:, 0].reshape(blocks, m) * 4.0**-FRACTION

    @staticmethod
    def _fields(n: int) -> JoinedFields:
        """Sums of n products, each below ``2^62``, side by side."""
        return JoinedFields(1, _ROOM + 1 - int(n).bit_length(), n)

    def captured(self) -> Any:
        """Both keys."""
        return {"keys": self.owner.keys, "public": self.public}


@dataclass
class SharedPair(Pair):
    """Additive shares modulo 2^64: both share their numbers, multiply by triples, and the giver sends its share of the product.

    Attributes:
        computation: this party's side.
        dealer: where triples come from.
    """

    computation: AdditiveComputation
    dealer: Any

    async def give(self, c: Numbers, m: int) -> None:
        """Share c, multiply, and send the share of the product."""
        for block in _whole(c):
            await self.give_rows(block[None] * 2.0**-FRACTION, m)

    async def give_rows(self, c: Numbers, m: int) -> None:
        """Share all rows, multiply at once, and send the share of the products."""
        product = await self._multiply(_whole(c), None, (*c.shape, m))
        await self.peers.send(self.peer, {"share": product.parts[0]})

    async def take(self, w: Numbers, bound: float) -> Numbers:
        """Share w, multiply, and add the other's share of the product."""
        return np.stack([(await self.take_rows(block, 1, bound))[0] for block in w])

    async def take_rows(self, w: Numbers, rows: int, bound: float) -> Numbers:
        """Share the matrix, multiply at once, and add the other's share of the products."""
        ring, (n, m) = self.computation.domain, w.shape
        product = await self._multiply(None, _weights(w[None], bound)[0], (rows, n, m))
        told = await self.peers.recv(self.peer)
        share = told.get("share") if isinstance(told, Mapping) else None
        good = isinstance(share, np.ndarray) and share.dtype == np.uint64 and share.shape == (rows, m)
        require(good, f"no share of {rows} x {m} products of {self.peer!r}", "SFTL")
        return ring.signed(ring.add(product.parts[0], np.asarray(share))) * 4.0**-FRACTION

    async def _multiply(self, c: Any, w: Any, shape: tuple[int, int, int]) -> Any:
        it, (rows, n, m) = self.computation, shape
        giver, taker = (it.me, self.peer) if w is None else (self.peer, it.me)
        left = await it.share(c, owner=giver, shape=(rows, n))
        return await it.dot(left, await it.share(w, owner=taker, shape=(n, m)))

    def captured(self) -> Any:
        """The state of the transfers."""
        return self.dealer.captured()


async def begin_pair(
    security: str, peers: Peers, peer: str, secret: Secret, *, first: bool, cipher: Paillier, state: Any = None
) -> Pair:
    """Set up one of two parties: exchange keys, or run the base transfers; or go on from what `Pair.captured` returned.

    Args:
        security: ``none``, ``paillier`` or ``shared``.
        peers: the session.
        peer: the other party's role.
        secret: this party's entropy.
        first: whether this party is the first of the two.
        cipher: the length of the keys.
        state: what was captured.
    """
    if security == "none":
        return PlainPair(peers, peer)
    if security == "paillier":
        owner = KeyOwner(cipher, secret, state["keys"] if state else None)
        if state:
            return SealedPair(peers, peer, owner, state["public"], secret)
        await peers.send(peer, {"key": owner.public})
        told = await peers.recv(peer)
        require(isinstance(told, Mapping) and "key" in told, f"no public key of {peer!r}", "SFTL")
        return SealedPair(peers, peer, owner, told["key"], secret)
    ring = WordRing(64)
    if state:
        dealer = ObliviousDealer.restored(state, secret, peers, peer, first=first, domain=ring)
    else:
        dealer = await ObliviousDealer.begin(secret, peers, peer, first=first, domain=ring)
    me = f"not {peer}"  # roles are named by the session; a computation only tells its own from the other
    parties = [me, peer] if first else [peer, me]
    place: Any = SimpleNamespace(secret=secret)  # all that a computation takes of an island
    computation = AdditiveComputation(place, peers, parties, me, AdditiveSharing(ring, 2), dealer)
    return SharedPair(peers, peer, computation, dealer)


async def begin_later(part: Mapping[str, Any], peers: PeerChannel, peer: str, secret: Secret, *, first: bool) -> Pair:
    """A pair for predictions, as the saved part has it. Each session has keys of its own."""
    cipher = Paillier(int(part["key_bits"]), insecure=bool(part["insecure"]))
    line: Any = peers  # each is a session's peers, or a channel of them, which has further channels
    return await begin_pair(str(part["security"]), line, peer, secret, first=first, cipher=cipher)


def _whole(numbers: Numbers) -> Any:
    """Numbers in units of 2^-20."""
    return np.rint(np.asarray(numbers, np.float64) * 2.0**FRACTION).astype(np.int64)


def _weights(w: Numbers, bound: float) -> Any:
    """Weights in units of 2^-20, whose sums with numbers up to ``bound`` have room."""
    found = np.asarray(w, np.float64)
    largest = float(np.abs(found).sum(axis=1).max(initial=0.0)) * bound
    if not largest < 2.0 ** (_ROOM - 1 - 2 * FRACTION):
        raise DataError(
            f"sums of products up to {largest:.3g}, which may overflow fixed point",
            where="SFTL",
            remedy="correct the outliers among the columns",
        )
    return _whole(found)


def _bytes_of(numbers: list[int], size: int) -> Any:
    raw = b"".join(one.to_bytes(size, "little") for one in numbers)
    return np.frombuffer(raw, np.uint8).reshape(len(numbers), size)


def product_bytes(security: str, shape: tuple[int, int, int], key_bits: int) -> float:
    """Bytes between the two for one product: blocks, numbers of a block, and columns of the other's numbers.

    Args:
        security: the protocol.
        shape: ``(blocks, n, m)``.
        key_bits: the length of keys.
    """
    blocks, n, m = shape
    if security == "none":
        return 8.0 * blocks * n
    if security == "shared":
        orders = [Order("dot", ((1, n), (n, m)))]
        triples = sum(one.nbytes for one in transfer_frames(["a", "b"], orders)) - sum(
            one.nbytes for one in transfer_frames(["a", "b"], [])
        )
        return blocks * (
            triples + 8.0 * (n + n * m) + 16.0 * (n + n * m) + 8.0 * m
        )  # the shares, the masked factors both ways, the result
    sums = -(-blocks * m // JoinedFields(1, _ROOM + 1 - int(n).bit_length(), n).per_plaintext(key_bits))
    return (blocks * n + 1.5 * sums) * key_bits / 4


def seconds_of_product(bits: int) -> float:
    """Seconds of a product modulo a number of so many bits, on this machine."""
    modulus = gmp().mpz(2) ** bits - 189
    a, b = modulus // 3, modulus // 7
    return min(timeit(lambda: a * b % modulus, number=500) for _ in range(3)) / 500
