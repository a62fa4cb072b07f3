"""`SFHTL`: one party's labels teach several others, each of which predicts its own rows alone afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.trees.objectives import LOGISTIC, TreeLoss

from ..model import GuestRows, Part, Save, require
from .representation import Descent, Representation, begin_net
from .roles import TransferModel, represent_part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

__all__ = ["SFHTL", "propagate_labels"]

Numbers = Any
"""An array of float64 numbers."""
_GROUPS = ("shared", "own", "made")
"""Rows whose representations a host sends: the shared ones, those that it has alone, and the guest's as its own columns would have shown them."""


@dataclass(frozen=True, kw_only=True)
class SFHTL(TransferModel):
    """Transfer of labels to several parties with other columns, each of which ends with a model of its own columns.

    Each party maps its columns to a common space, ``u = tanh([x, 1] W)``, and back, ``x = [u, 1] V``. One classifier of u serves all. In a step,

    1. the guest sends u of its rows. A host makes from them what its own columns would have shown (reconstruction), and represents that as it does its own rows;
    2. each host sends its representations, and the guest the gradients of the loss by them: split learning, in which labels stay where they are;
    3. all descend on: the classifier's loss on the guest's labelled rows, on the shared rows as a host sees them, on the reconstructed rows, and on rows without labels by
       *pseudo-labels*; the distance of both parties' representations of a shared row; and how badly columns come back from u, their own and that of the guest.

    Every ``refresh`` steps the guest makes new pseudo-labels: labels spread over a graph of neighbours in the common space (`propagate_labels`), and count by how certain they are.
    Feng et al. 2022, "Semi-Supervised Federated Heterogeneous Transfer Learning", as the survey of learning without full labels has it (section 5.2; its text breaks off). The weights of
    the terms are ours.

    The guest sees representations of all rows of all hosts. A host sees those of the guest's rows, and gradients by its own, from which labels can be told (`security` is ``split``). The
    parties follow the protocol.

    Attributes:
        width: numbers in the common space.
        steps: steps of gradient descent.
        rate: learning rate.
        momentum: of gradient descent.
        align: weight of the alignment.
        made: weight of the reconstructed rows.
        pseudo: weight of the rows with pseudo-labels.
        restore: weight of how well columns come back from the common space.
        penalty: weight of the squares of W and of the classifier.
        neighbours: of a row in the graph.
        refresh: steps between new pseudo-labels; the first ones come after as many.
        seed: of the first weights.
    """

    width: int = 8
    steps: int = 200
    rate: float = 0.05
    momentum: float = 0.9
    align: float = 0.3
    made: float = 1.0
    pseudo: float = 0.3
    restore: float = 1.0
    penalty: float = 0.3
    neighbours: int = 10
    refresh: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        weights = [(name, 0 <= getattr(self, name) < np.inf, "use a finite number >= 0") for name in ("align", "made", "pseudo", "restore", "penalty")]  # fmt: skip
        bounds = (
            ("width", 1 <= self.width <= 1024, "use 1 to 1024 numbers"),
            ("neighbours", self.neighbours >= 1, "use at least 1 neighbour"),
            ("refresh", self.refresh >= 1, "use at least 1 step"),
            *weights,
        )
        self.require_bounds(bounds)

    @property
    def security(self) -> str:  # type: ignore[override]
        """Labels and columns stay where they are; representations and gradients travel as they are."""
        return "split"

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        return {
            "host": [
                "the representations of all rows of the guest's but those held out, without their keys",
                "the gradients of the loss by its own representations, from which labels of the shared rows and of the guest's other rows can be told",
                "the classifier of the common space",
            ],
            "guest": ["the representations of all rows of each host, without the keys of those that are not shared"],
        }

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted. It counts shared rows alone; rows that a party has alone cost as much."""
        hosts = len(columns) - 1
        numbers = rows * self.width * 3 * hosts
        return {
            "seconds": self.steps * 2e-8 * rows * self.width * sum(columns),
            "bytes": 8.0 * (self.steps + 1 / 3) * numbers,
        }

    # The roles.

    async def train_guest(
        self,
        rows: GuestRows,
        peers: Peers,
        hosts: Sequence[str],
        *,
        secret: Secret,
        state: Any = None,
        save: Save | None = None,
        others: GuestRows | None = None,
    ) -> Part:
        """The guest's role; return its part: its network and the classifier."""
        del secret
        side = _Guest.of(self, rows, others, state)
        sizes: dict[str, int] = {} if state is None else {name: int(n) for name, n in state["sizes"].items()}
        kept = lambda: {**side.packed(), "sizes": sizes}  # noqa: E731
        async for step in self.descend(0 if state is None else state["step"], save, kept):
            await peers.broadcast({"u": side.represent()}, hosts)
            told = {}
            for host in hosts:
                told[host] = _points(await peers.recv(host), side, sizes.get(host), host, self.width)
                sizes[host] = len(told[host]["own"])
            if step and step % self.refresh == 0:
                side.guess(told)
            gradients = side.descend(told)
            for host in hosts:
                await peers.send(host, gradients[host])
        await peers.broadcast({"head": side.head}, hosts)
        return {"net": side.net.packed(), "head": side.head, "hosts": len(hosts)}

    async def train_host(
        self,
        x: NDArray[Any],
        peers: Peers,
        guest: str,
        *,
        secret: Secret,
        state: Any = None,
        save: Save | None = None,
        others: NDArray[Any] | None = None,
    ) -> Part:
        """A host's role; return its part: its network and the classifier, with which it predicts alone."""
        del secret
        side = _Host.of(self, x, others, state)
        async for _ in self.descend(0 if state is None else state["step"], save, side.packed):
            seen = _array(await peers.recv(guest), "u", (side.guests, self.width), 1.0, guest)
            require(len(seen) >= len(x), f"{len(seen)} representations of {guest!r}, fewer than shared rows", "SFHTL")
            side.guests = len(seen)
            made = side.represent(seen)
            await peers.send(guest, made)
            told = await peers.recv(guest)
            side.descend(seen, made, {name: _array(told, name, made[name].shape, np.inf, guest) for name in _GROUPS})
        head = _array(await peers.recv(guest), "head", (self.width + 1, None), np.inf, guest)
        return {"net": side.net.packed(), "head": head}

    def train_pooled(self, rows: GuestRows) -> Part:
        """The same learner on rows that have all columns in one place."""
        side = _Guest.of(self, GuestRows(rows.x[:0], rows.targets[:0], rows.objective), rows)
        for step in range(self.steps):
            if step and step % self.refresh == 0:
                side.guess({})
            side.descend({})
        return {"net": side.net.packed(), "head": side.head, "hosts": 0}

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> dict[str, Any]:
        """At a host: the representations of rows."""
        return {"u": represent_part(part, x)}

    @classmethod
    def read_answer(cls, part: Part, message: Any, rows: int, host: int, name: str) -> NDArray[np.float64]:
        """The representations that a host answers with.

        Raises:
            MessageError: they are none.
        """
        return _array(message, "u", (rows, len(part["head"]) - 1), 1.0, name)

    @classmethod
    def margins(cls, part: Part, x: NDArray[Any], answers: Sequence[Any]) -> NDArray[np.float64]:
        """The mean of what the classifier says of each party's representation of a row."""
        said = [_classify(part["head"], u) for u in (represent_part(part, x), *answers)]
        return np.asarray(np.mean(said, axis=0))

    @classmethod
    def own_margins(cls, part: Part, guest_part: Part, x: NDArray[Any]) -> NDArray[np.float64]:
        """What a host's part alone says of its own rows."""
        del guest_part
        return _classify(part["head"], represent_part(part, x))


