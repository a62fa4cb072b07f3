"""Sums of gradients as a matrix product that nobody computes alone: gradients at the guest, which bin a row has at a host.

The sums of a host's column are ``B^T P``: ``P`` are the pairs of gradient and second derivative, ``(rows, 2)``, ``B`` has a 1 in each row, at its bin. For each row and column
the parties hold parts ``a`` and ``b`` of the row of the product, ``a_j + b_j = [j = bin] pair`` modulo 2^64, and so add up parts of any rows.

Once a training, each row and column gets a tree of seeds (Goldreich, Goldwasser, Micali 1986), a leaf a bin. The guest knows its root; the host gets, in an oblivious transfer a level, the exclusive
or of all seeds on the side that its bin is not on, and so all leaves but that of its bin (Schoppmann et al. 2019, "Distributed Vector-OLE", section 3.2). For each boosted tree a leaf
gives two words ``p_j``, which the host lacks for its bin. The guest's parts are ``p_j``; it sends ``c = sum_j p_j - pair``, uniform to the host, whose parts are ``-p_j``, and at its bin
``sum_{j != bin} p_j - c``. So a row and column cost 16 bytes a boosted tree. A host answers with its parts of a sum, which with the guest's give the sum and no more.

Seeds double by ``S_k(x) = P_k(x) ^ x``, words are ``P(x ^ t) ^ x ^ t`` for the t-th boosted tree, with AES under public keys as ``P`` (Guo, Katz, Wang, Yu 2020, section 7.2: MMO). Both parties follow
the protocol.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from timeit import timeit
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.secure.oblivious import TransferReceiver, TransferSender
from atoll.secure.oblivious.extension import encrypt_blocks

from ..model import require
from .boosting import HostColumns
from .columns import OwnedColumns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel
    from atoll.core.requests.island import Secret

__all__ = ["ProductGuest", "ProductHost", "predict_cost", "predict_words"]

Words = Any
"""Blocks of 128 bits as two words of 64, ``(..., 2)``."""
_SIDES = (b"atoll seeds left", b"atoll seeds rght")
_LEAVES = b"atoll seeds leaf"
"""Public keys of the permutations: nothing-up-my-sleeve numbers."""
_ROWS = 512
"""Rows whose trees of seeds grow at once: they stay in the processor's cache."""
_KEPT = 1 << 28
"""Bytes of leaves that a party keeps; of more it grows them again when it needs them."""


def _hash(key: bytes, blocks: Words) -> Words:
    raw = np.ascontiguousarray(blocks, dtype="<u8")
    found = encrypt_blocks(key, raw.view(np.uint8).reshape(-1, 16)).view("<u8").reshape(raw.shape) ^ raw
    return found.astype(np.uint64, copy=False)


