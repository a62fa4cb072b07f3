"""How an ensemble chooses itself: how many leaves, who is in which, and which of them train on; and what judges that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

from .joining import log_probabilities

__all__ = ["Search", "SearchRecord", "choose_count", "find_weak", "log_losses", "settle_moves", "user_losses"]

_WORST = -math.log(1e-12)
"""Largest log loss of a row: a leaf that is sure of the wrong class, or gives no number, does not outweigh all other rows."""

_ERRORS = 2.0
"""How many standard errors a larger number of leaves must be better by."""


@dataclass(frozen=True, kw_only=True)
class Search(Checked):
    """What an ensemble chooses itself, under the epsilon of its leaves.

    *How many leaves*: an ensemble is trained for each of ``clusters``, to its end. The judge is the log loss of opt-in users under their own leaf, which has
    not seen them. Chosen are the fewest leaves whose mean loss by user is above the least by at most two standard errors of the difference, in pairs of one user: fewer than any that is
    better beyond chance (in the manner of Breiman, Friedman, Olshen, Stone 1984, whose rule has one standard error, and no pairs). Candidates with a leaf below the smallest number of users, or above ``most_bytes``, are left out.

    *Who is in which leaf*: after the leaves have trained, each user says which of them serves its rows best, as in IFCA (Ghosh et al. 2020), and moves there; on a tie it
    stays. The leaves train on from where they are, for as many rounds as before. A leaf that would keep too few users keeps all of them. If nobody moves, it is over.

    *Which leaves train on*: a leaf lags if the mean log loss of its opt-in users is above that of the median leaf by more than ``margin``. It gets ``retrain`` rounds more, and
    keeps its old model unless the new one is better for these users.

    Labels of opt-in users cost nothing, for they gave them. What is trained costs: all candidates and all further trainings add up, user by user, and get a smaller epsilon each, so
    that all together keep the ensemble's. Who moves follows private labels: with a mechanism of privacy, users answer by randomised response, which is charged; given the noised
    answers, labels do not decide who is in which leaf, so that leaves count once a training.

    Example::

        search = Search(clusters=(1, 2, 4, 8), recluster=1, retrain=10)
        job = Federated(clusters=CentroidClusters(1, ["age"]), leaf=Training(model=...), opt_in=0.1, search=search)

    Attributes:
        clusters: candidates for the number of leaves, ascending, instead of the ``count`` of the rule; empty to keep the rule's.
        most_bytes: of all leaves together, four bytes a number; ``None`` for any.
        recluster: how often users may move.
        retrain: rounds more of leaves that lag; 0 for none.
        margin: by how much a leaf must lag, in nats a row.
        warm: where a leaf that lags begins: with its ``"own"`` model, or with the ``"neighbour"``: that of the leaf which serves its opt-in users best.
        epsilon: of each answer of a user; ``None``: users say plainly where they move.
    """

    clusters: Sequence[int] = ()
    most_bytes: int | None = None
    recluster: int = 0
    retrain: int = 0
    margin: float = 0.05
    warm: Literal["own", "neighbour"] = "own"
    epsilon: float | None = None

    def __post_init__(self) -> None:
        counts = list(self.clusters) if not isinstance(self.clusters, str) else [0]
        whole = all(isinstance(one, int | np.integer) and not isinstance(one, bool) and one >= 1 for one in counts)
        if not whole or counts != sorted(set(counts)):
            raise ConfigError(
                f"clusters={self.clusters!r}",
                where="Search",
                remedy="give numbers of leaves, ascending, such as clusters=(1, 2, 4, 8)",
            )
        if self.recluster < 0 or self.retrain < 0 or not 0 <= self.margin < math.inf:
            raise ConfigError(
                f"recluster={self.recluster}, retrain={self.retrain}, margin={self.margin}",
                where="Search",
                remedy="use 0 or more times, rounds and nats",
            )
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ConfigError(
                f"epsilon={self.epsilon}",
                where="Search",
                remedy="use a finite number above 0, or None: users then say plainly where they move",
            )
        if self.most_bytes is not None and self.most_bytes < 1:
            raise ConfigError(f"most_bytes={self.most_bytes}", where="Search", remedy="use at least 1 byte, or None")
        if not counts and self.most_bytes is not None:
            raise ConfigError(
                f"most_bytes={self.most_bytes} without candidates",
                where="Search",
                remedy="give candidates, clusters=(1, 2, 4, 8); shrinking_widths fits the widths of one leaf",
            )
        if not counts and not self.recluster and not self.retrain:
            raise ConfigError(
                "nothing to choose", where="Search", remedy="give clusters=(1, 2, 4, 8), recluster=1 or retrain=10"
            )

    @property
    def again(self) -> int:
        """How many further trainings a user may be in."""
        return self.recluster + (self.retrain > 0)


@dataclass(frozen=True)
class SearchRecord:
    """What an ensemble has chosen, and why.

    Attributes:
        clusters: the number of leaves.
        candidates: for each candidate ``clusters``, and ``loss``, ``above`` and ``error``: the mean log loss of opt-in users, by how much it is above the least one, and the standard error of
            this difference; or ``left_out``: why it was not trained.
        moved: how many users changed their leaf, each time.
        retrained: for each leaf that lagged ``leaf``, ``before``, ``after`` and ``kept``: log losses of its opt-in users, and whether it has the new model.
        why: in words.
    """

    clusters: int
    candidates: tuple[Mapping[str, Any], ...] = ()
    moved: tuple[int, ...] = ()
    retrained: tuple[Mapping[str, Any], ...] = ()
    why: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        rows = {"candidates": self.candidates, "retrained": self.retrained}
        more = {name: [dict(one) for one in found] for name, found in rows.items()}
        return {"clusters": self.clusters, "moved": list(self.moved), **more, "why": self.why}

    def section(self) -> dict[str, Any]:
        """Return the section of a report."""
        tables = []
        if self.candidates:
            names = ("loss", "above", "error")
            rows = [
                [str(one["clusters"]), *(f"{one[name]:.4f}" if name in one else "-" for name in names), str(one.get("left_out", ""))]
                for one in self.candidates
            ]  # fmt: skip
            tables.append(
                {"head": ["leaves", "log loss of opt-in users", "above the least", "its standard error", "left out, because"], "rows": rows}
            )  # fmt: skip
        if self.retrained:
            rows = [
                [str(one["leaf"]), f"{one['before']:.4f}", f"{one['after']:.4f}", "yes" if one["kept"] else "no"]
                for one in self.retrained
            ]
            tables.append({"head": ["leaf that lagged", "log loss before", "after", "has the new model"], "rows": rows})
        return {"title": "What it chose", "text": self.why, "tables": tables}


# ---------------------------------------------------------------- what judges leaves


def log_losses(members: Sequence[nn.Module], x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean log loss of rows under each leaf, ``(C,)``; zeros without rows.

    Args:
        members: the leaves' models.
        x: features, ``(B, ...)``.
        y: labels, ``(B,)``: places of classes, or -1 and 1.
    """
    if not len(y):
        return np.zeros(len(members))
    places = torch.as_tensor(np.maximum(np.asarray(y), 0).astype(np.int64))
    found = []
    with torch.no_grad():
        inputs = torch.tensor(np.asarray(x))
        for member in members:
            logs = log_probabilities(member.eval()(inputs)).double()
            lost = -logs[torch.arange(len(places)), places].numpy()
            found.append(np.nan_to_num(lost, nan=_WORST, posinf=_WORST).clip(max=_WORST).mean())
    return np.array(found)


