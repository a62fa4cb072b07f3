"""`FederatedEnsemble`: leaves, clusters and what joins them, which answers rows of tables, and its folder."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.core.errors import CheckpointError, CompositionError, ConfigError, DataError
from atoll.core.persistence.files import as_json, write_bytes
from atoll.data.model_columns import ModelColumns, table_of_rows
from atoll.torch import seeded
from atoll.trees.tree import auc

from .accounting import EnsembleLoss, EnsembleRelease, account_ensemble
from .clusters import ClusterRule, Clusters, ListedClusters, form_clusters
from .joining import (
    AGGREGATES,
    JoinedLeaves,
    OverArch,
    fit_gate,
    fit_over_arch,
    fit_weights,
    log_probabilities,
    over_arch_inputs,
    over_arch_network,
    probabilities_of,
)
from .private_leaf import DeviceEnsemble
from .search import SearchRecord

__all__ = [
    "FederatedEnsemble",
    "OptInRows",
    "count_numbers",
    "join_leaves",
    "join_results",
    "known_leaves",
    "opt_in_rows",
    "require_fitted",
    "score_arms",
    "score_interval",
    "score_population",
    "score_probabilities",
    "shrinking_widths",
]

_FORM = "atoll.ensemble/1"
_SETTINGS, _TENSORS = "ensemble.json", "ensemble.safetensors"
_NORMAL = 1.959963984540054
"""Quantile of the normal distribution with 2.5 % above it."""


@dataclass(frozen=True)
class OptInRows:
    """Labelled rows of users who gave them to the server.

    Attributes:
        x: features.
        y: labels.
        leaf: place of each row's leaf.
        users: the users' names.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    leaf: NDArray[np.int64]
    users: tuple[str, ...] = ()


