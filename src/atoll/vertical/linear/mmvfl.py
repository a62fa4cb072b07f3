"""`MMVFL`: classes that one or several parties know teach each of them a model of its own columns, and which of these matter (Feng and Yu 2020).

Party k has columns ``X_k``, weights ``W_k``, an intercept ``b_k``, and pseudo-labels ``Z_k``, one column a class; Z is common. With labels ``Y_k``, one-hot, all minimise

    ``sum_k ( |X_k W_k + b_k - Z_k|^2 + zeta |Z_k - Z|^2 + sum_i eta_ki |Z_ki - Y_ki|^2 ) / rows + beta sum_k |W_k|_2,1``

where ``eta_ki`` is eta where party k has a label of row i, and else 0, and ``|W|_2,1`` adds up the lengths of the rows of W: whole columns of a party get the weight 0. The authors have labels
at one party, the guest; here hosts may have some of their own (``labels=``), also of some rows alone and others than the guest's: Z is between them. The authors leave out ``1 / rows``; with it, beta
does not depend on how many rows there are, but is about the least correlation that counts.

Given all parties' scores ``P_k = X_k W_k + b_k``, the best Z's have a closed form, row by row: ``Z = sum a_k (P_k + eta_k Y_k) / sum a_k (1 + eta_k)`` with ``a_k = 1 / (1 + zeta + eta_k)``, and
``Z_k = a_k (P_k + zeta Z + eta_k Y_k)``. So a round is: each host tells the guest ``P_k + eta_k Y_k``, the guest tells all Z, and each party fits its weights to its ``Z_k``. A host with labels of its
own first says which rows have one. The problem is convex, and the rounds reach its optimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.message import Bits
from atoll.core.redaction import private
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
    """Classes of the guest, and of hosts with labels of their own, teach every party a linear model of its own columns, and select these; see `atoll.vertical.linear.mmvfl`.

    Each party can predict alone (`VerticalResult.predict_own`, ``VerticalPrediction(target=)``). Together the parties predict by the mean of their scores, which are no probabilities.

    Nothing hides: that all parties learn the labels is the purpose, and the guest sees the hosts' scores. `selected` says which columns of a part count.

    Attributes:
        beta: penalty of the lengths of a column's weights, about twice the least correlation with the pseudo-labels that counts.
        zeta: how closely each party's pseudo-labels follow the common ones.
        eta: how closely a party's follow its own labels.
        labels: host -> the column of its own labels, if it has some: classes of the guest by name, empty where a row has none.
    """

    precision = np.float64

    beta: float = 0.02
    zeta: float = 1000.0
    eta: float = 1000.0
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.labels, Mapping) or not all(isinstance(one, str) for each in self.labels.items() for one in each):  # fmt: skip
            raise ConfigError(f"labels={self.labels!r}", where="MMVFL", remedy="map hosts to columns, such as labels={'shop': 'diagnosis'}")  # fmt: skip
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

    def label_of(self, host: str) -> str | None:
        """See `VerticalModel.label_of`."""
        return self.labels.get(host)

    def require_hosts(self, hosts: Sequence[str]) -> None:
        """Refuse labels of a party that is no host.

        Raises:
            ConfigError: there are some.
        """
        foreign = next((name for name in self.labels if name not in hosts), None)
        if foreign is not None:
            raise ConfigError(f"labels= of {foreign!r}", where="MMVFL", remedy=f"name hosts: {', '.join(hosts)}; the guest's labels are label= of Vertical")  # fmt: skip

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
        own = [f"the labels of {', '.join(self.labels)}, which follow from what these tell"] if self.labels else []
        return {
            "host": [
                "common pseudo-labels of every training row in each round, from which the labels follow: that the hosts have labels is the purpose of the method"
            ],
            "guest": [
                "each host's score of each class for every training row in each round, and for every row that is predicted: a linear map of the host's columns",
                *own,
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
        outputs, labelled = rows.objective.outputs, [name for name in hosts if name in self.labels]
        own = _Side(self, rows.x, _one_hot(rows.targets, outputs), state)
        if state is None:
            public = {"outputs": outputs, "eta": self.eta, "zeta": self.zeta}
            await peers.broadcast(public | ({"classes": list(rows.classes)} if labelled else {}), hosts)
            known = {name: _read_rows(await peers.recv(name), len(rows.x), name) for name in labelled}
        else:
            known = dict(state.get("known") or {})
        weights = [own.weight, *(_shorten(self.eta * known[name].unpack()[:, None]) if name in known else 0.0 for name in hosts)]  # fmt: skip
        joint = _Joint(self, own.scores.shape, weights)
        if state is not None:
            joint.z = np.asarray(state["z"], np.float64)
        for step in range(int(state["step"]) if state else 0, _ROUNDS):
            terms = [own.term]
            terms += [read_numbers(await peers.recv(name), own.scores.shape, name) for name in hosts]
            moved = joint.update(terms)
            await peers.broadcast({"z": joint.z, "done": moved <= _CLOSE}, hosts)
            own.follow(joint.z)
            if moved <= _CLOSE:
                return own.packed() | {"parties": len(hosts) + 1}
            if save is not None:
                await save({"step": step + 1, "weights": own.w, "base": own.base, "z": joint.z, "known": known})
        raise _unsettled()

    async def train_host(
        self, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret, state: Any = None, save: Save | None = None,
        labels: NDArray[np.str_] | None = None,
    ) -> Part:  # fmt: skip
        """A host's role: tell scores, follow the common pseudo-labels; see `VerticalModel.train_host`. ``labels`` are its own."""
        del secret
        told = state["public"] if state else await peers.recv(guest)
        public: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        outputs: Any = public.get("outputs")
        require(type(outputs) is int and 1 <= outputs <= 1000, f"{outputs!r} classes", "MMVFL")
        require((public.get("eta"), public.get("zeta")) == (self.eta, self.zeta), "other settings than agreed", "MMVFL")
        codes = None if labels is None else _code_labels(labels, _read_classes(public.get("classes"), outputs))
        own, step = _Side(self, x, _one_hot(codes, outputs, len(x)), state), int(state["step"]) if state else 0
        if codes is not None and state is None:
            await peers.send(guest, {"known": Bits.pack(~np.isnan(codes))})
        while True:
            await peers.send(guest, own.term)
            told = await peers.recv(guest)
            found: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
            z = read_numbers(found.get("z"), own.scores.shape, guest)
            own.follow(z)
            if found.get("done"):
                return own.packed()
            step += 1
            require(step <= _ROUNDS, f"more than {_ROUNDS} rounds of {guest!r}", "MMVFL")
            if save is not None:
                await save({"step": step, "weights": own.w, "base": own.base, "public": dict(public)})

    def train_pooled(self, rows: GuestRows) -> Part:
        """The same learner with all columns in one place; of the guest's own columns, one party's."""
        ends, outputs = np.cumsum([0, *(rows.columns or (rows.x.shape[1],))]).tolist(), rows.objective.outputs
        labels = [None if one is None else _code_labels(one, rows.classes) for one in rows.host_labels]
        codes = [rows.targets, *(labels or [None] * (len(ends) - 2))]
        sides = [
            _Side(self, rows.x[:, a:b], _one_hot(own, outputs, len(rows.x)), None)
            for (a, b), own in zip(pairwise(ends), codes, strict=True)
        ]
        joint = _Joint(self, sides[0].scores.shape, [side.weight for side in sides])
        for _ in range(_ROUNDS):
            moved = joint.update([side.term for side in sides])
            for side in sides:
                side.follow(joint.z)
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
    """One party's columns, labels and weights.

    Args:
        model: the settings.
        x: its columns.
        y: its labels, one-hot, NaN in rows without one.
        state: where it goes on.
    """

    def __init__(self, model: MMVFL, x: NDArray[Any], y: NDArray[np.float64], state: Any) -> None:
        self.beta, self.zeta, self.scales = model.beta, model.zeta, ColumnScales.of(x)
        self.x = self.scales.apply(x)
        self.middle = self.x.mean(axis=0)  # what missing values leave of it
        self.w = np.asarray(state["weights"]) if state else np.zeros((x.shape[1], y.shape[1]))
        self.base = np.asarray(state["base"]) if state else np.zeros(y.shape[1])
        has = ~np.isnan(y[:, :1])
        self.weight = _shorten(model.eta * has)
        self.labels = model.eta * np.where(has, y, 0.0)

    @property
    def scores(self) -> NDArray[np.float64]:
        """``X W + b``."""
        return np.asarray(self.x @ self.w + self.base)

    @property
    def term(self) -> NDArray[np.float64]:
        """``X W + b + eta Y``."""
        return self.scores + self.labels

    def follow(self, z: NDArray[np.float64]) -> None:
        """Fit weights and intercept to the party's pseudo-labels, given the common ones."""
        own = (self.scores + self.zeta * z + self.labels) / (1 + self.zeta + self.weight)
        self.w = fit_group_lasso(self.x - self.middle, own - own.mean(axis=0), self.beta, self.w)
        self.base = own.mean(axis=0) - self.middle @ self.w

    def packed(self) -> Part:
        """The party's part of the model."""
        return {"scales": self.scales.packed(), "weights": self.w, "base": self.base}


