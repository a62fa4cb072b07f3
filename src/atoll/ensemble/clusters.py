"""Clusters: rules that give each user a leaf by declared public columns, and the audit of these.

Noise of leaves counts once for an ensemble only if private labels do not decide who is in which leaf. So a rule names the columns that it may look at, and
the audit refuses a label among them, columns that tell the label, and users with two leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng, hash64
from atoll.core.errors import CompositionError, ConfigError, DataError, nearest
from atoll.core.extras import need
from atoll.core.validation import Checked

__all__ = [
    "AttributeClusters", "CentroidClusters", "ClusterRule", "Clusters", "HashClusters", "IndividualClusters", "ListedClusters", "MixtureClusters", "RandomClusters", "column_of",
    "form_clusters", "USER",
]  # fmt: skip

USER = "user"
"""The column of rows that names their user."""
_OWN = ("x", "y", "labelled", USER)
"""Columns that data sets have for themselves."""
_SAME = 0.999
_LEVELS = 50


def column_of(rows: Any, name: str, features: Sequence[str] = ()) -> NDArray[Any] | None:
    """Return a column of rows, by its name or as a named feature of ``x``; ``None`` if there is none.

    A feature may be called as one of the columns that all data sets have, such as a place's ``x`` and ``y``: it is then the feature.

    Args:
        rows: a data set, a client's rows, or a mapping of columns.
        name: the column.
        features: names of the features in ``x``.
    """
    there = rows if isinstance(rows, Mapping) else rows.columns
    inside = _is_feature(rows, name, features)
    if name in there and not (inside and name in _OWN):
        return np.asarray(rows[name])
    return np.asarray(rows["x"])[:, list(features).index(name)] if inside else None


def _is_feature(rows: Any, name: str, features: Sequence[str]) -> bool:
    """Return whether the rows' ``x`` has a feature of that name."""
    there = rows if isinstance(rows, Mapping) else rows.columns
    return name in features and "x" in there and np.ndim(rows["x"]) == 2


@dataclass(frozen=True)
class Clusters:
    """Which user has which leaf, and how a new user's is found.

    Attributes:
        names: of the leaves.
        users: user -> place of the leaf.
        rule: the rule's settings and what it learned of public columns, as plain data.
        features: names of the features in ``x``.
    """

    names: tuple[str, ...]
    users: Mapping[str, int] = field(repr=False)
    rule: Mapping[str, Any] = field(repr=False)
    features: tuple[str, ...] = field(default=(), repr=False)

    def members(self, among: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the users of each leaf, in the order given."""
        return [tuple(one for one in among if self.users[one] == place) for place in range(len(self.names))]

    def leaf_of(self, rows: Any) -> NDArray[np.int64]:
        """Return the leaf of each row: that of its user, if the rows say who that is and the user is known; otherwise by the public columns.

        Args:
            rows: a data set or a mapping of columns.

        Raises:
            DataError: the rows have neither a known user nor the columns that the rule looks at.
        """
        named = column_of(rows, USER)
        if named is not None:
            known = np.array([self.users.get(str(one), -1) for one in named.tolist()], np.int64)
            if (known >= 0).all():
                return known
            found = self._by_columns(rows, named)
            return np.where(known >= 0, known, found)
        return self._by_columns(rows, None)

    def _by_columns(self, rows: Any, named: NDArray[Any] | None) -> NDArray[np.int64]:
        kind, columns = self.rule["kind"], self.rule.get("columns", [])
        if kind == "hash" and not columns and named is not None:
            return _hashed(named, len(self.names), self.rule["seed"])
        if not columns:
            raise DataError(
                f"rows of an unknown user have no leaf: the {kind} rule gives leaves to known users alone",
                where="rows",
                remedy=f"give the rows a column {USER!r} with names of known users",
            )
        found = {name: column_of(rows, name, self.features) for name in columns}
        missing = [name for name, values in found.items() if values is None]
        if missing:
            raise DataError(
                f"the rows have no column {missing[0]!r}, by which users are clustered",
                where="rows",
                remedy=f"give them the column, or a column {USER!r} with names of known users",
            )
        return _place(self.rule, self.names, found)


def _place(rule: Mapping[str, Any], names: Sequence[str], found: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the leaf of rows with these public columns."""
    if rule["kind"] == "attribute":
        places = {name: place for place, name in enumerate(names)}
        said = [_word(one) for one in np.asarray(next(iter(found.values()))).tolist()]
        new = sorted({one for one in said if one not in places})
        if new:
            raise DataError(
                f"{new[0]!r} in column {next(iter(found))!r} is no cluster: no user in training has it",
                where="rows",
                remedy=f"use one of {', '.join(names)}",
            )
        return np.array([places[one] for one in said], np.int64)
    if rule["kind"] == "hash":
        return _hashed(np.asarray(next(iter(found.values()))), len(names), rule["seed"])
    x = (np.stack([_number(values, name) for name, values in found.items()], axis=1) - rule["mean"]) / rule["spread"]
    centres = np.asarray(rule["centres"])
    gaps = x[:, None, :] - centres[None]
    if rule["kind"] == "centroid":
        return np.asarray((gaps**2).sum(-1).argmin(1), np.int64)
    variances = np.asarray(rule["variances"])
    logs = np.log(rule["weights"]) - 0.5 * (np.log(variances).sum(-1) + (gaps**2 / variances).sum(-1))
    return np.asarray(logs.argmax(1), np.int64)


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(values: Any, name: str) -> NDArray[np.float64]:
    try:
        made = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"column {name!r} holds words, and distances need numbers",
            where="clusters",
            remedy="cluster by it with AttributeClusters, or name columns of numbers",
        ) from error
    if not np.isfinite(made).all():
        raise DataError(
            f"column {name!r} has values that are missing or infinite",
            where="clusters",
            remedy="fill them in, or name other columns",
        )
    return made


