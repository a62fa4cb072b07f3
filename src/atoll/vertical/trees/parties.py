"""How owners of columns answer two parties who share numbers between them: neither these two nor the owners see what is added up, or who goes where.

Sums by bin are products of an owner's bins and a computing party's parts, see `atoll.vertical.trees.products`; or ciphertexts carry them. Then each computing party encrypts its parts of all rows under a Paillier key of its own, several parts in a ciphertext, and sends them to the other owners. An owner multiplies the
ciphertexts of each bin, adds a random mask ``2^40`` times larger than the sum can be, and fresh noise. The party decrypts and keeps the masked sum as its new part; the
other computing party gets the mask.

Sides. Where a split is known to all, its owner splits its bits. Where nobody may see it, each computing party holds a part of which candidate is chosen, and for each candidate
chooses by this bit, in an oblivious transfer, between the owner's mask and the mask plus the candidate's bits of all rows; the exclusive or of all of them is the party's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.message import Bits
from atoll.secure.encrypted import KeyOwner, Paillier, SealedVector
from atoll.secure.encrypted.paillier import gmp
from atoll.secure.oblivious import TransferReceiver, TransferSender

from ..model import require
from .boosting import HostColumns
from .columns import OwnedColumns
from .hidden import SplitChoices, add_by_bin
from .numbers import Flags, Numbers, SharedNumbers
from .products import ProductGuest, ProductHost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.execution.session import PeerChannel, Peers
    from atoll.core.requests.island import Secret

__all__ = ["Circle", "SealedWords", "SharedOwners", "SideTransfers", "WordProducts", "share_sides"]

_MASK = 40
"""Bits by which a mask is longer than what it hides."""


@dataclass(frozen=True)
class Circle:
    """Who takes part: the guest and the first host compute on shares, all own columns.

    Attributes:
        names: the roles, the guest first.
        me: this party's place.
        channel: where messages go.
        secret: this party's entropy.
    """

    names: tuple[str, ...]
    me: int
    channel: PeerChannel
    secret: Secret

    @property
    def computes(self) -> bool:
        """Whether this party computes on shares."""
        return self.me < 2

    async def send(self, place: int, message: Any) -> None:
        """Send to a party."""
        await self.channel.send(self.names[place], message)

    async def hear(self, place: int) -> Any:
        """Hear a party."""
        return await self.channel.recv(self.names[place])


@dataclass(frozen=True)
class SealedWords:
    """How parts of 64 bits share a Paillier plaintext.

    Attributes:
        cipher: the length of the key.
        rows: at most so many parts add up.

    Raises:
        ConfigError: not one of them fits.
    """

    cipher: Paillier
    rows: int

    def __post_init__(self) -> None:
        if self.per < 1:
            raise ConfigError(
                f"sums of {self.rows} parts with masks of {self.width} bits may overflow a modulus of {self.cipher.key_bits}",
                where="Pivot",
                remedy="use a longer key",
            )

    @property
    def width(self) -> int:
        """Bits of a masked sum."""
        return 64 + self.rows.bit_length() + _MASK + 1

    @property
    def per(self) -> int:
        """Masked sums of a plaintext."""
        return (self.cipher.key_bits - 2) // self.width

    def groups(self, words: int) -> list[slice]:
        """The words that share a ciphertext."""
        return [slice(at, min(at + self.per, words)) for at in range(0, words, self.per)]

    def seal(self, owner: KeyOwner, words: Numbers) -> list[NDArray[np.uint8]]:
        """Ciphertexts of the parts ``(rows, words)``, an array a group."""
        made = []
        for group in self.groups(words.shape[1]):
            joined = [0] * len(words)
            for column in words[:, group].T[::-1]:
                joined = [(high << self.width) + low for high, low in zip(joined, column.tolist(), strict=True)]
            made.append(owner.encrypt(joined))
        return made

    def add_up(
        self, public: Tree, sealed: Any, columns: OwnedColumns, places: NDArray[np.int64], words: int, secret: Secret
    ) -> tuple[list[NDArray[np.uint8]], Numbers]:
        """At an owner: masked sums by column and bin, and the masks, ``(features, width, words)``; ``places`` are the bins that there are."""
        groups = self.groups(words)
        require(isinstance(sealed, list) and len(sealed) == len(groups), f"no {len(groups)} vectors of parts", "Pivot")
        features, width = columns.features, columns.width
        masks, made, n2 = np.zeros((features * width, words), np.uint64), [], None
        for group, each in zip(groups, sealed, strict=True):
            vector = SealedVector(self.cipher, public, np.asarray(each))
            require(len(vector) == columns.rows, f"{len(vector)} parts of {columns.rows} rows", "Pivot")
            n, n2 = vector.key.n, vector.key.square
            by_bin = [
                one for f in range(features) for one in vector.add_by_index(columns.bins[:, f].astype(np.int64), width)
            ]
            sums = [by_bin[place] for place in places]
            many = group.stop - group.start
            together, raw = self.per // many, []
            for begin in range(0, len(sums), together):
                joined, mask = gmp().mpz(1), 0
                chunk = sums[begin : begin + together]
                for one in reversed(chunk):
                    joined = gmp().powmod(joined, 1 << (many * self.width), n2) * one % n2
                drawn = _draw(secret, self.width - 1, many * len(chunk))
                for one in reversed(drawn):
                    mask = (mask << self.width) + one
                noise = gmp().powmod(secret.integer(int(n) - 1) + 1, n, n2)
                joined = joined * (1 + mask * n) % n2 * noise % n2
                raw.append(int(joined).to_bytes(self.cipher.key_bits // 4, "little"))
                low = np.array([one & 0xFFFFFFFFFFFFFFFF for one in drawn], np.uint64)
                masks[places[begin : begin + len(chunk)], group] = low.reshape(len(chunk), many)
            made.append(np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), -1))
        return made, masks.reshape(features, width, words)

    def open(self, owner: KeyOwner, sealed: Any, shape: tuple[int, int, int], places: NDArray[np.int64]) -> Numbers:
        """At the key's owner: masked sums as parts, in the shape ``(features, width, words)``."""
        features, width, words = shape
        groups = self.groups(words)
        require(isinstance(sealed, list) and len(sealed) == len(groups), f"no {len(groups)} vectors of sums", "Pivot")
        made = np.zeros((features * width, words), np.uint64)
        for group, each in zip(groups, sealed, strict=True):
            many = group.stop - group.start
            together, raw = self.per // many, np.asarray(each)
            expected = -(-len(places) // together)
            require(raw.ndim == 2 and len(raw) == expected, f"{raw.shape} in place of {expected} sums", "Pivot")
            found = []
            for plain in owner.decrypt(raw):
                for _ in range(together):
                    found.append([(plain >> (self.width * j)) & 0xFFFFFFFFFFFFFFFF for j in range(many)])
                    plain >>= self.width * many
            made[places, group] = np.array(found[: len(places)], np.uint64).reshape(-1, many)
        return made.reshape(features, width, words)


def _draw(secret: Secret, bits: int, count: int) -> list[int]:
    """Uniform whole numbers of so many bits."""
    size = -(-bits // 8)
    raw, cut = secret.bytes(size * count), (1 << bits) - 1
    return [int.from_bytes(raw[i * size : (i + 1) * size], "little") & cut for i in range(count)]


class SideTransfers:
    """Oblivious transfers of sides: every owner is a sender to each computing party beside itself.

    Attributes:
        senders: at an owner: computing party -> transfers.
        receivers: at a computing party: owner -> transfers.
    """

    def __init__(self, senders: dict[int, TransferSender], receivers: dict[int, TransferReceiver]) -> None:
        self.senders, self.receivers = senders, receivers

    @classmethod
    async def begin(cls, circle: Circle, peers: Peers, owners: Sequence[int]) -> SideTransfers:
        """Run the base transfers with all."""
        senders, receivers = {}, {}
        for owner in owners:
            for party in (0, 1):
                if party == owner or circle.me not in (party, owner):
                    continue
                channel = peers.channel(f"sides of party {owner}")
                if circle.me == owner:
                    senders[party] = await TransferSender.begin(circle.secret, channel, circle.names[party])
                else:
                    receivers[owner] = await TransferReceiver.begin(circle.secret, channel, circle.names[owner])
        return cls(senders, receivers)

    async def send(self, sides: NDArray[np.bool_], nodes: int, circle: Circle) -> dict[int, Flags]:
        """At an owner: hand out the bits of its candidates, ``(candidates, rows)``, for so many nodes; return the masks of each party, ``(nodes, rows)``."""
        words, masks = _packed(sides), {}
        for party, sender in self.senders.items():
            zero = circle.secret.uint64((nodes, *words.shape))
            await sender.send_words(zero.reshape(-1, words.shape[1]), (zero ^ words).reshape(-1, words.shape[1]))
            masks[party] = _unpacked(np.bitwise_xor.reduce(zero, axis=1), sides.shape[1])
        return masks

    async def receive(self, owner: int, chosen: Flags, rows: int) -> Flags:
        """At a computing party: its part of an owner's sides, ``(nodes, rows)``, masked; ``chosen`` is its part of the choice, ``(nodes, candidates)``."""
        words = -(-rows // 64)
        found = await self.receivers[owner].receive_words(chosen.ravel(), words)
        return _unpacked(np.bitwise_xor.reduce(found.reshape(*chosen.shape, words), axis=1), rows)


@dataclass(frozen=True)
class WordProducts:
    """Products of owners' bins and computing parties' words; see `atoll.vertical.trees.products`.

    Attributes:
        guests: at a computing party: owner -> its half.
        hosts: at an owner: computing party -> its half.
    """

    guests: dict[int, ProductGuest]
    hosts: dict[int, ProductHost]

    @classmethod
    async def begin(
        cls, circle: Circle, peers: Peers, own: OwnedColumns, known: Sequence[Any], owners: Sequence[int]
    ) -> WordProducts:
        """Prepare them with all."""
        made = cls({}, {})
        for owner in owners:
            for party in (0, 1):
                if party == owner or circle.me not in (party, owner):
                    continue
                channel = peers.channel(f"products of party {owner}")
                if circle.me == owner:
                    made.hosts[party] = await ProductHost.begin(own, circle.secret, channel, circle.names[party])
                else:
                    columns = HostColumns(known[owner][0], [0] * len(known[owner][0]))
                    half = await ProductGuest.begin(columns, own.rows, circle.secret, channel, circle.names[owner])
                    made.guests[owner] = half
        return made


def _packed(bits: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Rows of bits as words."""
    raw = np.packbits(bits, axis=1, bitorder="little")
    wide = np.zeros((len(bits), -(-bits.shape[1] // 64) * 8), np.uint8)
    wide[:, : raw.shape[1]] = raw
    return wide.view("<u8").astype(np.uint64, copy=False)


def _unpacked(words: NDArray[np.uint64], rows: int) -> NDArray[np.bool_]:
    raw = np.ascontiguousarray(words.astype("<u8", copy=False)).view(np.uint8)
    return np.unpackbits(raw, axis=1, count=rows, bitorder="little").astype(np.bool_)


async def share_sides(
    circle: Circle, candidates: SplitChoices, transfers: SideTransfers, chosen: Flags, mine: NDArray[np.bool_]
) -> Flags:
    """Whether rows go left at each node, in parts, ``(nodes, rows)``, where nobody sees what is chosen.

    Args:
        circle: the parties.
        candidates: all splits.
        transfers: of sides.
        chosen: a computing party's part of the choice, ``(nodes, candidates)``; another owner gives zeros.
        mine: the bits of this party's own candidates, ``(candidates, rows)``.
    """
    nodes, rows = len(chosen), mine.shape[1]
    owners = candidates.owners
    made = np.zeros((nodes, rows), np.bool_)
    for owner in owners:  # one after the other: each is a conversation of its own
        places = candidates.of_owner(owner)
        if circle.me == owner:
            if circle.computes:
                made ^= (chosen[:, places].astype(np.uint8) @ mine.astype(np.uint8) & 1).astype(np.bool_)
            for party, mask in (await transfers.send(mine, nodes, circle)).items():
                if circle.computes:
                    made ^= mask
                else:
                    await circle.send(1 - party, Bits.pack(mask.ravel()))
        elif circle.computes:
            made ^= await transfers.receive(owner, chosen[:, places], rows)
            if owner > 1:
                made ^= _read_bits(await circle.hear(owner), (nodes, rows), circle.names[owner])
    return made


def _read_bits(message: Any, shape: tuple[int, int], name: str) -> Flags:
    size = shape[0] * shape[1]
    require(isinstance(message, Bits) and message.shape == (size,), f"no {size} bits of {name!r}", "Pivot")
    return np.asarray(message.unpack()).reshape(shape)


class SharedOwners:
    """All owners of columns, at one of them; see `ColumnAnswers`. An owner that does not compute takes the same steps, and gets zeros.

    Args:
        circle: the parties.
        own: this party's columns.
        known: of each owner, how many cuts its columns have, and which of them rows lack.
        cipher: the length of the keys.
        keys: the public keys of the computing parties.
        key: a computing party's own key.
        by: a computing party's numbers.
        transfers: of sides, where nobody may see splits; ``None`` where all do.
        products: of bins and words, in place of ciphertexts.
    """

    def __init__(
        self, circle: Circle, own: OwnedColumns, known: Sequence[Any], cipher: Paillier, keys: Sequence[Tree],
        key: KeyOwner | None, by: SharedNumbers | None, transfers: SideTransfers | None, products: WordProducts | None = None,
    ) -> None:  # fmt: skip
        self.products = products
        self.circle, self.own, self.known, self.keys, self.key, self.by = circle, own, known, keys, key, by
        self.candidates = SplitChoices.of(known)
        self.owners = self.candidates.owners
        self.sealed, self.transfers = SealedWords(cipher, own.rows), transfers
        self.mine = self.candidates.sides(circle.me, own.bins, own.width - 1)
        self.chosen: list[int] = []

    def _bins(self, owner: int) -> tuple[int, NDArray[np.int64]]:
        """Bins of each of an owner's columns, with that of missing values, and which of all bins there are."""
        counts, holes = self.known[owner]
        width = max(counts, default=0) + 2
        found = [
            f * width + b
            for f, (count, hole) in enumerate(zip(counts, holes, strict=True))
            for b in (*range(count + 1), *((width - 1,) if hole else ()))
        ]
        return width, np.array(found, np.int64)

    async def left_sums(self, words: Numbers) -> Numbers:
        """Sums of what each candidate sends left, ``(nodes, candidates, words)``; of an owner that does not compute only the shape of ``words`` counts."""
        me, circle = self.circle.me, self.circle
        nodes, rows, each = words.shape
        flat, many = np.ascontiguousarray(words.transpose(1, 0, 2)).reshape(rows, -1), nodes * each
        others = [k for k in self.owners if k != me] if circle.computes else []
        if self.products is not None:
            for k in others:
                await circle.send(k, self.products.guests[k].seal(flat))
        elif self.key is not None and others:
            sealed = self.sealed.seal(self.key, flat)
            for k in others:
                await circle.send(k, sealed)
        answer, hear = (
            (self._answer_sums, self._hear_sums)
            if self.products is None
            else (self._answer_products, self._hear_products)
        )
        parts: dict[int, Numbers] = {}
        if me in self.owners:
            parts[me] = await answer(flat if circle.computes else None, many)
        for k in others:
            parts[k] = await hear(k, many)
        made = np.zeros((nodes, len(self.candidates), each), np.uint64)
        for k, bins in parts.items():
            left = self.candidates.left_sums(k, bins)
            made[:, self.candidates.of_owner(k)] = left.reshape(len(left), nodes, each).transpose(1, 0, 2)
        return made

    async def _answer_sums(self, flat: Numbers | None, words: int) -> Numbers:
        """At an owner: answer each computing party; return this party's own part, where it computes."""
        me, circle = self.circle.me, self.circle
        made = np.zeros((self.own.features, self.own.width, words), np.uint64)
        if flat is not None:
            made = add_by_bin(self.own.bins, flat, self.own.width)
        for party in (0, 1):
            if party == me:
                continue
            heard = await circle.hear(party)
            sums, masks = self.sealed.add_up(self.keys[party], heard, self.own, self._bins(me)[1], words, circle.secret)
            await circle.send(party, sums)
            if circle.computes:
                made = made - masks
            else:
                await circle.send(1 - party, masks)
        return made

    async def _hear_sums(self, owner: int, words: int) -> Numbers:
        """At a computing party: its part of another owner's sums."""
        width, places = self._bins(owner)
        # An owner that does not compute sends first what the guest asked for, and to the other the mask of it; then the same with the two exchanged.
        heard = [await self.circle.hear(owner) for _ in range(2 if owner > 1 else 1)]
        sums, *masks = heard if self.circle.me == 0 else heard[::-1]
        shape = (len(self.known[owner][0]), width, words)
        found = self.sealed.open(self.key, sums, shape, places)  # type: ignore[arg-type]
        for mask in masks:
            good = isinstance(mask, np.ndarray) and mask.shape == found.shape and mask.dtype == np.uint64
            require(good, f"no masks of {self.circle.names[owner]!r}", "Pivot")
            found = found - mask
        return found

    async def _answer_products(self, flat: Numbers | None, words: int) -> Numbers:
        """As `_answer_sums`, by products: an owner that does not compute gives the guest its parts of both, which hide behind the first host's."""
        circle, products = self.circle, self.products
        made = np.zeros((self.own.features, self.own.width, words), np.uint64)
        if flat is not None:
            made = add_by_bin(self.own.bins, flat, self.own.width)
        for party, half in products.hosts.items() if products else ():
            half.take_words(np.asarray(await circle.hear(party)), self.own, words)
            made += half.sum_parts(self.own, np.arange(self.own.rows))
        if not circle.computes:
            await circle.send(0, made)
        return made

    async def _hear_products(self, owner: int, words: int) -> Numbers:
        """As `_hear_sums`, by products."""
        width, half = self._bins(owner)[0], self.products.guests[owner]  # type: ignore[union-attr]
        made = half.sum_parts(np.arange(self.own.rows), width, words)
        if owner > 1 and self.circle.me == 0:
            heard = await self.circle.hear(owner)
            good = isinstance(heard, np.ndarray) and heard.shape == made.shape and heard.dtype == np.uint64
            require(good, f"no parts of sums of {self.circle.names[owner]!r}", "Pivot")
            made = made + heard
        return made

    async def send_left(self, chosen: Flags) -> Flags:
        """Whether rows go left at each node, in parts, ``(nodes, rows)``."""
        if self.transfers is not None:
            return await share_sides(self.circle, self.candidates, self.transfers, chosen, self.mine)
        circle, me = self.circle, self.circle.me
        if self.by is not None:
            shown = await self.by.show_bits(chosen)
            at = np.array([int(np.argmax(row)) if row.any() else -1 for row in shown], np.int64)
            for k in range(2, len(circle.names)) if me == 0 else ():
                await circle.send(k, at)
        else:
            at = np.asarray(await circle.hear(0))
            good = at.shape == (len(chosen),) and at.dtype == np.int64 and bool((at < len(self.candidates)).all())
            require(good, "no splits of the guest", "Pivot")
        self.chosen += at.tolist()
        made = np.zeros((len(at), self.own.rows), np.bool_)
        places = self.candidates.of_owner(me)
        for node, one in enumerate(at.tolist()):
            owner = int(self.candidates.owner[one]) if one >= 0 else -1
            if owner == me:
                made[node] = self.mine[int(np.searchsorted(places, one))]
        return await give_bits(circle, made, [self._owner_of(one) for one in at.tolist()])

    def _owner_of(self, candidate: int) -> int:
        return int(self.candidates.owner[candidate]) if candidate >= 0 else -1


async def give_bits(circle: Circle, mine: NDArray[np.bool_], owners: Sequence[int]) -> Flags:
    """Parts of bits of which each row belongs to one owner, ``(rows, bits)``: an owner that does not compute splits its own between the two that do."""
    made, size = mine.copy(), mine.shape[1]
    for k in range(2, len(circle.names)):
        at = [row for row, owner in enumerate(owners) if owner == k]
        if not at:
            continue
        if circle.me == k:
            mask = (circle.secret.uint64((len(at), size)) & np.uint64(1)).astype(np.bool_)
            await circle.send(0, Bits.pack((mine[at] ^ mask).ravel()))
            await circle.send(1, Bits.pack(mask.ravel()))
        elif circle.computes:
            made[at] = _read_bits(await circle.hear(k), (len(at), size), circle.names[k])
    return made