def user_losses(members: Sequence[nn.Module], data: Any, users: Sequence[str]) -> NDArray[np.float64]:
    """Return the mean log loss of each opt-in user's rows under each leaf, ``(users, C)``."""
    shards = [data.shard(name) for name in users]
    return np.stack([log_losses(members, np.asarray(one["x"]), np.asarray(one["y"])) for one in shards])


def choose_count(losses: Mapping[int, NDArray[np.float64]]) -> tuple[int, list[dict[str, float]]]:
    """Return the number of leaves by the rule of two standard errors, and what it was chosen by; see `Search`.

    Args:
        losses: number of leaves -> the loss of each opt-in user, ``(users,)``, in one order.
    """
    best = min(losses, key=lambda count: (losses[count].mean(), count))
    told = []
    for count in sorted(losses):
        gap = losses[count] - losses[best]
        error = float(gap.std(ddof=1) / math.sqrt(len(gap))) if len(gap) > 1 else 0.0
        mean, above = float(losses[count].mean()), float(gap.mean())
        told.append({"clusters": count, "loss": mean, "above": above, "error": error})
    chosen = next(one for one in told if one["above"] <= _ERRORS * one["error"])
    return int(chosen["clusters"]), told


def find_weak(losses: NDArray[np.float64], leaf: NDArray[np.int64], margin: float) -> dict[int, NDArray[np.float64]]:
    """Return the leaves that lag, with the losses of their opt-in users under all leaves, ``(C,)``; a leaf without such users is not judged.

    Args:
        losses: of each opt-in user under each leaf, ``(users, C)``.
        leaf: of each opt-in user, ``(users,)``.
        margin: see `Search`.
    """
    means = {int(place): losses[leaf == place].mean(0) for place in np.unique(leaf)}
    level = float(np.median([row[place] for place, row in means.items()])) if means else 0.0
    return {place: row for place, row in means.items() if row[place] > level + margin}


def settle_moves(users: Mapping[str, int], asked: Mapping[str, int], smallest: int) -> dict[str, int]:
    """Return the leaf of each user after the moves that leave no leaf with too few users; a leaf that would have too few keeps all of its own.

    Args:
        users: user -> leaf, of all that train.
        asked: user -> where it would move.
        smallest: fewest users of a leaf.
    """
    found = {**users, **asked}
    while True:
        sizes = Counter(found.values())
        back = [user for user in asked if found[user] != users[user] and sizes[users[user]] < smallest]
        if not back:
            return found
        found |= {user: users[user] for user in back}