def _hashed(values: NDArray[Any], count: int, seed: int) -> NDArray[np.int64]:
    words = [_word(one) for one in values.tolist()]
    return np.array([hash64("leaf", seed, word) % count for word in words], np.int64)


# ---------------------------------------------------------------- rules


@dataclass(frozen=True)
class ClusterRule(Checked):
    """Base class of rules: which leaf each user has."""

    @property
    def looks_at(self) -> tuple[str, ...]:
        """The public columns that the rule may look at."""
        return ()

    def form(
        self, users: Sequence[str], found: Mapping[str, Sequence[NDArray[Any]]]
    ) -> tuple[list[str], Any, dict[str, Any]]:
        """Return the leaves' names, each user's leaf ``(users,)``, and what places new users.

        Args:
            users: the names.
            found: public column -> each user's values.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class AttributeClusters(ClusterRule):
    """A leaf for each value of a public column, which a user has one of, such as an age group.

    Attributes:
        column: the column.
    """

    column: str

    @property
    def looks_at(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def form(
        self, users: Sequence[str], found: Mapping[str, Sequence[NDArray[Any]]]
    ) -> tuple[list[str], Any, dict[str, Any]]:
        """Give every user the leaf of its value.

        Raises:
            DataError: a user has two values.
        """
        said = []
        for user, values in zip(users, found[self.column], strict=True):
            own = sorted({_word(one) for one in values.tolist()})
            if len(own) != 1:
                raise DataError(
                    f"user {user!r} has {len(own)} values in column {self.column!r}, {', '.join(own[:3])}: its leaves would overlap",
                    where="AttributeClusters",
                    remedy="give every user one value, or use CentroidClusters, which takes means",
                )
            said.append(own[0])
        names = sorted(set(said), key=lambda word: (len(word), word))
        return names, np.array([names.index(one) for one in said]), {"kind": "attribute", "columns": [self.column]}


@dataclass(frozen=True)
class HashClusters(ClusterRule):
    """``count`` leaves by the hash of a public column, or of the user's name: any new user has a leaf.

    Attributes:
        count: leaves.
        column: the column, which a user has one value of; empty for the user's name.
        seed: of the hash.
    """

    count: int
    column: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        _require_count(self.count, "HashClusters")

    @property
    def looks_at(self) -> tuple[str, ...]:
        """The column, if there is one."""
        return (self.column,) if self.column else ()

    def form(
        self, users: Sequence[str], found: Mapping[str, Sequence[NDArray[Any]]]
    ) -> tuple[list[str], Any, dict[str, Any]]:
        """Give every user the leaf of its hash."""
        said: Any = np.array(users, object)
        if self.column:
            names, places, _ = AttributeClusters(self.column).form(users, found)
            said = np.array([names[place] for place in places.tolist()], object)
        rule = {"kind": "hash", "columns": list(self.looks_at), "seed": self.seed}
        return _numbered(self.count), _hashed(said, self.count, self.seed), rule


@dataclass(frozen=True)
class RandomClusters(ClusterRule):
    """``count`` leaves of equal size at random: what an ensemble gives without any knowledge of users.

    Attributes:
        count: leaves.
        seed: of the draw.
    """

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        _require_count(self.count, "RandomClusters")

    def form(
        self, users: Sequence[str], found: Mapping[str, Sequence[NDArray[Any]]]
    ) -> tuple[list[str], Any, dict[str, Any]]:
        """Deal users out like cards: the draw follows names, not their order."""
        del found
        order = sorted(range(len(users)), key=lambda place: users[place])
        drawn = Rng.of(self.seed).child("leaves").generator().permutation(len(users))
        places = np.zeros(len(users), np.int64)
        places[np.array(order, np.int64)[drawn]] = np.arange(len(users)) % self.count
        return _numbered(self.count), places, {"kind": "random"}


@dataclass(frozen=True)
class CentroidClusters(ClusterRule):
    """``count`` leaves by k-means of users' means of public columns, each scaled to standard deviation 1; needs scikit-learn.

    Attributes:
        count: leaves.
        columns: columns of numbers.
        seed: of the first centres.
    """

    count: int
    columns: Sequence[str]
    seed: int = 0

    def __post_init__(self) -> None:
        _require_count(self.count, type(self).__name__)
        if isinstance(self.columns, str) or not self.columns:
            raise ConfigError(
                f"columns={self.columns!r}",
                where=type(self).__name__,
                remedy="declare the public columns by name, such as columns=['age']",
            )

    @property
    def looks_at(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(self.columns)

    def form(
        self, users: Sequence[str], found: Mapping[str, Sequence[NDArray[Any]]]
    ) -> tuple[list[str], Any, dict[str, Any]]:
        """Cluster the users' means."""
        means = np.stack([[_number(v, name).mean() for v in found[name]] for name in self.columns], axis=1)
        mean, spread = means.mean(0), means.std(0)
        spread = np.where(spread > 0, spread, 1.0)
        x = (means - mean) / spread
        if len(np.unique(x, axis=0)) < self.count:
            raise DataError(
                f"{len(np.unique(x, axis=0))} different users do not make {self.count} clusters",
                where=type(self).__name__,
                remedy="use fewer clusters, or other columns",
            )
        rule = {"columns": list(self.columns), "mean": mean.tolist(), "spread": spread.tolist(), **self._fit(x)}
        names = _numbered(self.count)
        columns = {name: means[:, place] for place, name in enumerate(self.columns)}
        return names, _place(rule, names, columns), rule

    def _fit(self, x: NDArray[np.float64]) -> dict[str, Any]:
        cluster = need("sklearn.cluster", "sklearn", "k-means of users")
        made = cluster.KMeans(self.count, n_init=10, random_state=self.seed).fit(x)
        return {"kind": "centroid", "centres": made.cluster_centers_.tolist()}