def _shorten(weights: NDArray[np.float64]) -> Any:
    """One number in place of a column of equal ones."""
    return float(weights[0, 0]) if len(weights) and (weights == weights[0, 0]).all() else weights


class _Joint:
    """The common pseudo-labels.

    Args:
        model: the settings.
        shape: of the pseudo-labels.
        weights: each party's eta, one number or a column.
    """

    def __init__(self, model: MMVFL, shape: tuple[int, ...], weights: Sequence[Any]) -> None:
        self.shares = [1 / (1 + model.zeta + eta) for eta in weights]
        parts: list[Any] = [share * (1 + eta) for share, eta in zip(self.shares, weights, strict=True)]
        self.whole = parts[0] + sum(parts[1:])
        self.z = np.full(shape, np.inf)

    def update(self, terms: Sequence[NDArray[np.float64]]) -> float:
        """The best Z for these terms; return how far it moved."""
        total = self.shares[0] * terms[0]
        for share, term in zip(self.shares[1:], terms[1:], strict=True):
            total = total + share * term
        before, self.z = self.z, total / self.whole
        return float(np.abs(self.z - before).max(initial=0.0))


def _one_hot(codes: NDArray[np.float64] | None, outputs: int, rows: int = 0) -> NDArray[np.float64]:
    """Labels as a column a class, or of two classes one of -1 and 1; NaN where there is none, and in so many rows without any."""
    if codes is None:
        return np.full((rows, outputs), np.nan)
    made = 2.0 * codes[:, None] - 1.0 if outputs == 1 else (codes[:, None] == np.arange(outputs)).astype(np.float64)
    return np.asarray(np.where(np.isnan(codes)[:, None], np.nan, made))