def _sizes(leaves: int) -> list[int]:
    """Seeds on each level of a tree with so many leaves, the root first."""
    found = [leaves]
    while found[0] > 1:
        found.insert(0, -(-found[0] // 2))
    return found


def _double(level: Words, size: int) -> Words:
    """The first ``size`` children of seeds ``(rows, seeds, 2)``."""
    made = np.stack([_hash(key, level) for key in _SIDES], axis=2)
    return made.reshape(len(level), -1, 2)[:, :size]


def _sides(level: Words) -> Words:
    """The exclusive or of the left children and of the right ones, ``(rows, 2, 2)``."""
    return np.stack([np.bitwise_xor.reduce(level[:, side::2], axis=1) for side in (0, 1)], axis=1)


def grow_leaves(roots: Words, leaves: int) -> tuple[Words, Words]:
    """Leaves of trees of seeds, ``(rows, leaves, 2)``, and the exclusive or of each side of each level, ``(rows, levels, 2, 2)``."""
    level, sides = roots[:, None], []
    for size in _sizes(leaves)[1:]:
        level = _double(level, size)
        sides.append(_sides(level))
    return level, np.stack(sides, axis=1)


def fill_leaves(heard: Words, bins: NDArray[np.int64], leaves: int) -> Words:
    """All leaves but that of each row's bin, which is 0, from the exclusive or of the other side on each level, ``(rows, levels, 2)``."""
    sizes, each = _sizes(leaves)[1:], np.arange(len(bins))
    level = np.zeros((len(bins), 1, 2), np.uint64)
    for depth, size in enumerate(sizes):
        level = _double(level, size)
        hole = bins >> (len(sizes) - 1 - depth)
        for unknown in (hole, hole ^ 1):
            there = unknown < size
            level[each[there], unknown[there]] = 0
        other = hole ^ 1
        there = other < size
        level[each[there], other[there]] = (heard[:, depth] ^ _sides(level)[each, other & 1])[there]
    return level


def _other_sides(bins: NDArray[np.int64], leaves: int) -> NDArray[np.bool_]:
    """On which side of each level a row's bin is not, ``(rows, levels)``: whether it is the right one."""
    levels = len(_sizes(leaves)) - 1
    return np.asarray((bins[:, None] >> np.arange(levels)[::-1]) & 1 == 0)


def _leaf_of(columns: OwnedColumns, feature: int) -> NDArray[np.int64]:
    """The leaf of each row: its bin, and behind all of them that of the rows without the value."""
    bins = columns.bins[:, feature].astype(np.int64)
    return np.where(bins == columns.width - 1, columns.counts[feature] + 1, bins)


@dataclass
class _Leaves:
    """The leaves of all rows and columns at one party.

    Attributes:
        sources: what the leaves of each column follow from: roots, or what was heard.
        leaves: how many each column has.
        bins: the leaf that this party lacks, of each column; none at the guest.
        tree: the number of the boosted tree.
    """

    sources: list[Words]
    leaves: list[int]
    bins: list[NDArray[np.int64]] = field(default_factory=list)
    tree: int = -1
    _kept: dict[int, Words] = field(default_factory=dict, repr=False)

    def _grow(self, feature: int, rows: Any) -> Words:
        if feature in self._kept:
            return self._kept[feature][rows]
        source = self.sources[feature][rows]
        if not self.bins:
            return grow_leaves(source, self.leaves[feature])[0]
        return fill_leaves(source, self.bins[feature][rows], self.leaves[feature])

    def keep(self) -> None:
        """Keep the leaves, if they are few."""
        if 16 * sum(len(source) * many for source, many in zip(self.sources, self.leaves, strict=True)) <= _KEPT:
            made = {
                f: np.concatenate([self._grow(f, rows) for rows in _chunks(np.arange(len(source)))])
                for f, source in enumerate(self.sources)
            }
            self._kept.update(made)

    def pads(self, feature: int, rows: NDArray[Any], count: int = 2) -> Iterator[tuple[NDArray[Any], Words]]:
        """So many words of each leaf for this boosted tree, ``(rows, leaves, count)``, some rows after the other; 0 for the leaf that this party lacks."""
        for mine in _chunks(rows):
            seeds, blocks = self._grow(feature, mine), -(-count // 2)
            found = np.repeat(seeds[:, :, None], blocks, axis=2)
            found[..., 0] ^= np.uint64(self.tree)
            found[..., 1] ^= np.arange(blocks, dtype=np.uint64)
            words = _hash(_LEAVES, found).reshape(*seeds.shape[:2], -1)[..., :count]
            if self.bins:
                words[np.arange(len(mine)), self.bins[feature][mine]] = 0
            yield mine, words


def _chunks(rows: NDArray[Any]) -> list[NDArray[Any]]:
    return [rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS)]


def _by_bin(sums: Sequence[Words], width: int, count: int = 2) -> Words:
    """Sums by leaf of each column as sums by bin, ``(features, width, count)``: the last bin is that of the rows without the value."""
    made = np.zeros((len(sums), width, count), np.uint64)
    for f, each in enumerate(sums):
        made[f, : len(each) - 1], made[f, -1] = each[:-1], each[-1]
    return made


class ProductGuest:
    """The guest's half, with one host.

    Args:
        known: its roots.
    """

    def __init__(self, known: _Leaves) -> None:
        self._known = known

    @classmethod
    async def begin(
        cls, columns: HostColumns, rows: int, secret: Secret, channel: PeerChannel, host: str
    ) -> ProductGuest:
        """Draw the roots, and let the host have all leaves but one of each."""
        sender = await TransferSender.begin(secret, channel, host)
        leaves = [count + 2 for count in columns.counts]
        roots = [secret.uint64((rows, 2)) for _ in leaves]
        for mine, many in zip(roots, leaves, strict=True):
            sides = np.concatenate([grow_leaves(mine[some], many)[1] for some in _chunks(np.arange(rows))])
            await sender.send_words(sides[:, :, 0].reshape(-1, 2), sides[:, :, 1].reshape(-1, 2))
        known = _Leaves(roots, leaves)
        known.keep()
        return cls(known)

    def seal(self, pairs: NDArray[np.int64]) -> Any:
        """What hides the gradients of all rows, ``(rows, features, 2)``; or other words, as many of each row."""
        self._known.tree += 1
        count = pairs.shape[1]
        made = np.empty((len(pairs), len(self._known.leaves), count), np.uint64)
        for f in range(made.shape[1]):
            for rows, words in self._known.pads(f, np.arange(len(pairs)), count):
                made[rows, f] = words.sum(axis=1, dtype=np.uint64) - pairs[rows].view(np.uint64)
        return made

    def sum_parts(self, rows: NDArray[Any], width: int, count: int = 2) -> Words:
        """This party's parts of the sums over some rows, ``(features, width, count)``."""
        return _sum_pads(self._known, rows, width, count)

    def open(
        self, sums: Any, columns: HostColumns, totals: NDArray[np.int64], rows: Sequence[NDArray[np.int32]]
    ) -> NDArray[np.int64]:
        """A host's sums, ``(nodes, features, width, 2)``, from its parts of them.

        Raises:
            MessageError: they are not parts of sums of these rows: those of a column do not add up to the totals.
        """
        found, shape = np.asarray(sums), (len(totals), len(columns.counts), columns.width, 2)
        good = found.shape == shape and found.dtype == np.uint64
        require(good, f"parts of sums of shape {found.shape}, expected {shape}")
        made = np.stack([each + self.sum_parts(mine, columns.width) for each, mine in zip(found, rows, strict=True)])  # fmt: skip
        made = made.view(np.int64)
        require(bool((made.sum(axis=2) == totals[:, None]).all()), "parts of sums that do not add up to those of the rows")  # fmt: skip
        return made


def _sum_pads(known: _Leaves, rows: NDArray[Any], width: int, count: int) -> Words:
    sums = [np.zeros((many, count), np.uint64) for many in known.leaves]
    for f, mine in enumerate(sums):
        for _, words in known.pads(f, rows, count):
            mine += words.sum(axis=0, dtype=np.uint64)
    return _by_bin(sums, width, count)


class ProductHost:
    """A host's half.

    Args:
        known: what it heard.
    """

    def __init__(self, known: _Leaves) -> None:
        self._known = known
        self._hidden: Any = None

    @classmethod
    async def begin(cls, columns: OwnedColumns, secret: Secret, channel: PeerChannel, guest: str) -> ProductHost:
        """Get all leaves but those of the rows' own bins."""
        receiver = await TransferReceiver.begin(secret, channel, guest)
        leaves, heard, bins = [count + 2 for count in columns.counts], [], []
        for f, many in enumerate(leaves):
            bins.append(_leaf_of(columns, f))
            sides = _other_sides(bins[f], many)
            heard.append((await receiver.receive_words(sides.ravel(), 2)).reshape(*sides.shape, 2))
        known = _Leaves(heard, leaves, bins)
        known.keep()
        return cls(known)

    def take(self, sealed: Any, columns: OwnedColumns, start: int, *, last: bool) -> int:
        """Take what hides the gradients of all rows."""
        found = np.asarray(sealed)
        require(last and start == 0, "gradients in batches")
        self.take_words(found, columns, 2)
        return len(found)

    def take_words(self, found: Any, columns: OwnedColumns, count: int) -> None:
        """Take what hides so many words of each row."""
        good = found.shape == (columns.rows, columns.features, count) and found.dtype == np.uint64
        require(good, f"gradients of shape {found.shape} for {columns.rows} rows and {columns.features} columns")
        self._known.tree += 1
        self._hidden = found

    def sums(self, columns: OwnedColumns, nodes: Sequence[int]) -> Any:
        """This party's parts of the sums, ``(nodes, features, width, 2)``."""
        require(self._hidden is not None, "sums were asked for before gradients were sent")
        made = [self.sum_parts(columns, columns.rows_at(node)) for node in nodes]
        return np.stack(made) if made else np.zeros((0, columns.features, columns.width, 2), np.uint64)

    def sum_parts(self, columns: OwnedColumns, rows: NDArray[Any]) -> Words:
        """This party's parts of the sums over some rows, ``(features, width, words)``."""
        count = self._hidden.shape[2]
        parts = [np.zeros((many, count), np.uint64) for many in self._known.leaves]
        for f, mine in enumerate(parts):
            for some, words in self._known.pads(f, rows, count):
                mine -= words.sum(axis=0, dtype=np.uint64)
                np.add.at(mine, self._known.bins[f][some], words.sum(axis=1, dtype=np.uint64) - self._hidden[some, f])
        return _by_bin(parts, columns.width, count)


def predict_cost(rows: int, columns: Sequence[int], bins: int, trees: int, depth: int) -> dict[str, float]:
    """The processor ``seconds`` of all parties and the ``bytes`` between them that the products take, before anyone is contacted.

    It counts blocks of AES, and times some on this machine. Once a training, a row and column take as long as about 23 blocks a leaf, at both parties together, and 48 bytes and 60 blocks a
    level of its tree of seeds. A boosted tree takes the guest a block a leaf for each row and column, and each party one more a level, at most half of them below the root.

    Args:
        rows: training rows.
        columns: how many columns each host has.
        bins: bins of a column.
        trees: boosted trees in all.
        depth: levels of splits.
    """
    leaves, cells = bins + 1, rows * sum(columns)
    begun = predict_words(cells, bins, 0)
    blocks = trees * cells * leaves * (1 + 2 * (1 + (depth - 1) / 2))
    sums = 2 ** (depth - 1) * sum(columns) * (leaves + 1)
    sent = trees * 16 * (cells + sums) + 2 * len(columns) * 128 * 32
    return {"seconds": begun["seconds"] + blocks * _time_block(), "bytes": begun["bytes"] + sent}


def predict_words(cells: int, bins: int, words: int) -> dict[str, float]:
    """``seconds`` and ``bytes`` of the beginning, and of sums over all rows of so many words of each.

    Args:
        cells: rows times columns, for each party that has words.
        bins: bins of a column.
        words: words of a row, in all sums.
    """
    leaves = bins + 1
    levels = len(_sizes(leaves)) - 1
    blocks = cells * (23 * leaves + 60 * levels) + cells * leaves * 1.5 * words
    return {"seconds": blocks * _time_block(), "bytes": float(cells * (48 * levels + 8 * words))}


@lru_cache(maxsize=1)
def _time_block() -> float:
    """Seconds of a block of AES and of what is added to it, on this machine: the least of three tries."""
    blocks = np.zeros((1 << 13, 2), np.uint64)
    spent = (timeit(lambda: _hash(_LEAVES, blocks).sum(axis=0), number=16, timer=time.process_time) for _ in range(3))
    return min(spent) / (16 << 13)