def propagate_labels(
    known: Numbers, shares: Numbers, points: Numbers, neighbours: int = 10, iterations: int = 50
) -> NDArray[np.float64]:
    """Shares of the classes at points without labels, from labels of known ones: ``F <- P F``, with the known rows held.

    P has, for each point, weights ``exp(-d^2 / s^2)`` of its nearest neighbours among all points, which add up to 1; ``s^2`` is the mean of all ``d^2``. Zhu, Ghahramani 2002, "Learning
    from Labeled and Unlabeled Data with Label Propagation".

    Args:
        known: points with labels, ``(n, width)``.
        shares: their classes, ``(n, classes)``, each row adds up to 1.
        points: those without, ``(m, width)``.
        neighbours: how many.
        iterations: how far labels spread.

    Returns:
        ``(m, classes)``; equal shares where no label arrives.
    """
    every, n = np.concatenate([known, points]), len(known)
    classes = shares.shape[1]
    found = np.concatenate([shares, np.full((len(points), classes), 1.0 / classes)])
    k = min(neighbours, len(every) - 1)
    if not len(points) or k < 1:
        return np.asarray(found[n:])
    nearest, distances = np.empty((len(points), k), np.int64), np.empty((len(points), k))
    squares = (every**2).sum(axis=1)
    for begin in range(0, len(points), 512):
        block = points[begin : begin + 512]
        apart = np.maximum(squares + (block**2).sum(axis=1)[:, None] - 2 * block @ every.T, 0.0)
        apart[np.arange(len(block)), n + begin + np.arange(len(block))] = np.inf  # a point is no neighbour of its own
        # In a stable order, so that equal points count alike on every machine.
        near = np.argsort(apart, axis=1, kind="stable")[:, :k]
        nearest[begin : begin + 512], distances[begin : begin + 512] = near, np.take_along_axis(apart, near, axis=1)
    weights = np.exp(-distances / max(float(distances.mean()), np.finfo(np.float64).tiny))
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    for _ in range(iterations):
        found[n:] = np.einsum("mk,mkc->mc", weights, found[nearest])
    return np.asarray(found[n:])


