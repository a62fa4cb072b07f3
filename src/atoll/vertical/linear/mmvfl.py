"""`MMVFL`: classes that one party knows teach each of several parties a model of its own columns, and which of these matter (Feng and Yu 2020).

Party k has columns ``X_k``, weights ``W_k``, an intercept ``b_k``, and pseudo-labels ``Z_k``, one column a class; Z is common. With the guest's labels Y, one-hot, all minimise

    ``sum_k ( |X_k W_k + b_k - Z_k|^2 + zeta |Z_k - Z|^2 + eta_k |Z_k - Y|^2 ) / rows + beta sum_k |W_k|_2,1``

where ``eta_k`` is 0 at the hosts, and ``|W|_2,1`` adds up the lengths of the rows of W: whole columns of a party get the weight 0. The authors leave out ``1 / rows``; with it, beta does
not depend on how many rows there are, but is about the least correlation that counts.

Given all parties' scores ``P_k = X_k W_k + b_k``, the best Z's have a closed form: ``Z = sum a_k (P_k + eta_k Y) / sum a_k (1 + eta_k)`` with ``a_k = 1 / (1 + zeta + eta_k)``, and
``Z_k = a_k (P_k + zeta Z + eta_k Y)``. So a round is: each host tells the guest its scores, the guest tells all Z, and each party fits its weights to its ``Z_k``. The problem is convex, and
the rounds reach its optimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.trees.objectives import LOGISTIC, SOFTMAX, TreeLoss

from ..model import ColumnScales, GuestRows, Part, Save, VerticalModel, require
from .rows import read_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

__all__ = ["MMVFL", "fit_group_lasso"]

_ROUNDS = 1000
_CLOSE = 1e-10
"""The rounds end where no entry of Z moves further."""


def fit_group_lasso(
    x: NDArray[np.float64], z: NDArray[np.float64], beta: float, start: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The minimiser W of ``|x W - z|^2 / rows + beta |W|_2,1``, by coordinates: a row of W at a time.

    Args:
        x: ``(rows, columns)``.
        z: ``(rows, outputs)``.
        beta: the penalty.
        start: where to begin, ``(columns, outputs)``.
    """
    gram, pull, w = x.T @ x / len(x), x.T @ z / len(x), start.copy()
    for _ in range(10_000):
        largest = 0.0
        for j in np.flatnonzero(np.diag(gram) > 0):
            target = pull[j] - gram[j] @ w + gram[j, j] * w[j]
            length = float(np.sqrt(target @ target))
            new = target * (max(0.0, 1 - beta / (2 * length)) / gram[j, j] if length else 0.0)
            largest = max(largest, float(np.abs(new - w[j]).max(initial=0.0)))
            w[j] = new
        if largest <= 1e-12:
            break
    return w