def _code_labels(labels: NDArray[np.str_], classes: Sequence[str]) -> NDArray[np.float64]:
    """The guest's codes of a host's labels; NaN where there is none.

    Raises:
        DataError: one is no class of the guest's.
    """
    codes = {name: float(code) for code, name in enumerate(classes)} | {"": np.nan}
    foreign = next((one for one in labels.tolist() if one not in codes), None)
    if foreign is not None:
        shown = ", ".join(map(private, [*classes[:10], *(["…"] if len(classes) > 10 else [])]))
        raise DataError(f"a host's label {private(foreign)} is no class of the guest's, which are {shown}", where="MMVFL", remedy="write one class in one way at all parties, and leave labels of others empty")  # fmt: skip
    return np.array([codes[one] for one in labels.tolist()])


def _read_classes(message: Any, outputs: int) -> list[str]:
    """The guest's classes.

    Raises:
        MessageError: they are not so many names.
    """
    good = isinstance(message, Sequence) and all(isinstance(one, str) and one for one in message)
    require(good and len(message) == len(set(message)) == max(2, outputs), "no names of the classes", "MMVFL")
    return list(message)


def _read_rows(message: Any, rows: int, name: str) -> Bits:
    """Which rows a host has labels of.

    Raises:
        MessageError: it does not say.
    """
    found = message.get("known") if isinstance(message, Mapping) else None
    require(isinstance(found, Bits) and found.shape == (rows,), f"{name!r} does not say which rows have labels", "MMVFL")  # fmt: skip
    return found  # type: ignore[return-value]


def _score(part: Part, x: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(ColumnScales.unpacked(part["scales"]).apply(x) @ np.asarray(part["weights"]) + np.asarray(part["base"]))  # fmt: skip


def _unsettled() -> DataError:
    return DataError(
        f"pseudo-labels still move after {_ROUNDS} rounds",
        where="MMVFL",
        remedy="use larger zeta= and eta=, such as 1000",
    )