@dataclass
class _Guest:
    """The guest's side.

    Attributes:
        model: the settings.
        net: its network.
        descent: its gradient descent.
        x: all its rows, the shared ones first.
        shared: how many are.
        objective: the loss.
        targets: what the classifier should say of each row, ``(rows, outputs)``.
        known: which rows have a label.
        head: the classifier, ``(width + 1, outputs)``.
        speed: the momentum of the classifier; none before the first step.
        guesses: pseudo-labels and their weights of the guest's rows without labels (under ``""``) and of each host's own rows.
    """

    model: SFHTL
    net: Representation
    descent: Descent
    x: Numbers
    shared: int
    objective: TreeLoss
    targets: Numbers
    known: NDArray[np.bool_]
    head: Numbers
    speed: Numbers = None
    guesses: dict[str, tuple[Numbers, Numbers]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: SFHTL, rows: GuestRows, others: GuestRows | None, state: Any = None) -> _Guest:
        """The side of the guest's rows, or of what `packed` kept."""
        more = GuestRows(rows.x[:0], rows.targets[:0], rows.objective) if others is None else others
        x, labels = np.concatenate([rows.x, more.x]), np.concatenate([rows.targets, more.targets])
        known = ~np.isnan(labels)
        codes, loss = np.where(known, labels, 0.0), rows.objective
        targets = codes[:, None] if loss.name == LOGISTIC else 1.0 * (codes[:, None] == np.arange(loss.outputs))
        net, descent = begin_net(model, x, 0, state)
        side = cls(
            model,
            net,
            descent,
            net.read(x),
            len(rows.x),
            loss,
            targets,
            known,
            np.zeros((model.width + 1, loss.outputs)),
        )
        if state is not None:
            side.head, side.speed = np.array(state["head"]), np.array(state["momentum"])
            side.guesses = {
                name: (np.asarray(each["targets"]), np.asarray(each["weights"]))
                for name, each in state["guesses"].items()
            }
        return side

    def packed(self) -> dict[str, Any]:
        """What a resumed role needs."""
        guesses = {name: {"targets": targets, "weights": weights} for name, (targets, weights) in self.guesses.items()}
        return {
            "net": self.net.packed(),
            "speed": self.descent.speed,
            "head": self.head,
            "momentum": self.speed,
            "guesses": guesses,
        }

    def represent(self) -> Numbers:
        """U of all rows."""
        return self.net.represent(self.x)

    def guess(self, told: Mapping[str, Mapping[str, Numbers]]) -> None:
        """Make pseudo-labels of all rows without labels: the guest's and the hosts'."""
        u = self.represent()
        groups = {"": u[~self.known], **{host: points["own"] for host, points in told.items()}}
        binary = self.objective.name == LOGISTIC
        shares = np.concatenate([1 - self.targets, self.targets], axis=1) if binary else self.targets
        found = propagate_labels(
            u[self.known], shares[self.known], np.concatenate(list(groups.values())), self.model.neighbours
        )
        entropy = -(found * np.log(np.maximum(found, np.finfo(np.float64).tiny))).sum(axis=1)
        certain = 1 - entropy / np.log(found.shape[1])
        ends = np.cumsum([len(points) for points in groups.values()])[:-1]
        parts = zip(groups, np.split(found[:, 1:] if binary else found, ends), np.split(certain, ends), strict=True)
        self.guesses = {name: (targets, weights) for name, targets, weights in parts}

    def descend(self, told: Mapping[str, Mapping[str, Numbers]]) -> dict[str, dict[str, Numbers]]:
        """Take a step; return the gradients by each host's representations."""
        model, u, n = self.model, self.represent(), self.shared
        moved = np.zeros_like(self.head)
        towards = np.zeros_like(u)
        gradients: dict[str, dict[str, Numbers]] = {}

        def fit(points: Numbers, targets: Numbers, weights: Numbers, weight: float, count: int) -> Numbers:
            """The gradient by points of a weighted loss, and its share of the classifier's."""
            nonlocal moved
            inputs = np.column_stack([points, np.ones(len(points))])
            slope = (self.objective.predict(inputs @ self.head) - targets) * weights[:, None] * (weight / max(1, count))
            moved = moved + inputs.T @ slope
            return slope @ self.head[:-1].T

        known = self.known.astype(np.float64)
        towards += fit(u, self.targets, known, 1.0, int(known.sum()))
        if "" in self.guesses:
            lacking = ~self.known
            towards[lacking] += fit(u[lacking], *self.guesses[""], model.pseudo, int(lacking.sum()))
        for host, points in told.items():
            apart = 2 * model.align * (u[:n] - points["shared"]) / max(1, n)
            towards[:n] += apart
            shared = fit(points["shared"], self.targets[:n], known[:n], 1.0, int(known[:n].sum())) - apart
            made = fit(points["made"], self.targets[n:], known[n:], model.made, int(known[n:].sum()))
            own = np.zeros_like(points["own"])
            if host in self.guesses:
                own = fit(points["own"], *self.guesses[host], model.pseudo, len(own))
            gradients[host] = {"shared": shared, "own": own, "made": made}
        encode, decode = self.net.restore_gradients(self.x, u)
        whole = model.restore * encode + model.penalty * self.net.encode + self.net.backward(self.x, u, towards)
        self.descent.step(self.net, whole, model.restore * decode)
        moved = moved + model.penalty * self.head
        self.speed = moved if self.speed is None else model.momentum * self.speed + moved
        self.head = self.head - model.rate * self.speed
        return gradients