@dataclass(frozen=True)
class MixtureClusters(CentroidClusters):
    """``count`` leaves by a Gaussian mixture with diagonal covariances, of users' means of public columns; needs scikit-learn.

    Attributes:
        count: leaves.
        columns: columns of numbers.
        seed: of the first centres.
    """

    def _fit(self, x: NDArray[np.float64]) -> dict[str, Any]:
        mixture = need("sklearn.mixture", "sklearn", "a mixture of users")
        made = mixture.GaussianMixture(self.count, covariance_type="diag", n_init=3, random_state=self.seed).fit(x)
        learned = {"centres": made.means_, "variances": made.covariances_, "weights": made.weights_}
        return {"kind": "mixture", **{name: value.tolist() for name, value in learned.items()}}


@dataclass(frozen=True)
class ListedClusters(ClusterRule):
    """Leaves that somebody lists, as between organisations: leaf -> names of its users.

    Attributes:
        leaves: the lists.
    """

    leaves: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for leaf, users in self.leaves.items():
            for user in users:
                if user in seen:
                    raise CompositionError(
                        f"user {user!r} is in the leaves {seen[user]!r} and {leaf!r}",
                        where="ListedClusters",
                        remedy="list every user once: overlapping leaves add up their privacy loss",
                    )
                seen[user] = leaf

    def form(
        self, users: Sequence[str], found: Mapping[str, Sequence[NDArray[Any]]]
    ) -> tuple[list[str], Any, dict[str, Any]]:
        """Look every user up.

        Raises:
            DataError: a user is in no list.
        """
        del found
        known = {user: place for place, own in enumerate(self.leaves.values()) for user in own}
        lost = [user for user in users if user not in known]
        if lost:
            raise DataError(
                f"user {lost[0]!r} is in no leaf.{nearest(lost[0], known)}",
                where="ListedClusters",
                remedy="list every user once",
            )
        return [*self.leaves], np.array([known[user] for user in users]), {"kind": "listed"}