@dataclass(frozen=True)
class FederatedEnsemble:
    """Leaves that answer as one.

    Attributes:
        aggregate: which of the ways to join is used.
        clusters: which user has which leaf.
        joined: every way to join that the training could fit, by name.
        columns: the columns of rows.
        scores: arm -> ``auc`` and ``accuracy`` on the server's test rows; empty without them.
        loss: what users have lost of their privacy.
        opt_in: names of the opt-in users.
        history: one row a round, where leaves were trained as one block.
        reason: why training ended.
        block: why leaves were not one block: the setting's name; ``""`` if they were.
        device: what a device holds to answer with private columns too, see `PrivateLeaf`; ``None`` without these.
        search: what it has chosen itself, see `Search`; ``None`` without one.
    """

    aggregate: str
    clusters: Clusters
    joined: Mapping[str, JoinedLeaves] = field(repr=False)
    columns: ModelColumns | None = field(default=None, repr=False)
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    loss: EnsembleLoss | None = None
    opt_in: tuple[str, ...] = field(default=(), repr=False)
    history: Any = field(default=None, repr=False)
    reason: str = ""
    block: str = ""
    device: DeviceEnsemble | None = field(default=None, repr=False)
    search: SearchRecord | None = None

    @property
    def leaves(self) -> list[nn.Module]:
        """The leaves' models."""
        return list(next(iter(self.joined.values())).members)

    @property
    def model(self) -> JoinedLeaves:
        """The ensemble as a PyTorch model of rows."""
        return self.joined[self.aggregate]

    @property
    def parameters(self) -> int:
        """Numbers that leaves and head hold."""
        head = self.model.head
        own = 0 if head is None else sum(p.numel() for p in head.parameters())
        table: Any = self.model.weights
        return (
            own
            + (0 if table is None else int(np.prod(table.shape)))
            + sum(p.numel() for one in self.leaves for p in one.parameters())
        )

    def using(self, aggregate: str) -> FederatedEnsemble:
        """Return the same leaves joined in another way.

        Raises:
            ConfigError: it was not fitted.
        """
        require_fitted(aggregate, self.joined)
        return replace(self, aggregate=aggregate)

    def predict_proba(self, rows: Any, where: str = "rows") -> NDArray[np.float64]:
        """Return the probabilities of the classes, ``(rows, classes)``.

        Args:
            rows: a file, a table, a frame or a dict of columns, matched by name, with the columns that cluster users, or ``user``.
            where: the place, for errors.

        Raises:
            DataError: a column is missing.
            CompositionError: the leaves take no rows of tables.
        """
        if self.columns is None:
            raise CompositionError("the leaves take no rows of tables", where=where, remedy="use .model on tensors")
        table = table_of_rows(rows, where)
        x = self.columns.matrix(table, where)
        leaf = self.clusters.leaf_of(table) if self.model.wants_leaf else None
        return _probabilities(self.model, x, leaf)

    def predict(self, rows: Any, where: str = "rows") -> NDArray[Any]:
        """Return the most probable classes, ``(rows,)``; the arguments are those of `predict_proba`."""
        chances = self.predict_proba(rows, where)
        places = chances.argmax(1)
        return places if self.columns is None else np.asarray(self.columns.values[places])

    def packed(self) -> dict[str, bytes]:
        """Return the files that hold it, by name: clusters, columns and how leaves are joined, and all numbers."""
        from safetensors.torch import save as save_tensors

        tensors = {f"leaf-{k}/{n}": v for k, one in enumerate(self.leaves) for n, v in one.state_dict().items()}
        for name, one in self.joined.items():
            if one.head is not None:
                tensors |= {f"{name}/{n}": v for n, v in one.head.state_dict().items()}
            elif one.weights is not None:
                tensors[f"{name}/weights"] = one.weights
        widths = {name: _widths(one.head) for name, one in self.joined.items() if one.head is not None}
        mine = self.device
        if mine is not None:
            tensors |= {f"device/{n}": v for n, v in mine.state_dict().items()}
        told = {
            "format": _FORM, "aggregate": self.aggregate, "names": self.clusters.names, "users": dict(self.clusters.users), "rule": self.clusters.rule,
            "features": self.clusters.features, "columns": None if self.columns is None else self.columns.packed(), "scores": self.scores,
            "joined": {name: one.inputs for name, one in self.joined.items()}, "widths": widths, "opt_in": list(self.opt_in), "reason": self.reason,
            "device": None if mine is None else {"aggregate": mine.aggregate, "classes": mine.classes, "inputs": mine.inputs, "widths": _widths(mine.head)},
        }  # fmt: skip
        plain = {name: value.contiguous().clone() for name, value in tensors.items()}
        return {_TENSORS: save_tensors(plain), _SETTINGS: as_json(told, indent=1).encode()}

    def save(self, folder: str | Path) -> None:
        """Write ``ensemble.json`` and ``ensemble.safetensors``, see `packed`; a run's folder has both."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name, content in self.packed().items():
            write_bytes(place / name, content)

    @classmethod
    def load(cls, folder: str | Path, model: Any, private: Any = None) -> FederatedEnsemble:
        """Read what `save` wrote.

        Args:
            folder: the folder.
            model: what makes a leaf: a model, or a function that makes one.
            private: what makes the private leaf; without it, the ensemble has no ``device``.

        Raises:
            CheckpointError: the folder holds no ensemble, or one of other models.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load as load_tensors

        place = Path(folder)
        try:
            told = json.loads((place / _SETTINGS).read_bytes())
            tensors = load_tensors((place / _TENSORS).read_bytes())
            if told.get("format") != _FORM:
                raise ValueError(f"format {told.get('format')!r}")
            return cls._rebuilt(told, tensors, (model, private), str(place))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(
                f"the ensemble cannot be read: {str(error).splitlines()[0]}",
                where=str(place),
                remedy="give the folder of FederatedEnsemble.save, and the model of its leaves",
            ) from error

    @classmethod
    def _rebuilt(
        cls, told: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], models: tuple[Any, Any], where: str
    ) -> FederatedEnsemble:
        def part(name: str) -> dict[str, torch.Tensor]:
            return {key.partition("/")[2]: value for key, value in tensors.items() if key.startswith(f"{name}/")}

        members = []
        for place in range(len(told["names"])):
            one = _fresh(models[0])
            one.load_state_dict(part(f"leaf-{place}"))
            members.append(one.eval().requires_grad_(False))
        joined = {}
        for name, inputs in told["joined"].items():
            own, widths = part(name), told["widths"].get(name)
            head: Any = own.get("weights")
            if widths:
                head = _head_of(own, widths, "0.mean")
                head.load_state_dict(own)
                head.eval().requires_grad_(False)
            joined[name] = JoinedLeaves(members, name, head, inputs).eval()
        device = None
        if told["device"] is not None and models[1] is not None:
            own, said = part("device"), told["device"]
            head = _head_of(own, said["widths"], "head.0.mean") if said["widths"] else None
            device = DeviceEnsemble(
                _fresh(models[1]), said["aggregate"], len(members), said["classes"], head, said["inputs"]
            )
            device.load_state_dict(own)
            device.eval().requires_grad_(False)
        clusters = Clusters(tuple(told["names"]), told["users"], told["rule"], tuple(told["features"]))
        columns = None if told["columns"] is None else ModelColumns.unpacked(told["columns"], where)
        return cls(
            told["aggregate"],
            clusters,
            joined,
            columns,
            told["scores"],
            None,
            tuple(told["opt_in"]),
            None,
            told["reason"],
            device=device,
        )


