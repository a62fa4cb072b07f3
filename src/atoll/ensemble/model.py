"""`FederatedEnsemble`: leaves, clusters and what joins them, which answers rows of tables, and its folder."""

from __future__ import annotations

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
from atoll.data import Dataset
from atoll.data.model_columns import ModelColumns, table_of_rows
from atoll.torch import seeded
from atoll.trees.tree import auc

from .accounting import EnsembleLoss
from .clusters import Clusters
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
)

__all__ = [
    "FederatedEnsemble",
    "OptInRows",
    "join_leaves",
    "opt_in_rows",
    "require_fitted",
    "score_arms",
    "score_probabilities",
]

_FORM = "atoll.ensemble/1"
_SETTINGS, _TENSORS = "ensemble.json", "ensemble.safetensors"


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

    def save(self, folder: str | Path) -> None:
        """Write ``ensemble.json`` and ``ensemble.safetensors``: clusters, columns, how leaves are joined, and all numbers."""
        from safetensors.torch import save as save_tensors

        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        tensors = {f"leaf-{k}/{n}": v for k, one in enumerate(self.leaves) for n, v in one.state_dict().items()}
        for name, one in self.joined.items():
            if one.head is not None:
                tensors |= {f"{name}/{n}": v for n, v in one.head.state_dict().items()}
            elif one.weights is not None:
                tensors[f"{name}/weights"] = one.weights
        widths = {
            name: [p.out_features for p in one.head if isinstance(p, nn.Linear)]
            for name, one in self.joined.items()
            if isinstance(one.head, nn.Sequential)
        }
        told = {
            "format": _FORM, "aggregate": self.aggregate, "names": self.clusters.names, "users": dict(self.clusters.users), "rule": self.clusters.rule,
            "features": self.clusters.features, "columns": None if self.columns is None else self.columns.packed(), "scores": self.scores,
            "joined": {name: one.inputs for name, one in self.joined.items()}, "widths": widths, "opt_in": list(self.opt_in), "reason": self.reason,
        }  # fmt: skip
        write_bytes(
            place / _TENSORS, save_tensors({name: value.contiguous().clone() for name, value in tensors.items()})
        )
        write_bytes(place / _SETTINGS, as_json(told, indent=1).encode())

    @classmethod
    def load(cls, folder: str | Path, model: Any) -> FederatedEnsemble:
        """Read what `save` wrote.

        Args:
            folder: the folder.
            model: what makes a leaf: a model, or a function that makes one.

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
            return cls._rebuilt(told, tensors, model, str(place))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(
                f"the ensemble cannot be read: {str(error).splitlines()[0]}",
                where=str(place),
                remedy="give the folder of FederatedEnsemble.save, and the model of its leaves",
            ) from error

    @classmethod
    def _rebuilt(
        cls, told: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], model: Any, where: str
    ) -> FederatedEnsemble:
        def part(name: str) -> dict[str, torch.Tensor]:
            return {key.partition("/")[2]: value for key, value in tensors.items() if key.startswith(f"{name}/")}

        members = []
        for place in range(len(told["names"])):
            one = seeded(model if not isinstance(model, nn.Module) else lambda: deepcopy(model), 0)
            one.load_state_dict(part(f"leaf-{place}"))
            members.append(one.eval().requires_grad_(False))
        joined = {}
        for name, inputs in told["joined"].items():
            own, widths = part(name), told["widths"].get(name)
            head: Any = own.get("weights")
            if widths:
                head = over_arch_network(torch.zeros(2, len(own["0.mean"])), widths[-1], OverArch(hidden=widths[:-1]))
                head.load_state_dict(own)
                head.eval().requires_grad_(False)
            joined[name] = JoinedLeaves(members, name, head, inputs).eval()
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
        made = model(torch.tensor(x), None if leaf is None else torch.as_tensor(leaf))
    return np.asarray(made.double().exp().numpy())


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
    heads: dict[str, Any] = {"mean": None, "median": None, "max": None, "own_leaf": None}
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
    joined: Mapping[str, JoinedLeaves], test: Dataset, leaf: NDArray[np.int64] | None
) -> dict[str, dict[str, float]]:
    """Return ``auc`` and ``accuracy`` of each way to join on test rows; those that need a leaf are left out if it is not known."""
    found = {}
    for name, model in joined.items():
        if model.wants_leaf and leaf is None:
            continue
        found[name] = score_probabilities(_probabilities(model, np.asarray(test.x), leaf), np.asarray(test.y))
    return found


def score_probabilities(chances: NDArray[np.float64], y: NDArray[Any]) -> dict[str, float]:
    """Return ``auc`` and ``accuracy``; classes are places, and of two also -1 and 1."""
    labels = (y > 0).astype(np.int64) if chances.shape[1] == 2 else y
    return {
        "auc": auc(labels, chances[:, 1] if chances.shape[1] == 2 else chances),
        "accuracy": float((chances.argmax(1) == labels).mean()),
    }


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