@dataclass
class _Host:
    """A host's side.

    Attributes:
        model: the settings.
        net: its network.
        descent: its gradient descent.
        x: all its rows, the shared ones first.
        shared: how many are.
        guests: how many rows the guest sends representations of; ``None`` before the first.
    """

    model: SFHTL
    net: Representation
    descent: Descent
    x: Numbers
    shared: int
    guests: int | None = None

    @classmethod
    def of(cls, model: SFHTL, x: NDArray[Any], others: NDArray[Any] | None, state: Any = None) -> _Host:
        """The side of a host's rows, or of what `packed` kept."""
        rows = np.concatenate([x, x[:0] if others is None else others])
        net, descent = begin_net(model, rows, 1, state)
        return cls(model, net, descent, net.read(rows), len(x), None if state is None else int(state["guests"]))

    def packed(self) -> dict[str, Any]:
        """What a resumed role needs."""
        return {"net": self.net.packed(), "speed": self.descent.speed, "guests": self.guests}

    def _columns_for(self, seen: Numbers) -> Numbers:
        """Own columns, scaled and with a 1, as representations of the guest's other rows say they would be."""
        more = np.column_stack([seen[self.shared :], np.ones(len(seen) - self.shared)])
        return np.column_stack([more @ self.net.decode, np.ones(len(more))])

    def represent(self, seen: Numbers) -> dict[str, Numbers]:
        """What the guest gets for the representations that it sent."""
        u = self.net.represent(self.x)
        return {
            "shared": u[: self.shared],
            "own": u[self.shared :],
            "made": self.net.represent(self._columns_for(seen)),
        }

    def descend(self, seen: Numbers, told: Mapping[str, Numbers], gradients: Mapping[str, Numbers]) -> None:
        """Take a step, with the gradients by what was sent."""
        model, n, net = self.model, self.shared, self.net
        u = np.concatenate([told["shared"], told["own"]])
        encode, decode = net.restore_gradients(self.x, u)
        encode, decode = model.restore * encode + model.penalty * net.encode, model.restore * decode
        encode = encode + net.backward(self.x, u, np.concatenate([gradients["shared"], gradients["own"]]))
        # The reconstructed rows: through W to the made columns, and through them to V.
        columns, slope = self._columns_for(seen), gradients["made"] * (1 - told["made"] ** 2)
        encode = encode + columns.T @ slope
        more = np.column_stack([seen, np.ones(len(seen))])
        decode = decode + more[n:].T @ (slope @ net.encode.T)[:, :-1]
        if n and self.x.shape[1] > 1:  # the guest's representation of a shared row should give this host's columns, too
            error = 2 * (more[:n] @ net.decode - self.x[:n, :-1]) / self.x[:n, :-1].size
            decode = decode + model.restore * more[:n].T @ error
        self.descent.step(net, encode, decode)


