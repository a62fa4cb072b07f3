"""The talk of boosted trees over columns at several owners: the guest's role, and the hosts'.

The guest has the labels. For each tree it sends every row's gradient and second derivative, sealed. For each level it names leaves; an owner replies with sums by
leaf, column and bin. The guest finds the best splits (`atoll.trees.histogram.Growth`). An owner whose column splits a leaf keeps the split and says which of the
leaf's rows go left; the guest passes this on to the other owners. One tree is one step of the session: after a crash the finished trees stay.

Cheng et al. 2021, "SecureBoost: A Lossless Federated Learning Framework", algorithms 1 and 2. Here sums of bins are exact whole numbers, the smaller of two siblings is
asked for and the larger follows by subtraction, and all ties go to the first column, the guest's first, so that the trees are those of all columns in one place.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.errors import DataError, MessageError
from atoll.core.message import Bits
from atoll.trees.histogram import TreeLimits
from atoll.trees.objectives import SQUARED, TreeLoss

from ..model import require
from .categories import CategoryGrowth, pack_rights, read_rights
from .columns import OwnedColumns, Splits
from .joint import GuestTrees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers

__all__ = [
    "Boosting",
    "GradientUnits",
    "GuestSums",
    "HostColumns",
    "HostRole",
    "HostSums",
    "ColumnOwners",
    "PlainSums",
    "fits",
    "grow_round",
    "grow_tree",
    "require",
    "unpack_sides",
]

FRACTION = 24
"""Bits of a gradient's fraction."""
_ROOM = 3
"""Residuals of a regression may grow to ``2^3`` times the largest one at the beginning before sums could overflow."""