@dataclass(frozen=True)
class IndividualClusters(ClusterRule):
    """A leaf for every user: with one round, one-shot federated learning (Guha, Talwalkar, Smith 2019), in which everybody trains alone and the models are joined."""

    def form(
        self, users: Sequence[str], found: Mapping[str, Sequence[NDArray[Any]]]
    ) -> tuple[list[str], Any, dict[str, Any]]:
        """Give every user a leaf of its own name."""
        del found
        return list(users), np.arange(len(users)), {"kind": "individual"}


def _numbered(count: int) -> list[str]:
    return [str(place) for place in range(count)]


def _require_count(count: int, where: str) -> None:
    if count < 1:
        raise ConfigError(f"count={count}", where=where, remedy="use at least 1 leaf")


# ---------------------------------------------------------------- forming, with the audit


def form_clusters(rule: ClusterRule, data: Any, label: str = "y") -> Clusters:
    """Return the clusters of a population, after the audit of the columns that the rule looks at.

    Args:
        rule: the rule.
        data: the population.
        label: the label's name, which no rule may look at.

    Raises:
        CompositionError: a column is the label, or tells it.
        DataError: a column is missing, or a user has two leaves.
    """
    users = [str(name) for name in data.names]
    features = tuple(getattr(getattr(data, "about", None), "features", ()) or ())
    found: dict[str, list[NDArray[Any]]] = {}
    for name in rule.looks_at:
        inside = all(_is_feature(data.shard(place), name, features) for place in range(len(data)))
        if name in {label, "y", "labelled"} and not (inside and name in _OWN):
            raise CompositionError(
                f"column {name!r} is the label, which is private",
                where=type(rule).__name__,
                remedy="cluster by public columns: parallel leaves count once only if labels do not decide who is in which",
            )
        found[name] = _read(data, name, features)
        _refuse_label_twin(rule, data, name, found[name])
    names, places, told = rule.form(users, found)
    return Clusters(tuple(names), dict(zip(users, places.tolist(), strict=True)), told, features)


def _read(data: Any, name: str, features: Sequence[str]) -> list[NDArray[Any]]:
    made = []
    for place in range(len(data)):
        values = column_of(data.shard(place), name, features)
        if values is None:
            raise DataError(
                f"there is no column {name!r}.{nearest(name, [*data.columns, *features])}",
                where="clusters",
                remedy="name a column of the data set, or a named feature",
            )
        made.append(values)
    return made


def _refuse_label_twin(rule: ClusterRule, data: Any, name: str, values: Sequence[NDArray[Any]]) -> None:
    """Refuse a column that says the label of every row, or every user's mean label."""
    labels = [np.asarray(data.shard(place)["y"]) for place in range(len(data))]
    y, column = np.concatenate(labels), np.concatenate(list(values))
    if y.ndim != 1 or len(np.unique(y)) < 2:
        return
    levels, codes = np.unique(column.astype(str), return_inverse=True)
    said = ""
    if len(levels) <= min(_LEVELS, len(y) // 4):
        pairs = {(int(code), float(label)) for code, label in zip(codes.tolist(), y.tolist(), strict=True)}
        said = "the label of every row" if len(pairs) == len(levels) else ""
    if not said and column.dtype.kind in "biuf":
        means = [(float(np.mean(v)), float(np.mean(w))) for v, w in zip(values, labels, strict=True) if len(v)]
        for what, pair in (
            ("the label of every row", (column, y)),
            ("every user's mean label", tuple(np.array(means).T)),
        ):
            one, two = (np.asarray(part, np.float64) for part in pair)
            if len(one) >= 8 and one.std() > 0 and two.std() > 0 and abs(np.corrcoef(one, two)[0, 1]) > _SAME:
                said = what
    if said:
        raise CompositionError(
            f"column {name!r} tells {said}, so it is derived from private labels",
            where=type(rule).__name__,
            remedy="cluster by public columns, or by a random draw: RandomClusters(4)",
        )