def _classify(head: Any, u: Numbers) -> NDArray[np.float64]:
    weights = np.asarray(head, np.float64)
    return np.asarray(u @ weights[:-1] + weights[-1])


def _points(told: Any, side: _Guest, own: int | None, host: str, width: int) -> dict[str, Numbers]:
    """A host's representations.

    Raises:
        MessageError: they are none of the rows that there are.
    """
    sizes = {"shared": side.shared, "own": own, "made": len(side.x) - side.shared}
    return {name: _array(told, name, (sizes[name], width), 1.0, host) for name in _GROUPS}


def _array(
    message: Any, name: str, shape: tuple[int | None, int | None], bound: float, sender: str
) -> NDArray[np.float64]:
    """An array of a message, of finite numbers up to a bound.

    Raises:
        MessageError: it is none.
    """
    found = message.get(name) if isinstance(message, Mapping) else None
    good = isinstance(found, np.ndarray) and found.dtype == np.float64 and found.ndim == 2
    good = good and all(want in (None, size) for want, size in zip(shape, found.shape, strict=True))  # type: ignore[union-attr]
    good = good and bool(np.isfinite(np.asarray(found)).all()) and bool((np.abs(np.asarray(found)) <= bound).all())
    require(
        good,
        f"no {' x '.join('any' if one is None else str(one) for one in shape)} numbers {name!r} of {sender!r}",
        "SFHTL",
    )
    return np.asarray(found)