@dataclass(frozen=True)
class GradientUnits:
    """Gradients as whole numbers: multiples of ``2^-24``, for a regression times the power of two above the largest distance of a label to the mean.

    Attributes:
        g: the unit of gradients.
        h: the unit of second derivatives; 1 for a regression, where all of them are 1.
        bits: most bits of one row's gradient, without its sign, and of its second derivative.
    """

    g: float
    h: float
    bits: tuple[int, int]

    @classmethod
    def of(cls, objective: TreeLoss, targets: NDArray[np.float64], base: NDArray[np.float64]) -> GradientUnits:
        """The units for some labels, and margins before the first tree."""
        if objective.name != SQUARED:
            return cls(2.0**-FRACTION, 2.0**-FRACTION, (FRACTION + 1, FRACTION + 1))
        scale = 2.0 ** (np.floor(np.log2(np.abs(targets - base[0]).max())) + 1)
        return cls(float(scale * 2.0**-FRACTION), 1.0, (FRACTION + _ROOM, 1))

    def whole(self, g: NDArray[np.float32], h: NDArray[np.float32]) -> NDArray[np.int64]:
        """``(rows, 2)`` whole numbers.

        Raises:
            DataError: one is too large, so that sums may overflow.
        """
        pairs = np.stack([np.rint(g / np.float64(self.g)), np.rint(h / np.float64(self.h))], axis=1).astype(np.int64)
        if (np.abs(pairs) >> np.array(self.bits)).any():
            raise DataError(
                f"a gradient of {float(np.abs(g).max()):g}, more than {1 << _ROOM} times the largest distance of a label to their mean",
                where="SecureBoost",
                remedy="lower rate: the trees overshoot",
            )
        return pairs

    def real(self, sums: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sums of gradients from sums of whole numbers, exactly."""
        return np.asarray(sums * np.array([self.g, self.h]))


@dataclass(frozen=True)
class HostColumns:
    """What the guest knows of a host's columns.

    Attributes:
        counts: how many cuts each has.
        fullest: which bin of each has the most rows; that of the rows without the value is behind all others.
        groups: of each input the number of its column of categories, -1 for a column of numbers; empty if all are numbers.
    """

    counts: Sequence[int]
    fullest: Sequence[int]
    groups: Sequence[int] = ()

    @classmethod
    def told_by(cls, own: OwnedColumns) -> HostColumns:
        """What an owner tells of its columns."""
        return cls(own.counts, own.fullest, own.groups.tolist() if (own.groups >= 0).any() else ())

    @classmethod
    def of(cls, message: Any) -> HostColumns:
        """What a host told.

        Raises:
            MessageError: it told something else.
        """
        told = isinstance(message, Mapping) and {"counts", "fullest"} <= set(message)
        require(told, "no numbers of cuts")
        counts, fullest = (np.asarray(message[name]) for name in ("counts", "fullest"))
        require(
            counts.ndim == 1 and counts.shape == fullest.shape and counts.dtype.kind == fullest.dtype.kind == "i",
            "no numbers of cuts",
        )
        require(bool(((counts >= 0) & (counts < 256)).all()), "numbers of cuts that are not 0 to 255")
        groups = np.asarray(message.get("groups", np.full(len(counts), -1)))
        coded = groups.shape == counts.shape and groups.dtype.kind == "i"
        require(coded and bool((counts[groups >= 0] <= 1).all()), "no numbers of the columns of categories")
        made = cls(*(list(map(int, each.tolist())) for each in (counts, fullest, groups)))
        good = all(0 <= b <= n or b == made.width - 1 for n, b in zip(made.counts, made.fullest, strict=True))
        require(good, "a fullest bin that there is not")
        return made

    @property
    def width(self) -> int:
        """Bins of each column, with room for the longest, and that of the rows without the value."""
        return max(self.counts, default=0) + 2

    def packed(self) -> dict[str, Any]:
        """As a message; the inverse of `of`."""
        coded = {"groups": np.array(self.groups, np.int64)} if any(one >= 0 for one in self.groups) else {}
        return {"counts": np.array(self.counts, np.int64), "fullest": np.array(self.fullest, np.int64), **coded}

    def inputs(self, first: int) -> list[list[int]]:
        """The inputs of each column of categories, where this owner's begin with ``first``."""
        names = np.array(self.groups, np.int64)
        return [(first + np.flatnonzero(names == one)).tolist() for one in np.unique(names[names >= 0]).tolist()]


class GuestSums(Protocol):
    """The guest's half of sealed sums."""

    def seal(self, pairs: NDArray[np.int64]) -> Any:
        """Gradients of all rows for the hosts, ``(rows, 2)``."""
        ...

    def open(
        self, sums: Any, columns: HostColumns, totals: NDArray[np.int64], rows: Sequence[NDArray[np.int32]]
    ) -> NDArray[np.int64]:
        """A host's sums, ``(nodes, features, width, 2)``.

        Args:
            sums: what the host sent.
            columns: what is known of its columns.
            totals: sums over all rows of each node, ``(nodes, 2)``.
            rows: the rows of each node.
        """
        ...


class HostSums(Protocol):
    """A host's half of sealed sums."""

    def take(self, sealed: Any, columns: OwnedColumns, start: int, *, last: bool) -> int:
        """Take the gradients of rows from ``start``; return how many rows are there then.

        Args:
            sealed: their gradients.
            columns: this party's columns.
            start: the first row; 0 begins a tree.
            last: whether no others will come.
        """
        ...

    def sums(self, columns: OwnedColumns, nodes: Sequence[int]) -> Any:
        """Sums by node, column and bin, for the guest."""
        ...


def fits(found: int, left: int, *, last: bool) -> bool:
    """Whether so many rows of those that are missing may come now."""
    return found == left if last else 0 < found < left


class PlainSums:
    """Both halves without encryption: every host sees all gradients, and so all labels."""

    pairs: Any = None

    def seal(self, pairs: NDArray[np.int64]) -> Any:
        """The gradients as they are."""
        return pairs

    def open(
        self, sums: Any, columns: HostColumns, totals: NDArray[np.int64], rows: Sequence[NDArray[np.int32]]
    ) -> NDArray[np.int64]:
        """The sums as they are."""
        del rows
        found, shape = np.asarray(sums), (len(totals), len(columns.counts), columns.width, 2)
        require(found.shape == shape and found.dtype == np.int64, f"sums of shape {found.shape}, expected {shape}")
        return found

    def take(self, sealed: Any, columns: OwnedColumns, start: int, *, last: bool) -> int:
        """Keep the gradients."""
        found, left = np.asarray(sealed), columns.rows - start
        good = found.ndim == 2 and found.shape[1] == 2 and found.dtype == np.int64
        require(good and fits(len(found), left, last=last), f"gradients of shape {found.shape} for {left} rows")
        if start == 0:
            self.pairs = np.zeros((columns.rows, 2), np.float32)
        self.pairs[start : start + len(found)] = found
        return start + len(found)

    def sums(self, columns: OwnedColumns, nodes: Sequence[int]) -> Any:
        """Plain sums."""
        require(self.pairs is not None, "sums were asked for before gradients were sent")
        return columns.sums(self.pairs, nodes)


# The guest.


@dataclass(frozen=True)
class _Tried:
    """Splits that hosts have made before it was known whether they are the best.

    Attributes:
        guess: the tree with them.
        nodes: the leaves that they split.
        rows: of the leaves whose sums were asked for.
    """

    guess: CategoryGrowth
    nodes: list[int]
    rows: list[NDArray[np.int32]]


class ColumnOwners:
    """All owners of columns as the guest sees them: itself first, then the hosts in their order.

    Args:
        own: the guest's columns.
        peers: the hosts of the session; ``None`` without any.
        hosts: what is known of each host's columns, in their order.
        ciphers: the guest's half of the sums with each host; hosts with the same half get the same gradients.
        batch: rows whose gradients travel in one message; 0 sends all in one.
        optimistic: whether hosts go on with the guest's best splits while their own are compared.
        one_hot: columns with fewer categories split one off, others are parted.
    """

    def __init__(
        self, own: OwnedColumns, peers: Peers | None, hosts: Mapping[str, HostColumns], ciphers: Mapping[str, GuestSums],
        batch: int = 0, optimistic: bool = False, one_hot: int = 4,
    ) -> None:  # fmt: skip
        self._one_hot = one_hot
        self.own, self.peers, self.ciphers, self.hosts, self.batch = own, peers, ciphers, list(hosts), batch
        self.optimistic, self.kept, self.taken_back = optimistic and bool(hosts), 0, 0
        self._tried: _Tried | None = None
        self._ahead: dict[int, list[NDArray[np.int64]]] = {}
        self._known = [HostColumns.told_by(own), *hosts.values()]
        self.first = np.cumsum([0, *(len(each.counts) for each in self._known)])
        self._whole: Any = None
        self._pairs: Any = None

    def growth(self, limits: TreeLimits, group: int) -> CategoryGrowth:
        """A tree that begins, with as many made-up cuts as each column has: the guest knows no others of a host's."""
        cuts = [np.arange(n, dtype=np.float32) for each in self._known for n in each.counts]
        coded = [mine for k, each in enumerate(self._known) for mine in each.inputs(int(self.first[k]))]
        return CategoryGrowth(limits, cuts, group, missing=True, groups=coded, one_hot=self._one_hot)

    def owner_of(self, feature: int) -> tuple[int, int]:
        """The owner of a column, 0 for the guest, and the column's number there."""
        owner = int(np.searchsorted(self.first, feature, side="right")) - 1
        return owner, feature - int(self.first[owner])

    async def begin(self, pairs: NDArray[np.int64]) -> None:
        """Begin a tree on these gradients."""
        self._whole, self._pairs = pairs, pairs.astype(np.float32)
        self.own.begin()
        if not self.hosts:
            return
        size = self.batch or len(pairs)
        for start in range(0, len(pairs), size):  # hosts add up the rows of a batch while the next one is sealed
            more = start + size < len(pairs)
            for cipher, hosts in self._sharing:
                message = {"do": "more" if start else "begin", "sealed": cipher.seal(pairs[start : start + size])}
                await self._tell(hosts, {**message, "last": False} if more else message)

    @property
    def _sharing(self) -> list[tuple[GuestSums, list[str]]]:
        """Each half of the sums, and the hosts that share it."""
        found: dict[int, tuple[GuestSums, list[str]]] = {}
        for host in self.hosts:
            found.setdefault(id(self.ciphers[host]), (self.ciphers[host], []))[1].append(host)
        return list(found.values())

    async def end(self) -> None:
        """End a round."""
        if self.hosts:
            await self._tell(self.hosts, {"do": "grown"})

    async def sums(self, growth: CategoryGrowth, units: GradientUnits) -> NDArray[np.int64]:
        """Sums over all columns of the leaves that are asked for, ``(nodes, features, width, 2)``."""
        nodes, ahead = growth.asked, self._ahead
        asked, self._ahead = [node for node in nodes if node not in ahead], {}
        if self.hosts and asked:
            await self._tell(self.hosts, {"do": "sum", "nodes": np.array(asked, np.int64)})
        own = self.own.sums(self._pairs, nodes)
        if self.optimistic and growth.depth + 1 < growth.limits.max_depth:
            self._tried = await self._try_splits(growth, units, own)
        heard = await self._hear_sums([self.own.rows_at(node) for node in asked]) if asked else []
        fresh = {node: [each[i] for each in heard] for i, node in enumerate(asked)} | ahead
        return np.stack([self._join([own[i], *fresh[node]]) for i, node in enumerate(nodes)])

    async def _hear_sums(self, rows: Sequence[NDArray[np.int32]]) -> list[NDArray[np.int64]]:
        """Each host's sums of the leaves with these rows."""
        totals, found = np.stack([self._whole[mine].sum(axis=0) for mine in rows]), []
        for k, host in enumerate(self.hosts, 1):
            heard = await self._hear(host)
            require(isinstance(heard, Mapping) and "sums" in heard, f"no sums of {host!r}")
            found.append(self.ciphers[host].open(heard["sums"], self._known[k], totals, rows))
        return found

    def _join(self, parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """A leaf's sums at all owners side by side, ``(features, width, 2)``; nothing where an owner's are left out."""
        made = np.zeros((int(self.first[-1]), max(each.width for each in self._known), 2), np.int64)
        for k, sums in enumerate(parts):
            mine = made[self.first[k] : self.first[k + 1]]
            mine[:, : sums.shape[1] - 1], mine[:, -1] = sums[:, :-1], sums[:, -1]
        return made

    async def _try_splits(self, growth: CategoryGrowth, units: GradientUnits, own: NDArray[np.int64]) -> _Tried | None:
        """Let hosts go on with the splits that the guest alone would make, before their sums are there (VF2Boost, section 4.2)."""
        guess, hosts = copy.deepcopy(growth), slice(int(self.first[1]), None)
        guess.without_sums(hosts)
        guess.take(units.real(np.stack([self._join([each]) for each in own])))
        nodes = [node for node in range(len(growth.feature)) if guess.left[node] >= 0 and growth.left[node] < 0]
        if not nodes or not guess.asked:
            return None
        sides = [self._own_side(guess, n) for n in nodes]
        await self._tell(self.hosts, {"do": "try", **_places(guess, nodes), "left": Bits.pack(np.concatenate(sides))})
        await self._tell(self.hosts, {"do": "sum", "nodes": np.array(guess.asked, np.int64)})
        rows: dict[int, NDArray[np.int32]] = {}
        for node, left in zip(nodes, sides, strict=True):
            here = self.own.rows_at(node)
            rows |= {guess.left[node]: here[left], guess.left[node] + 1: here[~left]}
        return _Tried(guess, nodes, [rows[node] for node in guess.asked])

    async def _settle(self, growth: CategoryGrowth, nodes: Sequence[int]) -> bool:
        """Keep what was tried where it is right, else take it back; whether hosts have made all splits already. Sums of right splits count anyway."""
        tried, self._tried = self._tried, None
        if tried is None:
            return False
        heard, guess = await self._hear_sums(tried.rows), tried.guess
        places = {node: i for i, node in enumerate(guess.asked)}
        names = ("feature", "cut", "default_left")
        right = [n for n in tried.nodes if all(getattr(growth, each)[n] == getattr(guess, each)[n] for each in names)]
        for node in right:
            for side in (0, 1):
                if guess.left[node] + side in places and growth.left[node] + side in growth.asked:
                    at = places[guess.left[node] + side]
                    self._ahead[growth.left[node] + side] = [each[at] for each in heard]
        same = right == list(nodes) == tried.nodes and all(growth.left[n] == guess.left[n] for n in nodes)
        self.kept, self.taken_back = self.kept + len(right), self.taken_back + len(tried.nodes) - len(right)
        await self._tell(self.hosts, {"do": "keep" if same else "undo"})
        return same

    async def split(self, growth: CategoryGrowth, nodes: Sequence[int]) -> None:
        """Let the owners split leaves, and all others follow."""
        if await self._settle(growth, nodes):
            for node in nodes:
                self.own.move(node, growth.left[node], self._own_side(growth, node))
            return
        sides, asked = await self._ask_sides(growth, nodes)
        for k, host in enumerate(self.hosts, 1):
            others = [node for node in nodes if node not in asked.get(k, ())]
            if others:
                packed = Bits.pack(np.concatenate([sides[node] for node in others]))
                await self._tell([host], {"do": "move", **_places(growth, others), "left": packed})
        for node in nodes:
            self.own.move(node, growth.left[node], sides[node])

    def _own_side(self, growth: CategoryGrowth, node: int) -> NDArray[np.bool_]:
        """Which rows of a leaf go left at one of the guest's own splits."""
        split = growth.feature[node], growth.cut[node], growth.default_left[node]
        return self.own.goes_left(node, *split, growth.right.get(node, ()))

    async def _ask_sides(
        self, growth: CategoryGrowth, nodes: Sequence[int]
    ) -> tuple[dict[int, NDArray[np.bool_]], dict[int, list[int]]]:
        """Which rows of each leaf go left, and each owner's leaves: owners of the splits make them, and say so."""
        sides: dict[int, NDArray[np.bool_]] = {}
        asked: dict[int, list[int]] = {}
        for node in nodes:
            owner, _ = self.owner_of(growth.feature[node])
            asked.setdefault(owner, []).append(node)
            if owner == 0:
                sides[node] = self._own_side(growth, node)
        for k, host in enumerate(self.hosts, 1):
            if k in asked:
                columns = {"feature": np.int32, "cut": np.int32, "default_left": np.bool_}
                what: dict[str, Any] = {
                    name: np.array([getattr(growth, name)[n] for n in asked[k]], kind) for name, kind in columns.items()
                }
                what["feature"] -= np.int32(self.first[k])
                first = int(self.first[k])
                what |= pack_rights([[one - first for one in growth.right.get(n, ())] for n in asked[k]])
                await self._tell([host], {"do": "split", **_places(growth, asked[k]), **what})
        for k, host in enumerate(self.hosts, 1):
            if k in asked:
                heard = await self._hear(host)
                left = heard.get("left") if isinstance(heard, Mapping) else None
                sides |= dict(zip(asked[k], unpack_sides(left, self.own, asked[k]), strict=True))
        return sides, asked

    async def _tell(self, hosts: Sequence[str], message: dict[str, Any]) -> None:
        if self.peers is not None:
            await self.peers.broadcast(message, hosts)

    async def _hear(self, host: str) -> Any:
        return None if self.peers is None else await self.peers.recv(host)


def _places(growth: CategoryGrowth, nodes: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    return {"nodes": np.array(nodes, np.int64), "children": np.array([growth.left[n] for n in nodes], np.int64)}


def unpack_sides(packed: Any, columns: OwnedColumns, nodes: Sequence[int]) -> list[NDArray[np.bool_]]:
    """Which rows of each leaf go left, from one array of bits for all leaves.

    Raises:
        MessageError: there are not as many bits as rows.
    """
    sizes = [len(columns.rows_at(node)) for node in nodes]
    require(isinstance(packed, Bits) and packed.shape == (sum(sizes),), f"no {sum(sizes)} answers to where rows go")
    return np.split(packed.unpack(), np.cumsum(sizes)[:-1])


@dataclass
class Boosting:
    """What the guest knows of the trees so far.

    Attributes:
        objective: the loss.
        base: margins before the first tree, ``(outputs,)``.
        margin: of the training rows, ``(rows, outputs)``.
        trees: the trees.
        splits: the guest's own splits.
        seen: the margins that follow from labels with noise; ``None`` where hosts' sums are of true ones.
    """

    objective: TreeLoss
    base: NDArray[np.float64]
    margin: NDArray[np.float32]
    trees: GuestTrees
    splits: Splits
    seen: NDArray[np.float32] | None = None

    def packed(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        kept = {"margin": self.margin, "trees": self.trees.packed(), "splits": self.splits.packed()}
        return kept if self.seen is None else {**kept, "seen": self.seen}


async def grow_tree(
    owners: ColumnOwners, pairs: NDArray[np.int64], group: int, limits: TreeLimits, units: GradientUnits
) -> CategoryGrowth:
    """Grow one tree, for the output ``group``, on gradients ``pairs`` of all rows."""
    await owners.begin(pairs)
    growth = owners.growth(limits, group)
    while growth.asked:
        known = len(growth.feature)
        growth.take(units.real(await owners.sums(growth, units)))
        fresh = [node for node in range(known) if growth.feature[node] >= 0 and growth.left[node] >= known]
        await owners.split(growth, fresh)
    return growth


async def grow_round(
    owners: ColumnOwners, state: Boosting, targets: NDArray[np.float64], limits: TreeLimits, units: GradientUnits
) -> None:
    """Grow one tree for each output, all on the gradients of the margins at the beginning."""
    g, h = state.objective.gradients(state.margin, targets)
    made = []
    for group in range(state.objective.outputs):
        growth = await grow_tree(owners, units.whole(g[:, group], h[:, group]), group, limits, units)
        made.append((group, state.trees.add(growth, owners.owner_of, owners.own, state.splits), dict(owners.own.at)))
    await owners.end()
    for group, values, at in made:
        for node, rows in at.items():
            state.margin[rows, group] += values[node]


# A host.


MOST_OUTPUTS = 1000
"""Trees of a round at most: as many as there are classes."""


class HostRole:
    """What a host keeps while it answers the guest. It answers what growing the agreed trees takes and no more: further splits would show the guest further bits of each row.

    Args:
        columns: its columns.
        sums: its half of the sums.
        splits: its splits so far.
        depth: levels of splits that were agreed.
        outputs: trees of a round.
        optimistic: whether it was agreed that the guest tries splits.
    """

    def __init__(
        self, columns: OwnedColumns, sums: HostSums, splits: Splits, depth: int = 16, outputs: int = MOST_OUTPUTS,
        optimistic: bool = False,
    ) -> None:  # fmt: skip
        self._optimistic, self._tries = optimistic, 0
        self._before: tuple[dict[int, Any], dict[int, int], set[int]] | None = None
        self.columns, self._sums, self.splits, self._most, self._outputs = columns, sums, splits, depth, outputs
        self._trees = self._taken = 0
        self._levels: dict[int, int] = {0: 0}
        self._summed: set[int] = set()

    def end_round(self) -> None:
        """Take the trees of the next round."""
        self._trees = 0

    def answer(self, message: Any) -> Any:
        """Do what the guest asks; return the reply, or ``None`` if it needs none.

        Raises:
            MessageError: the message is not one of this protocol, or names leaves, columns or rows that there are not.
        """
        asked = message.get("do") if isinstance(message, dict) else None
        act = {
            "begin": self._begin,
            "more": self._more,
            "sum": self._sum,
            "split": self._split,
            "move": self._move,
            "try": self._try,
            "keep": self._keep,
            "undo": self._undo,
        }.get(asked or "")
        require(act is not None, f"a message {asked!r} in the growth of a tree")
        try:
            return act(message)  # type: ignore[misc]
        except KeyError as error:
            raise MessageError(
                f"a message {asked!r} without {error}",
                where="SecureBoost",
                remedy="let all parties run the same version of Atoll",
            ) from None

    def _begin(self, message: Any) -> None:
        self._trees += 1
        require(self._trees <= self._outputs, f"tree {self._trees} of a round of {self._outputs}")
        self._levels, self._summed = {0: 0}, set()
        self.columns.begin()
        self._taken = self._tries = 0
        self._before = None
        self._take(message)

    def _more(self, message: Any) -> None:
        require(0 < self._taken < self.columns.rows, "gradients of further rows, where all are there")
        self._take(message)

    def _take(self, message: Any) -> None:
        last = message.get("last", True) is not False
        self._taken = self._sums.take(message["sealed"], self.columns, self._taken, last=last)

    def _sum(self, message: Any) -> Any:
        require(self._taken in (0, self.columns.rows), f"a request for sums after gradients of {self._taken} of {self.columns.rows} rows")  # fmt: skip
        (nodes,) = _read_columns(message, "nodes")
        for node in nodes:
            self.columns.rows_at(node)
            require(self._levels[node] < self._most and node not in self._summed, f"sums of node {node} again, or below level {self._most}")  # fmt: skip
            self._summed.add(node)
        return {"sums": self._sums.sums(self.columns, nodes)}

    def _split(self, message: Any) -> Any:
        sides = []
        asked = zip(*_read_columns(message, "nodes", "children", "feature", "cut", "default_left"), strict=True)
        rights = read_rights(message, len(np.asarray(message["nodes"])))
        for (node, child, feature, cut, default), right in zip(asked, rights, strict=True):
            left = self.columns.goes_left(node, feature, cut, default, right)
            self._move_rows(node, child, left)
            self.splits.add(feature, self.columns.threshold(feature, cut), bool(default), right)
            sides.append(left)
        require(bool(sides), "a request to split no leaf")
        return {"left": Bits.pack(np.concatenate(sides))}

    def _move(self, message: Any) -> None:
        nodes, children = _read_columns(message, "nodes", "children")
        for node, child, left in zip(nodes, children, unpack_sides(message["left"], self.columns, nodes), strict=True):
            self._move_rows(node, child, left)

    def _try(self, message: Any) -> None:
        self._tries += 1
        good = self._optimistic and self._before is None and self._tries < self._most
        require(good, f"try {self._tries} of splits in a tree of {self._most} levels, which was not agreed")
        self._before = (dict(self.columns.at), dict(self._levels), set(self._summed))
        self._move(message)

    def _keep(self, message: Any) -> None:
        del message
        require(self._before is not None, "nothing to keep: no splits were tried")
        self._before = None

    def _undo(self, message: Any) -> None:
        require(self._before is not None, "nothing to take back: no splits were tried")
        self.columns.at, self._levels, self._summed = self._before  # type: ignore[misc]
        self._keep(message)

    def _move_rows(self, node: int, child: int, left: NDArray[np.bool_]) -> None:
        require(self._levels[node] < self._most, f"a split of node {node} below level {self._most}")
        self.columns.move(node, child, left)
        self._levels[child] = self._levels[child + 1] = self._levels[node] + 1


def _read_columns(message: Any, *names: str) -> list[list[int]]:
    """Columns of whole numbers of one length."""
    found = [np.asarray(message[name]) for name in names]
    whole = all(each.ndim == 1 and (each.dtype.kind in "iub" or not each.size) for each in found)
    require(
        whole and len({len(each) for each in found}) == 1,
        f"{', '.join(names)} that are no whole numbers, or of several lengths",
    )
    return [each.tolist() for each in found]