def _fresh(model: Any) -> nn.Module:
    return seeded(model if not isinstance(model, nn.Module) else lambda: deepcopy(model), 0)


def _widths(head: nn.Module | None) -> list[int]:
    return [] if head is None else [part.out_features for part in head.modules() if isinstance(part, nn.Linear)]


def _head_of(tensors: Mapping[str, torch.Tensor], widths: Sequence[int], mean: str) -> nn.Sequential:
    """Return an over-arch of these widths, for as many inputs as it was trained on."""
    return over_arch_network(torch.zeros(2, len(tensors[mean])), widths[-1], OverArch(hidden=tuple(widths[:-1])))


def join_results(
    results: Mapping[str, Any],
    islands: Any,
    rule: ClusterRule | None,
    opt_in: Sequence[str],
    settings: OverArch,
    seed: int,
) -> tuple[dict[str, JoinedLeaves], Clusters, EnsembleLoss, OptInRows | None]:
    """Return the ways to join the models of finished trainings, the clusters, and what users have lost; see `Federated.of`."""
    odd = [name for name, made in results.items() if not hasattr(getattr(made, "data", None), "names")]
    if odd or not results or isinstance(opt_in, str):
        what = f"the result of {odd[0]!r} is a {type(results[odd[0]]).__name__}" if odd else f"{len(results)} results, opt_in={opt_in!r}"  # fmt: skip
        raise ConfigError(
            what,
            where="Federated.of",
            remedy="give what atoll.simulate(Training(...), islands) returns, by the name of the leaf, and opt-in users in a list",
        )
    users = {name: tuple(str(one) for one in made.data.names) for name, made in results.items()}
    twins = {one: name for name, own in users.items() for one in own if one in opt_in}
    if twins:
        user, leaf = min(twins.items())
        raise CompositionError(
            f"user {user!r} gave labels to the server and has trained the leaf {leaf!r}",
            where="Federated.of",
            remedy="name opt-in users who are in no training: leaves would answer their rows better than others', and mislead what is learned on these",
        )
    if rule is None and opt_in:
        raise CompositionError(
            "nobody knows the leaf of an opt-in user: the trainings list their own users alone",
            where="Federated.of",
            remedy="give clusters=, the rule by which the trainings' users were chosen",
        )
    if rule is None:
        rule = ListedClusters(users)
        places = [place for place, name in enumerate(islands.names) if any(str(name) in own for own in users.values())]
        islands = islands.subset(places)
    clusters = form_clusters(rule, islands)
    if sorted(clusters.names) != sorted(users):
        raise ConfigError(
            f"results of {', '.join(sorted(users))} for the leaves {', '.join(sorted(clusters.names))}",
            where="Federated.of",
            remedy="name each result as the rule names its leaf",
        )
    for name, own in users.items():
        strangers = [one for one in own if clusters.users.get(one) != clusters.names.index(name)]
        if strangers:
            raise CompositionError(
                f"user {strangers[0]!r} has trained the leaf {name!r}, and the rule gives it another",
                where="Federated.of",
                remedy="train each leaf on the users of its cluster, so that no leaf overlaps another",
            )
    members = [deepcopy(results[name].model) for name in clusters.names]
    _require_alike(members, clusters.names, np.asarray(islands.shard(0)["x"])[:1])
    rows = opt_in_rows(islands, opt_in, clusters)
    claims = [getattr(results[name].prepared, "claim", None) for name in clusters.names]
    told = zip(clusters.names, claims, strict=True)
    loss = account_ensemble([EnsembleRelease.of(f"leaf {name}", users[name], claim) for name, claim in told])
    return join_leaves(members, rows, settings, seed), clusters, loss, rows


