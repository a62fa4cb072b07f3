"""`Pivot`: trees over columns at several owners that show the parties as little as they can be trained and used with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.message import Bits
from atoll.core.requests.island import Secret
from atoll.core.validation import require_parts
from atoll.secure.encrypted import KeyOwner, Paillier
from atoll.trees.objectives import LOGISTIC, SOFTMAX, SQUARED, TreeLoss
from atoll.trees.sketch import binned

from ..model import ANSWERS, GuestRows, Part, Save, VerticalModel, require
from .columns import OwnedColumns, Splits
from .hidden import (
    ONE,
    ROOM,
    PlainOwners,
    SplitChoices,
    TreePlan,
    follow_rows,
    grow_tree,
    limit_leaves,
    move_odds,
    raise_e,
    sum_leaves,
)
from .numbers import Numbers, PlainNumbers, SharedNumbers, run_plain
from .parties import Circle, SharedOwners, SideTransfers, WordProducts, give_bits, share_sides
from .products import predict_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel, Peers

__all__ = ["Pivot"]

_LEAST_SHARE = 1e-6
_BLOCK = 4096
"""Rows that are predicted at once."""


@dataclass(frozen=True, kw_only=True)
class Pivot(VerticalModel):
    """A tree, a forest or boosted trees over columns at several owners, whose labels, gradients and rows of leaves nobody sees.

    The guest and the first host compute on shares: each number is split between them. They must not collude, and all parties follow the protocol. Owners of columns add up
    encrypted shares by bin; which split gains most, leaves and probabilities follow from shares without being opened.

    ==============  ============================================================================================
    security        what is shown
    ==============  ============================================================================================
    ``basic``       to all owners, which candidate splits each node: its owner, and the number of the column and bin there. The
                    owner keeps the value, the guest the leaves.
    ``enhanced``    nothing: neither splits nor leaves. The model itself is shared.
    ==============  ============================================================================================

    With both, a prediction is a protocol, and only the guest sees its result.

    Wu et al. 2020, "Privacy Preserving Vertical Federated Learning for Tree-based Models" (Pivot). Where it has a threshold key, which a dealer makes, here each of the two computing
    parties has a key of its own and encrypts its shares; where it has SPDZ's triples, products stand on oblivious transfers. So nobody has to be trusted with a key, and two parties,
    not all, hold the shares. Gains are exact whole numbers (`atoll.vertical.trees.hidden`): the trees are those of the same learner in plain, to the bit.

    Attributes:
        learner: ``boosting`` (a tree for each class and round; logistic losses one class against the rest), ``forest`` (means of trees on rows drawn with
            repetition and a share of the columns), or ``tree``.
        trees: rounds, or trees of a forest; one for ``tree``.
        depth: levels of splits.
        rate: learning rate of ``boosting``.
        bins: most bins of a column.
        reg_lambda: L2 penalty of leaves of ``boosting``.
        min_rows: fewest training rows in a child.
        column_share: share of all columns that a tree of a forest may split.
        seed: of the rows and columns of a forest, which all parties know.
        security: see above.
        sums: how owners of columns add up shares by bin: ``product``, by oblivious transfers, or ``paillier``, on ciphertexts, which takes several times as long.
        cipher: the keys of the two computing parties under ``paillier``.
    """

    categories: ClassVar[bool] = True
    learner: Literal["boosting", "forest", "tree"] = "boosting"
    trees: int = 20
    depth: int = 3
    rate: float = 0.3
    bins: int = 32
    reg_lambda: float = 1.0
    min_rows: int = 1
    column_share: float = 0.7
    seed: int = 0
    security: Literal["basic", "enhanced"] = "basic"
    sums: Literal["product", "paillier"] = "product"
    cipher: Paillier = field(default_factory=Paillier)

    def __post_init__(self) -> None:
        require_parts(self, {"cipher": (Paillier, "atoll.secure.encrypted.Paillier()")})
        bounds = (
            ("learner", self.learner in ("boosting", "forest", "tree"), "use 'boosting', 'forest' or 'tree'"),
            ("trees", self.trees >= 1, "use at least 1 tree"),
            ("depth", 1 <= self.depth <= 10, "use 1 to 10 levels"),
            ("rate", 0 < self.rate <= 1, "use a number above 0, at most 1"),
            ("bins", 2 <= self.bins <= 256, "use 2 to 256 bins"),
            ("reg_lambda", 0 <= self.reg_lambda <= 2**20, "use a number from 0 to 2^20"),
            ("min_rows", self.min_rows >= 1, "use at least 1 row"),
            ("column_share", 0 < self.column_share <= 1, "use a share above 0, at most 1"),
            ("security", self.security in ("basic", "enhanced"), "use 'basic' or 'enhanced'"),
            ("sums", self.sums in ("product", "paillier"), "use 'product' or 'paillier'"),
        )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="Pivot", remedy=remedy)
        if self.sums == "product" and self.cipher != Paillier():
            raise CompositionError(
                "cipher with sums='product'", where="Pivot", remedy="use sums='paillier', or leave cipher out"
            )

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        sealed = f", and ciphertexts of {self.cipher.key_bits} bits" if self.sums == "paillier" else ""
        hidden = (
            f"nothing of gradients, labels and leaves: shares{sealed}, if the guest and the first host do not collude"
        )
        shape = "how many columns each other party has, how many bins each, and which of them have missing values"
        splits = {
            "basic": ["of each split of the trees, whose it is, and the number of its column and bin there"],
            "enhanced": [],
        }[self.security]
        return {
            "host": [hidden, shape, *splits],
            "guest": [
                "nothing of a host's columns and of which rows its splits send where, if it does not collude with the first host",
                shape,
                *splits,
                *(["the leaves"] if self.security == "basic" else []),
                "the predictions of the rows that it asks for",
            ],
        }

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted, from the number of transfers and ciphertexts.

        A transfer takes about .2 microseconds and 9 bytes; a ciphertext of 2048 bits 1.1 ms at all parties together, and more as the cube of its length; keys take two seconds. For products
        see `atoll.vertical.trees.products`.
        """
        boosted = self.learner == "boosting"
        trees = (self.trees if self.learner != "tree" else 1) * (outputs if boosted else 1)
        words = 2 if boosted else 1 + outputs
        splits = sum(columns) * self.bins * (2**self.depth - 1) * (2300 + 700 * (words - 1))
        moves = rows * ((2**self.depth - 1) * (2 + 2 * words) + (4000 if boosted else 0))
        predicted = rows * 2 ** (self.depth + 1) * 4
        transfers = trees * (splits + moves + predicted)
        found = {"seconds": 0.2e-6 * transfers, "bytes": 9.0 * transfers}
        if self.sums == "product":
            cells = rows * (sum(columns) + sum(columns[2:]))  # both computing parties have words for a further owner
            more = predict_words(cells, self.bins, trees * words * (2**self.depth - 1))
        else:
            sealed, scale = trees * rows * self.depth * len(columns), (self.cipher.key_bits / 2048) ** 3
            more = {"seconds": 2.0 * scale + 1.1e-3 * scale * sealed, "bytes": sealed * self.cipher.key_bits / 4}
        return {name: value + more[name] for name, value in found.items()}

    # Training.

    async def train_guest(
        self, rows: GuestRows, peers: Peers, hosts: Sequence[str], *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:  # fmt: skip
        """The guest's role; return its part of the model."""
        names = ["", *hosts]
        if state is None:
            told = {"hosts": list(hosts), "objective": rows.objective.name, "outputs": rows.objective.outputs}
            await peers.broadcast(told, hosts)
        growth = _Growth(self, rows.objective, len(rows.x), rows)
        return await growth.run(Circle(tuple(names), 0, peers, secret), peers, rows.x, state, save)

    async def train_host(
        self, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:
        """A host's role; return its part of the model."""
        told = await peers.recv(guest) if state is None else state["told"]
        hosts, me = _read_hosts(told, peers, guest)
        objective = _read_objective(told)
        growth = _Growth(self, objective, len(x), None, told)
        return await growth.run(Circle((guest, *hosts), me, peers, secret), peers, x, state, save)

    def train_pooled(self, rows: GuestRows) -> Part:
        """The same learner on rows that have all columns in one place."""
        part: Part = run_plain(_Growth(self, rows.objective, len(rows.x), rows).run_alone(rows.x))
        return part

    # Predictions.

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> Mapping[str, Any]:
        """Where rows go at a host's splits, or at all of its candidates with its share of the model: for one process that has all parts. Between parties prediction is a protocol."""
        found: dict[str, Any] = {"sides": Bits.pack(_own_sides(part, x))}
        return {**found, **{name: part[name] for name in ("chosen", "values") if "known" in part and name in part}}

    @classmethod
    def read_answer(cls, part: Part, message: Any, rows: int, host: int, name: str) -> Any:
        """A host's answer; see `answer`."""
        sides = message.get("sides") if isinstance(message, Mapping) else None
        good = isinstance(sides, Bits) and len(sides.shape) == 2 and sides.shape[0] == rows
        require(good, f"no answers of {name!r} for {rows} rows", "Pivot")
        return {**message, "sides": sides.unpack()}  # type: ignore[union-attr]

    @classmethod
    def margins(cls, part: Part, x: NDArray[Any], answers: Sequence[Any]) -> NDArray[np.float32]:
        """The margins of rows, ``(rows, outputs)``."""
        by, values = PlainNumbers(), np.asarray(part["values"]).astype(np.int64)
        sides = [_own_sides(part, x), *(one["sides"] for one in answers)]
        if "known" in part:
            first, second = (np.asarray(one["chosen"].unpack()) for one in (part, answers[0]))
            values = values + np.asarray(answers[0]["values"]).astype(np.int64)
            left = np.concatenate(sides, axis=1).astype(np.uint8) @ (first ^ second).astype(np.uint8).T > 0
        else:
            left = _sides_of_nodes(part, sides)
        nodes = (1 << int(part["depth"])) - 1
        inside = run_plain(follow_rows(by, left.reshape(len(x), len(values), nodes)))
        return _finish(part, run_plain(sum_leaves(by, inside, values)), len(values))

    async def predict_guest(
        self, part: Part, x: NDArray[Any], peers: Peers, hosts: Sequence[str], *, secret: Secret
    ) -> NDArray[np.float32]:
        """The guest's role when the parties predict: it alone learns the margins."""
        talk = peers.channel(ANSWERS)
        await talk.broadcast({"hosts": list(hosts)}, hosts)
        totals = await _predict(part, x, Circle(("", *hosts), 0, talk, secret), peers)
        return _finish(part, totals, len(part["values"]))

    async def predict_host(self, part: Part, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret) -> None:
        """A host's role when the parties predict: it learns nothing."""
        talk = peers.channel(ANSWERS)
        hosts, me = _read_hosts(await talk.recv(guest), peers, guest)
        await _predict(part, x, Circle((guest, *hosts), me, talk, secret), peers)


def _read_hosts(told: Any, peers: PeerChannel, guest: str) -> tuple[list[str], int]:
    """All hosts in the guest's order, and this one's place."""
    names = told.get("hosts") if isinstance(told, Mapping) else None
    others = set(peers.names) - {guest}
    mine = [k for k, name in enumerate(names or [], 1) if name not in others] if isinstance(names, list) else []
    require(len(mine) == 1 and len(set(names)) == len(others) + 1, "no names of the hosts", "Pivot")  # type: ignore[arg-type]
    return list(names), mine[0]  # type: ignore[arg-type]


def _read_objective(told: Any) -> TreeLoss:
    name, outputs = (told.get(key) for key in ("objective", "outputs"))
    good = name in (LOGISTIC, SOFTMAX, SQUARED) and type(outputs) is int and 1 <= outputs <= 1000
    require(good, f"a loss {name!r} of {outputs!r} outputs", "Pivot")
    return TreeLoss(name, outputs)


class _Growth:
    """A training, at one of the parties or at all.

    Args:
        model: the settings.
        objective: the loss.
        rows: how many.
        guest: the guest's rows; ``None`` at a host.
        told: what the guest told a host.
    """

    def __init__(self, model: Pivot, objective: TreeLoss, rows: int, guest: GuestRows | None, told: Any = None) -> None:
        self.model, self.objective, self.rows, self.told = model, objective, rows, told
        self.boosting = model.learner == "boosting"
        self.outputs = objective.outputs
        self.rounds = 1 if model.learner == "tree" else model.trees
        room = ROOM if self.boosting and objective.name == SQUARED else 0
        self.logistic = self.boosting and objective.name != SQUARED
        more: dict[str, Any] = {}
        if self.boosting:
            more = {"rate": model.rate, "steepness": 0.25 if self.logistic else 1.0, "reg_lambda": model.reg_lambda}
        each = 1 if self.boosting else self.outputs
        self.plan = TreePlan(model.depth, rows, each, room, min_rows=model.min_rows, **more)
        self.targets, self.base, self.scale = np.zeros((self.outputs, rows), np.int64), np.zeros(self.outputs), 1.0
        if guest is not None:
            self._take(guest)

    def _take(self, guest: GuestRows) -> None:
        """The guest's targets as whole numbers."""
        if self.objective.name == SQUARED:
            self.base = np.array([guest.targets.mean()])
            apart = guest.targets - self.base[0]
            self.scale = float(2.0 ** (np.floor(np.log2(np.abs(apart).max())) + 1))
            found = (apart / self.scale)[None]
        else:
            codes = np.array([1]) if self.outputs == 1 else np.arange(self.outputs)
            found = (guest.targets[None] == codes[:, None]).astype(np.float64)
            self.base = np.clip(found.mean(axis=1), _LEAST_SHARE, 1 - _LEAST_SHARE)
        self.targets = np.rint(found * ONE).astype(np.int64)

    def draw(self, tree: int, candidates: SplitChoices) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """How often a tree of a forest has each row, and which candidates it may take."""
        if self.model.learner != "forest":
            return np.ones(self.rows, np.int64), None
        rng = np.random.default_rng([self.model.seed, tree])
        weights = np.bincount(rng.integers(0, self.rows, self.rows), minlength=self.rows)
        columns = int(candidates.columns.max(initial=-1)) + 1
        kept = rng.permutation(columns)[: max(1, round(self.model.column_share * columns))]
        return weights, np.isin(candidates.columns, kept)

    async def run_alone(self, x: NDArray[Any]) -> Part:
        """Grow all trees on columns in one place."""
        own = OwnedColumns(x, self.model.bins)
        owners, values = PlainOwners(own), []
        if len(owners.candidates):
            progress = self._begin(PlainNumbers())
            for number in range(self.rounds):
                values += await self._grow_round(PlainNumbers(), owners, progress, number, [])
        splits, owner, split = _own_splits(owners.candidates, 0, own, owners.chosen)
        return {**self._shape(), **self._facts(values), "owner": owner, "split": split, "splits": splits.packed()}

    async def run(self, circle: Circle, peers: Peers, x: NDArray[Any], state: Any, save: Save | None) -> Part:
        """Take part in the growth of all trees."""
        own = OwnedColumns(x, self.model.bins)
        if state is None:
            state = await self._meet_all(circle, own)
        owners = await self._gather_owners(circle, peers, own, state)
        by, hidden = owners.by, owners.transfers is not None
        values, chosen = [np.asarray(one) for one in state["values"]], list(state["chosen"])
        progress = self._begin(by) if state["progress"] is None else [np.asarray(one) for one in state["progress"]]
        for number in range(int(state["round"]), self.rounds):
            grown: list[Any] = []
            if by is None:
                await self._attend(owners)
            else:
                values += await self._grow_round(by, owners, progress, number, grown)
            chosen += [Bits.pack(one) for one in grown] if hidden else []
            if save is not None:
                kept = {"values": values, "chosen": chosen, "at": list(owners.chosen), "progress": progress}
                await save({**state, **kept, "round": number + 1})
        made: Part = {**self._shape(), "values": _stack(values), **(self._facts(values) if circle.me == 0 else {})}
        if not hidden:
            splits, whose, split = _own_splits(owners.candidates, circle.me, own, owners.chosen)
            return {**made, "owner": whose, "split": split, "splits": splits.packed()}
        known = [{"counts": np.array(c), "holes": np.array(h)} for c, h in owners.known]
        made = {**made, "known": known, "me": circle.me, "cuts": own.cuts}
        return {**made, "chosen": Bits.pack(np.concatenate([one.unpack() for one in chosen]))} if by else made

    async def _meet_all(self, circle: Circle, own: OwnedColumns) -> dict[str, Any]:
        """Tell all other parties what they must know of this one's columns, and hear theirs; two parties make keys."""
        holes = [bool((own.bins[:, f] == own.width - 1).any()) for f in range(own.features)]
        mine: dict[str, Any] = {"counts": np.array(own.counts, np.int64), "holes": np.array(holes, np.bool_)}
        sealed = self.model.sums == "paillier"
        keys = KeyOwner(self.model.cipher, circle.secret).keys if circle.computes and sealed else None
        if keys:
            mine["key"] = keys[0]
        for place in range(len(circle.names)):
            if place != circle.me:
                await circle.send(place, mine)
        heard = [mine if k == circle.me else await circle.hear(k) for k in range(len(circle.names))]
        begun: dict[str, Any] = {"round": 0, "progress": None, "values": [], "chosen": [], "at": []}
        return {"told": self.told, "heard": heard, "keys": keys, **begun}

    async def _gather_owners(self, circle: Circle, peers: Peers, own: OwnedColumns, state: Any) -> SharedOwners:
        """All owners, with transfers that begin anew: after a crash nothing is said twice under the same masks."""
        known, by, transfers = [_read_shape(one) for one in state["heard"]], None, None
        candidates = SplitChoices.of(known)
        if not len(candidates):
            raise DataError("no party has a column to split", where="Pivot", remedy="give one party a feature")
        keys = [one.get("key") for one in state["heard"][:2]]
        sealed, products = self.model.sums == "paillier", None
        owner = KeyOwner(self.model.cipher, circle.secret, state["keys"]) if circle.computes and sealed else None
        if circle.computes:
            other = circle.names[1 - circle.me]
            by = await SharedNumbers.begin(circle.secret, peers, circle.channel, other, first=circle.me == 0)
        if self.model.security == "enhanced":
            transfers = await SideTransfers.begin(circle, peers, candidates.owners)
        if not sealed:
            products = await WordProducts.begin(circle, peers, own, known, candidates.owners)
        made = SharedOwners(circle, own, known, self.model.cipher, keys, owner, by, transfers, products)
        made.chosen = [int(one) for one in state["at"]]
        return made

    def _begin(self, by: Any) -> list[Numbers]:
        """The margins of a regression, or probabilities, before the first tree, for each output."""
        if by is None or not self.boosting:
            return []
        start = np.rint(self.base * ONE).astype(np.int64) if self.logistic else np.zeros(self.outputs, np.int64)
        return [by.own(np.full(self.rows, one if by.first else 0)) for one in start]

    async def _grow_round(
        self, by: Any, owners: Any, progress: list[Numbers], number: int, grown: list[Any]
    ) -> list[Numbers]:
        """Grow the trees of a round; return their leaves, and put what they chose behind ``grown``."""
        weights, allowed = self.draw(number, owners.candidates)
        ones, made = by.constant(weights), []
        for k in range(self.outputs if self.boosting else 1):
            if self.boosting:
                slopes = (progress[k] - by.own(self.targets[k]))[:, None]
            else:
                slopes = -by.own(self.targets * weights).T
            tree = await grow_tree(by, owners, self.plan, np.concatenate([ones[:, None], slopes], axis=1), allowed)
            values = await limit_leaves(by, tree.values) if self.logistic else tree.values
            if self.model.security == "basic":
                values = by.own(await by.show_first(values))
            grown.append(tree.chosen)
            if self.boosting:
                inside = tree.inside.T[:, None]
                words = await raise_e(by, values) if self.logistic else values
                found = (await sum_leaves(by, inside, words[None]))[:, 0]
                progress[k] = await move_odds(by, progress[k], found) if self.logistic else progress[k] + found
            wide = np.zeros((len(values), self.outputs), values.dtype)
            wide[:, k : k + values.shape[1]] = values
            made.append(wide)
        return made

    async def _attend(self, owners: SharedOwners) -> None:
        """What an owner that does not compute does while a round grows."""
        words = 1 + self.plan.outputs
        for _ in range(self.outputs if self.boosting else 1):
            await owners.left_sums(np.zeros((1, self.rows, words), np.uint64))
            for level in range(self.plan.depth):
                await owners.send_left(np.zeros((1 << level, len(owners.candidates)), np.bool_))
                if level + 1 < self.plan.depth:
                    await owners.left_sums(np.zeros((1 << level, self.rows, words), np.uint64))

    def _shape(self) -> dict[str, Any]:
        return {"depth": self.plan.depth, "trees": self.rounds * (self.outputs if self.boosting else 1)}

    def _facts(self, values: Sequence[Numbers]) -> dict[str, Any]:
        """What the guest must know to predict."""
        facts = {
            "objective": self.objective.name,
            "learner": self.model.learner,
            "base": self.base,
            "scale": self.scale,
        }
        empty = np.zeros((0, 1 << self.plan.depth, self.outputs), np.int64)
        return {**facts, "values": _stack(values) if values else empty}


def _stack(values: Sequence[Numbers]) -> Numbers:
    return np.stack(values) if len(values) else np.zeros((0, 1, 1), np.uint64)


def _read_shape(message: Any) -> tuple[list[int], list[bool]]:
    """How many cuts a party's columns have, and which of them rows lack."""
    names = ("counts", "holes")
    require(isinstance(message, Mapping) and set(names) <= set(message), "no numbers of cuts", "Pivot")
    counts, holes = (np.asarray(message[name]) for name in names)
    good = counts.ndim == 1 and counts.shape == holes.shape
    if good and counts.size:  # an empty list has no type
        good = counts.dtype == np.int64 and holes.dtype == np.bool_ and bool(((counts >= 0) & (counts < 256)).all())
    require(good, "no numbers of cuts", "Pivot")
    return counts.tolist(), holes.tolist()


def _own_splits(
    candidates: SplitChoices, me: int, own: OwnedColumns, chosen: Sequence[int]
) -> tuple[Splits, NDArray[np.int64], NDArray[np.int64]]:
    """A party's splits, and of each node the owner, -1 for none, and the number of its split there."""
    splits, at = Splits(), np.array(chosen, np.int64)
    owner = np.where(at >= 0, candidates.owner[np.maximum(at, 0)], -1) if len(at) else at
    number, made = np.zeros(len(at), np.int64), dict.fromkeys(range(int(owner.max(initial=0)) + 1), 0)
    for node, (one, whose) in enumerate(zip(at.tolist(), owner.tolist(), strict=True)):
        if whose < 0:
            continue
        number[node] = made[whose]
        made[whose] += 1
        if whose == me:
            feature, cut = int(candidates.feature[one]), int(candidates.cut[one])
            splits.add(feature, own.threshold(feature, cut), bool(candidates.with_missing[one]))
    return splits, owner, number


def _own_sides(part: Part, x: NDArray[Any]) -> NDArray[np.bool_]:
    """Where rows go at a party's own splits, or at all of its candidates, ``(rows, splits)``."""
    if "known" not in part:
        return Splits.unpacked(part["splits"]).walk(x)
    cuts = [np.asarray(one, np.float32) for one in part["cuts"]]
    width = max((len(one) for one in cuts), default=0) + 2
    candidates = SplitChoices.of([_read_shape(one) for one in part["known"]])
    return candidates.sides(int(part["me"]), binned(x, cuts, width - 1), width - 1).T


def _sides_of_nodes(part: Part, sides: Sequence[NDArray[np.bool_] | None]) -> NDArray[np.bool_]:
    """Whether rows go left at each node, ``(rows, nodes)``, as far as it is known."""
    owner, split = np.asarray(part["owner"]), np.asarray(part["split"])
    rows = next(len(one) for one in sides if one is not None)
    made = np.zeros((rows, len(owner)), np.bool_)
    for k, known in enumerate(sides):
        if known is not None:
            made[:, owner == k] = known[:, split[owner == k]]
    return made


async def _predict(part: Part, x: NDArray[Any], circle: Circle, peers: Peers) -> NDArray[np.int64]:
    """The sums of rows' leaves, at the guest."""
    by = transfers = None
    if circle.computes:
        by = await SharedNumbers.begin(
            circle.secret, peers, circle.channel, circle.names[1 - circle.me], first=circle.me == 0
        )
    nodes = (1 << int(part["depth"])) - 1
    if "known" in part:
        candidates = SplitChoices.of([_read_shape(one) for one in part["known"]])
        transfers = await SideTransfers.begin(circle, peers, candidates.owners)
    found, values = [], np.asarray(part["values"])
    for begin in range(0, len(x), _BLOCK):
        mine = _own_sides(part, x[begin : begin + _BLOCK])
        if transfers is None:
            alone: list[Any] = [None] * len(circle.names)
            alone[circle.me] = mine
            left = await give_bits(circle, _sides_of_nodes(part, alone).T, np.asarray(part["owner"]).tolist())
        else:
            nothing = np.zeros((int(part["trees"]) * nodes, len(candidates)), np.bool_)
            chosen = nothing if by is None else np.asarray(part["chosen"].unpack())
            left = await share_sides(circle, candidates, transfers, chosen, mine.T)
        if by is not None:
            trees = left.T.reshape(len(mine), len(values), nodes)
            words = (
                values.astype(np.uint64)
                if circle.me == 0 or transfers is not None
                else np.zeros(values.shape, np.uint64)
            )
            found.append(await by.show_first(await sum_leaves(by, await follow_rows(by, trees), words)))
    outputs = values.shape[2]
    return np.concatenate(found) if found else np.zeros((0, outputs), np.int64)


def _finish(part: Part, totals: NDArray[np.int64], trees: int) -> NDArray[np.float32]:
    """Margins from sums of leaves."""
    objective, base, real = part["objective"], np.asarray(part["base"]), totals / ONE
    if part["learner"] != "boosting":
        real = real / trees if trees else real + (0 if objective == SQUARED else base)
    if objective == SQUARED:
        return np.asarray(base + real * float(part["scale"]), np.float32)
    if part["learner"] == "boosting":
        odds = np.log(base) - np.log1p(-base) + real
        return np.asarray(odds if objective == LOGISTIC else -np.logaddexp(0, -odds), np.float32)
    p = np.clip(real, _LEAST_SHARE, 1 - _LEAST_SHARE)
    return np.asarray(np.log(p) - np.log1p(-p) if objective == LOGISTIC else np.log(p), np.float32)