@dataclass(frozen=True, kw_only=True)
class MMVFL(VerticalModel):
    """Classes of the guest teach every party a linear model of its own columns, and select these; see `atoll.vertical.linear.mmvfl`.

    Each party can predict alone (`VerticalResult.predict_own`, ``VerticalPrediction(target=)``). Together the parties predict by the mean of their scores, which are no probabilities.

    Nothing hides: that the hosts learn the labels is the purpose, and the guest sees their scores. `selected` says which columns of a part count.

    Attributes:
        beta: penalty of the lengths of a column's weights, about twice the least correlation with the pseudo-labels that counts.
        zeta: how closely each party's pseudo-labels follow the common ones.
        eta: how closely the guest's follow the labels.
    """

    precision = np.float64

    beta: float = 0.02
    zeta: float = 1000.0
    eta: float = 1000.0

    def __post_init__(self) -> None:
        for name in ("beta", "zeta", "eta"):
            least = 0.0 if name == "beta" else 1e-3
            if not least <= getattr(self, name) < np.inf:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}", where="MMVFL", remedy=f"use a finite number >= {least:g}"
                )

    @property
    def security(self) -> str:  # type: ignore[override]
        """``none``."""
        return "none"

    def fit_objective(self, objective: TreeLoss) -> TreeLoss:
        """The classes' own.

        Raises:
            ConfigError: the labels are numbers.
        """
        if objective.name not in (LOGISTIC, SOFTMAX):
            raise ConfigError("labels that are numbers", where="MMVFL", remedy="use VerticalLinear, or task='multiclass' for labels that are classes")  # fmt: skip
        return objective

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        return {
            "host": [
                "common pseudo-labels of every training row in each round, from which the labels follow: that the hosts have labels is the purpose of the method"
            ],
            "guest": [
                "each host's score of each class for every training row in each round, and for every row that is predicted: a linear map of the host's columns"
            ],
        }

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, of ten rounds.

        Args:
            rows: training rows.
            columns: how many columns each party has.
            outputs: margins of a row.
        """
        hosts, rounds = len(columns) - 1, 10.0
        seconds = rounds * (1e-3 * len(columns) + 8e-9 * rows * sum(columns) * outputs)
        return {"seconds": seconds, "bytes": rounds * hosts * 16.0 * rows * outputs}

    async def train_guest(
        self, rows: GuestRows, peers: Peers, hosts: Sequence[str], *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:  # fmt: skip
        """The guest's role: gather scores, tell the common pseudo-labels; see `VerticalModel.train_guest`."""
        del secret
        outputs = rows.objective.outputs
        joint, own = _Joint(self, _one_hot(rows), len(hosts)), _Side(self, rows.x, outputs, state)
        if state is None:
            await peers.broadcast({"outputs": outputs, "eta": self.eta, "zeta": self.zeta}, hosts)
        else:
            joint.z = np.asarray(state["z"], np.float64)
        for step in range(int(state["step"]) if state else 0, _ROUNDS):
            scores = [own.scores]
            scores += [read_numbers(await peers.recv(name), own.scores.shape, name) for name in hosts]
            moved = joint.update(scores)
            await peers.broadcast({"z": joint.z, "done": moved <= _CLOSE}, hosts)
            own.fit(joint.targets(own.scores))
            if moved <= _CLOSE:
                return own.packed() | {"parties": len(hosts) + 1}
            if save is not None:
                await save({"step": step + 1, "weights": own.w, "base": own.base, "z": joint.z})
        raise _unsettled()

    async def train_host(
        self, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:
        """A host's role: tell scores, follow the common pseudo-labels; see `VerticalModel.train_host`."""
        del secret
        told = state["public"] if state else await peers.recv(guest)
        public: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        outputs: Any = public.get("outputs")
        require(type(outputs) is int and 1 <= outputs <= 1000, f"{outputs!r} classes", "MMVFL")
        require((public.get("eta"), public.get("zeta")) == (self.eta, self.zeta), "other settings than agreed", "MMVFL")
        own, step = _Side(self, x, outputs, state), int(state["step"]) if state else 0
        while True:
            await peers.send(guest, own.scores)
            told = await peers.recv(guest)
            found: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
            z = read_numbers(found.get("z"), own.scores.shape, guest)
            own.fit((own.scores + self.zeta * z) / (1 + self.zeta))
            if found.get("done"):
                return own.packed()
            step += 1
            require(step <= _ROUNDS, f"more than {_ROUNDS} rounds of {guest!r}", "MMVFL")
            if save is not None:
                await save({"step": step, "weights": own.w, "base": own.base, "public": dict(public)})

    def train_pooled(self, rows: GuestRows) -> Part:
        """The same learner with all columns in one place; of the guest's own columns, one party's."""
        ends = np.cumsum([0, *(rows.columns or (rows.x.shape[1],))]).tolist()
        sides = [_Side(self, rows.x[:, a:b], rows.objective.outputs, None) for a, b in pairwise(ends)]
        joint = _Joint(self, _one_hot(rows), len(sides) - 1)
        for _ in range(_ROUNDS):
            scores = [side.scores for side in sides]
            moved = joint.update(scores)
            sides[0].fit(joint.targets(scores[0]))
            for side, own in zip(sides[1:], scores[1:], strict=True):
                side.fit((own + self.zeta * joint.z) / (1 + self.zeta))
            if moved <= _CLOSE:
                break
        else:
            raise _unsettled()
        return {"sides": [side.packed() for side in sides], "ends": ends}

    # Predictions.

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> dict[str, Any]:
        """The host's scores of the rows, ``(rows, outputs)``."""
        return {"scores": _score(part, x)}

    @classmethod
    def read_answer(cls, part: Part, message: Any, rows: int, host: int, name: str) -> NDArray[np.float64]:
        """A host's scores of the rows.

        Raises:
            MessageError: they are none, or not a finite number for each row and output.
        """
        told = message.get("scores") if isinstance(message, Mapping) else None
        return read_numbers(told, (rows, len(np.asarray(part["base"]))), name)

    @classmethod
    def margins(cls, part: Part, x: NDArray[Any], answers: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The mean of all parties' scores: the pseudo-labels that fit them best where nobody knows the label."""
        if "sides" in part:
            ends = part["ends"]
            scores = [_score(side, x[:, a:b]) for side, a, b in zip(part["sides"], ends, ends[1:], strict=False)]
        else:
            scores = [_score(part, x), *answers]
        return np.asarray(sum(scores) / len(scores))

    @classmethod
    def own_margins(cls, part: Part, guest_part: Part, x: NDArray[Any]) -> NDArray[np.float64]:
        """A host's scores of its own rows, by its own part."""
        del guest_part
        return _score(part, x)

    @staticmethod
    def selected(part: Part) -> NDArray[np.float64]:
        """The length of the weights of each column of a part, by which the authors rank them; 0 where a column does not count."""
        return np.asarray(np.sqrt((np.asarray(part["weights"]) ** 2).sum(axis=1)))


class _Side:
    """One party's columns and weights."""

    def __init__(self, model: MMVFL, x: NDArray[Any], outputs: int, state: Any) -> None:
        self.beta, self.scales = model.beta, ColumnScales.of(x)
        self.x = self.scales.apply(x)
        self.middle = self.x.mean(axis=0)  # what missing values leave of it
        self.w = np.asarray(state["weights"]) if state else np.zeros((x.shape[1], outputs))
        self.base = np.asarray(state["base"]) if state else np.zeros(outputs)

    @property
    def scores(self) -> NDArray[np.float64]:
        """``X W + b``."""
        return np.asarray(self.x @ self.w + self.base)

    def fit(self, z: NDArray[np.float64]) -> None:
        """Fit weights and intercept to pseudo-labels."""
        self.w = fit_group_lasso(self.x - self.middle, z - z.mean(axis=0), self.beta, self.w)
        self.base = z.mean(axis=0) - self.middle @ self.w

    def packed(self) -> Part:
        """The party's part of the model."""
        return {"scales": self.scales.packed(), "weights": self.w, "base": self.base}


class _Joint:
    """The common pseudo-labels."""

    def __init__(self, model: MMVFL, y: NDArray[np.float64], hosts: int) -> None:
        self.zeta, self.eta, self.y, self.hosts = model.zeta, model.eta, y, hosts
        self.z = np.full_like(y, np.inf)

    def update(self, scores: Sequence[NDArray[np.float64]]) -> float:
        """The best Z for these scores; return how far it moved."""
        guest, host = 1 / (1 + self.zeta + self.eta), 1 / (1 + self.zeta)
        total = guest * (scores[0] + self.eta * self.y)
        for one in scores[1:]:
            total = total + host * one
        before, self.z = self.z, total / (guest * (1 + self.eta) + host * self.hosts)
        return float(np.abs(self.z - before).max(initial=0.0))

    def targets(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """The guest's own pseudo-labels."""
        return np.asarray((scores + self.zeta * self.z + self.eta * self.y) / (1 + self.zeta + self.eta))


def _one_hot(rows: GuestRows) -> NDArray[np.float64]:
    """Labels as a column a class, or of two classes one of -1 and 1."""
    if rows.objective.name == LOGISTIC:
        return np.asarray(2.0 * rows.targets[:, None] - 1.0)
    return np.asarray((rows.targets[:, None] == np.arange(rows.objective.outputs)).astype(np.float64))


def _score(part: Part, x: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(ColumnScales.unpacked(part["scales"]).apply(x) @ np.asarray(part["weights"]) + np.asarray(part["base"]))  # fmt: skip


def _unsettled() -> DataError:
    return DataError(
        f"pseudo-labels still move after {_ROUNDS} rounds",
        where="MMVFL",
        remedy="use larger zeta= and eta=, such as 1000",
    )