def _require_alike(members: Sequence[Any], names: Sequence[str], x: NDArray[Any]) -> None:
    """Refuse models that are no PyTorch models of one number of classes."""
    for name, one in zip(names, members, strict=True):
        if not isinstance(one, nn.Module):
            raise CompositionError(
                f"the model of the leaf {name!r}, a {type(one).__name__}, cannot be joined",
                where="Federated.of",
                remedy="use a PyTorch model, such as atoll.models.mlp(8, 2)",
            )
    with torch.no_grad():
        classes = [log_probabilities(one.eval()(torch.tensor(x))).shape[-1] for one in members]
    if len(set(classes)) > 1:
        raise DataError(
            f"the leaves answer {', '.join(map(str, classes))} classes",
            where="Federated.of",
            remedy="join models of the same classes",
        )


def count_numbers(model: Any) -> int:
    """Return how many numbers a model of PyTorch trains.

    Args:
        model: the model, or a function that makes one.
    """
    return sum(one.numel() for one in _fresh(model).parameters())


def shrinking_widths(inputs: int, outputs: int, most_bytes: int, layers: int = 3) -> tuple[int, ...]:
    """Return widths of hidden layers for a leaf that a device has room for: each ``K`` times as narrow as the one before, ``inputs // K**i``, for the smallest whole ``K`` that fits.

    Example::

        leaf = Training(model=mlp(512, 2, shrinking_widths(512, 2, 300_000)))

    Args:
        inputs: features of a row.
        outputs: of the model.
        most_bytes: of its weights and biases, four bytes each.
        layers: hidden layers.

    Raises:
        ConfigError: even one unit a layer is too large.
    """
    for factor in range(1, inputs + 1):
        widths = tuple(max(1, inputs // factor**place) for place in range(1, layers + 1))
        every = [inputs, *widths, outputs]
        size = 4 * sum((before + 1) * after for before, after in itertools.pairwise(every))
        if size <= most_bytes:
            return widths
    raise ConfigError(
        f"most_bytes={most_bytes} for {inputs} inputs, and the narrowest leaf has {size} bytes",
        where="shrinking_widths",
        remedy="allow more bytes, or use fewer inputs",
    )


def require_fitted(aggregate: str, joined: Mapping[str, Any]) -> None:
    """Refuse a way to join that was not fitted.

    Raises:
        ConfigError: it does not exist, or needs labels that nobody gave.
    """
    if aggregate in joined:
        return
    if aggregate not in AGGREGATES:
        raise ConfigError(f"aggregate={aggregate!r}", where="Federated", remedy=f"use one of {', '.join(AGGREGATES)}")
    raise ConfigError(
        f"aggregate={aggregate!r} is learned on labels of opt-in users, and there are none",
        where="Federated",
        remedy="give opt_in=0.1, or use one of " + ", ".join(joined),
    )


def _probabilities(model: JoinedLeaves, x: NDArray[Any], leaf: NDArray[np.int64] | None) -> NDArray[np.float64]:
    with torch.no_grad():
        return probabilities_of(model(torch.tensor(x), None if leaf is None else torch.as_tensor(leaf)))


def join_leaves(
    members: Sequence[nn.Module],
    rows: OptInRows | None,
    settings: OverArch,
    seed: int,
    head: nn.Sequential | None = None,
) -> dict[str, JoinedLeaves]:
    """Return every way to join leaves that can be fitted, by name.

    Args:
        members: the leaves' models.
        rows: rows of opt-in users; ``None`` for none.
        settings: of the over-arch.
        seed: of the over-arch's weights.
        head: an over-arch that federated learning has trained.
    """
    frozen = [one.eval().requires_grad_(False) for one in members]
    heads: dict[str, Any] = {"mean": None, "logits": None, "median": None, "max": None, "own_leaf": None}
    if rows is not None:
        with torch.no_grad():
            x = torch.tensor(rows.x)
            logs = torch.stack([log_probabilities(one(x)) for one in frozen])
            inputs = over_arch_inputs(frozen, x, settings.inputs)
        heads["weights"] = fit_weights(logs, rows.y)
        heads["over_arch"] = fit_over_arch(inputs, rows.y, logs.shape[-1], settings, seed)
        heads["gate"] = fit_gate(logs, rows.y, rows.leaf)
    elif head is not None:
        heads["over_arch"] = head
    if rows is None:  # nothing moves the gate from where it starts
        heads["gate"] = fit_gate(torch.zeros(len(frozen), 0, 2), np.zeros(0, np.int64), np.zeros(0, np.int64))
    return {name: JoinedLeaves(frozen, name, own, settings.inputs).eval() for name, own in heads.items()}


def score_arms(
    joined: Mapping[str, JoinedLeaves], x: NDArray[Any], y: NDArray[Any], leaf: NDArray[np.int64] | None
) -> dict[str, dict[str, float]]:
    """Return ``auc`` and ``accuracy`` of each way to join on test rows; those that need a leaf are left out if it is not known."""
    found = {}
    for name, model in joined.items():
        if model.wants_leaf and leaf is None:
            continue
        found[name] = score_probabilities(_probabilities(model, x, leaf), y)
    return found


def known_leaves(clusters: Clusters, test: Any) -> NDArray[np.int64] | None:
    """Return the leaf of each test row; ``None`` where its users are unknown and it has no public columns."""
    try:
        return clusters.leaf_of(test)
    except DataError:
        return None


def score_population(joined: Mapping[str, JoinedLeaves], data: Any, clusters: Clusters) -> dict[str, dict[str, float]]:
    """Return `score_arms` on a population's test rows; nothing without these."""
    test = getattr(data, "test", None)
    if test is None or not len(test):
        return {}
    return score_arms(joined, np.asarray(test.x), np.asarray(test.y), known_leaves(clusters, test))


def score_probabilities(chances: NDArray[np.float64], y: NDArray[Any]) -> dict[str, float]:
    """Return ``auc`` and ``accuracy``; classes are places, and of two also -1 and 1."""
    labels = (y > 0).astype(np.int64) if chances.shape[1] == 2 else y
    return {
        "auc": auc(labels, chances[:, 1] if chances.shape[1] == 2 else chances),
        "accuracy": float((chances.argmax(1) == labels).mean()),
    }


def score_interval(measure: str, value: float, y: NDArray[Any], classes: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a score on test rows, as if rows were independent; ``None`` of an area of several classes, or where a class is missing.

    The area under the curve: ``A +- 1.96 s`` with ``s^2 = (A (1 - A) + (n_1 - 1) (Q_1 - A^2) + (n_0 - 1) (Q_2 - A^2)) / (n_1 n_0)``, ``Q_1 = A / (2 - A)``,
    ``Q_2 = 2 A^2 / (1 + A)`` (Hanley, McNeil 1982). Shares: Wilson 1927.

    Args:
        measure: ``auc`` or ``accuracy``.
        value: the score.
        y: labels; of two classes places, or -1 and 1.
        classes: their number.
    """
    count = len(y)
    if measure == "accuracy":
        centre, z = value + _NORMAL**2 / (2 * count), _NORMAL**2 / count
        reach = _NORMAL * np.sqrt(value * (1 - value) / count + z / (4 * count))
        return float((centre - reach) / (1 + z)), float((centre + reach) / (1 + z))
    ones = int((np.asarray(y) > 0).sum())
    zeros = count - ones
    if classes != 2 or not ones or not zeros:
        return None
    first, second = value / (2 - value), 2 * value**2 / (1 + value)
    spread = value * (1 - value) + (ones - 1) * (first - value**2) + (zeros - 1) * (second - value**2)
    reach = _NORMAL * float(np.sqrt(max(spread, 0.0) / (ones * zeros)))
    return max(0.0, value - reach), min(1.0, value + reach)


def opt_in_rows(data: Any, users: Sequence[str], clusters: Clusters) -> OptInRows | None:
    """Return the labelled rows of opt-in users; ``None`` for none.

    Raises:
        DataError: the rows are at other organisations.
    """
    if not users:
        return None
    if not hasattr(data, "shard") or hasattr(data, "outline"):
        raise DataError(
            "rows of opt-in users are not at the server",
            where="Federated.opt_in",
            remedy="leave opt_in=0.0, and train the over-arch by federated learning",
        )
    shards = [data.shard(name) for name in users]
    leaf = np.concatenate([np.full(len(one), clusters.users[name]) for one, name in zip(shards, users, strict=True)])
    y = np.concatenate([np.asarray(one["y"]) for one in shards])
    y = (y > 0).astype(np.int64) if data.task == "binary" else y.astype(np.int64)
    return OptInRows(np.concatenate([np.asarray(one["x"]) for one in shards]), y, leaf, tuple(users))
