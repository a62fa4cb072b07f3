"""`SplitNet`: one neural network over columns at several owners, that of all columns in one place."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.core.requests.island import Secret
from atoll.core.validation import require_parts
from atoll.trees.objectives import LOGISTIC, SQUARED, TreeLoss

from ..model import ColumnScales, GuestRows, Part, Save, VerticalModel, require
from .attacks import ATTACKS, LABEL_ATTACKS, LabelLeaks, invert_embeddings
from .cut import Cut, read_frame
from .defences import CutDefence, HostModules, SunModules
from .networks import Batches, Layers, Segment, SegmentOptimizer, apply_layers, few_threads, load_torch, loss_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers

__all__ = ["SplitNet"]

_STEP_SECONDS, _FLOPS = 8e-4, 4e9
"""What a step of one party takes beside its arithmetic, and how many operations a second it does."""


@dataclass(frozen=True, kw_only=True)
class SplitNet(VerticalModel):
    """A neural network over columns at several owners: each has a *bottom* for its own columns, the guest has the *top* and the labels.

    At each step all parties take the same rows, seeded and in the common order. A host sends its *embedding*, ``h_k = bottom_k(x_k)``, which ends with ReLU; the guest computes the loss of
    ``top(h_0, h_1, ...)`` and sends back ``dL/dh_k``; each party moves its own weights. By the chain rule these are the gradients of the network that is not split, so that the model is
    the one that the same learner makes with all columns in one place (``train_pooled``), up to rounding.

    Vepakomma, Gupta, Swedish, Raskar 2018, "Split learning for health". Embeddings and gradients travel as they are; that labels and columns do not travel does not mean that nothing shows of them: see
    ``learns``.

    Columns are centred and scaled by their owner (`ColumnScales`); a missing value is the mean. Labels of a regression are fitted in deviations from their mean.

    Attributes:
        hidden: widths of the bottoms' hidden layers.
        width: numbers of an embedding.
        top: widths of the top's hidden layers.
        epochs: passes over the training rows.
        batch: rows of a step.
        optimizer: ``"adam"`` or ``"sgd"``.
        rate: learning rate.
        momentum: of ``sgd``.
        decay: L2 penalty, as PyTorch's ``weight_decay``.
        seed: of initial weights and batches. All parties know it.
        checkpoint_every: steps between two checkpoints; 0 makes one an epoch.
        defence: what hides labels or columns, such as ``[MaxNorm()]``; several are applied in their order. They cost quality, and the model is no longer that of the network that is not split.
        audit: attacks that each party runs on what it gives away: of ``norm``, ``direction``, ``completion`` (of two classes) and ``inversion``; see `atoll.vertical.read_leaks`.
    """

    hidden: Sequence[int] = (32,)
    width: int = 16
    top: Sequence[int] = (16,)
    epochs: int = 10
    batch: int = 64
    optimizer: Literal["adam", "sgd"] = "adam"
    rate: float = 0.003
    momentum: float = 0.0
    decay: float = 0.0
    seed: int = 0
    checkpoint_every: int = 0
    defence: Sequence[CutDefence] = ()
    audit: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("hidden", "top", "defence", "audit"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        require_parts(self, {}, {"defence": (CutDefence, "atoll.vertical.MaxNorm()")})
        bounds = (
            ("hidden", _sizes(self.hidden), "use widths of at least 1"),
            ("width", self.width >= 1, "use at least 1 number"),
            ("top", _sizes(self.top), "use widths of at least 1"),
            ("epochs", self.epochs >= 1, "use at least 1 epoch"),
            ("batch", self.batch >= 1, "use at least 1 row"),
            ("optimizer", self.optimizer in ("adam", "sgd"), "use 'adam' or 'sgd'"),
            ("rate", 0 < self.rate < np.inf, "use a finite number above 0"),
            ("momentum", 0 <= self.momentum < 1, "use a number of at least 0 and below 1"),
            ("decay", 0 <= self.decay < np.inf, "use a finite number of at least 0"),
            ("checkpoint_every", self.checkpoint_every >= 0, "use steps, or 0 for one an epoch"),
            ("audit", set(self.audit) <= set(ATTACKS), f"use some of {', '.join(ATTACKS)}"),
        )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="SplitNet", remedy=remedy)

    @property
    def security(self) -> str:  # type: ignore[override]
        """``none``: embeddings and gradients travel as they are."""
        return "none"

    def fit_objective(self, objective: TreeLoss) -> TreeLoss:
        """The loss.

        Raises:
            ConfigError: an attack of ``audit`` is about two classes, and the labels are none.
        """
        wrong = next((name for name in self.audit if name in LABEL_ATTACKS and objective.name != LOGISTIC), None)
        if wrong is not None:
            raise ConfigError(
                f"audit={wrong!r} with labels that are not of two classes",
                where="SplitNet",
                remedy="use audit=['inversion'], or labels of two classes",
            )
        return objective

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        labels, columns = (
            "; ".join(one.told for one in self.defence if one.hides == whose) for whose in ("labels", "columns")
        )
        return {
            "host": [
                "the gradient of the loss by its embedding of each training row, in every epoch"
                + (
                    f", {labels}: a heuristic, after which labels show less"
                    if labels
                    else ", which tells much of the labels: of two classes, nearly all"
                ),
                "the settings of the network, the seed of its initial weights and of the batches",
            ],
            "guest": [
                f"each host's embedding of each training row in every epoch, {self.width} numbers a row, and of each row predicted; of columns they tell what the task needs, and often more"
                + (f"; {columns}: a heuristic" if columns else ""),
                "the settings of the network, the seed of its initial weights and of the batches",
            ],
        }

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted.

        Args:
            rows: training rows.
            columns: how many columns each party has, the guest first.
            outputs: margins of a row.
        """
        steps, parties = self.epochs * -(-rows // self.batch), len(columns)
        seconds = steps * parties * _STEP_SECONDS + self._work(columns, outputs) * rows * self.epochs / _FLOPS
        passed = 2.0 * rows * self.epochs * self.width * (parties - 1) * np.dtype(self.precision).itemsize
        return {"seconds": seconds, "bytes": passed + 2.0 * 120 * steps * (parties - 1)}

    # What the network is.

    def _bottom(self, columns: int) -> Layers:
        return Layers(columns, (*self.hidden, self.width), activated=True)

    def _tops(self, parties: int, outputs: int) -> tuple[Layers, Layers]:
        """What lies behind the cut: the trunk, whose output is no prediction yet, and the head, which is next to the labels."""
        joined = parties * self.width
        widths = tuple(self.top)
        return Layers(joined, widths, activated=bool(widths)), Layers(widths[-1] if widths else joined, (outputs,))

    def _work(self, columns: Sequence[int], outputs: int) -> float:
        """Multiplications of a row, at all parties."""
        layers = [*(self._bottom(one) for one in columns), *self._tops(len(columns), outputs)]
        return float(sum(one.multiplications for one in layers))

    def _segment(self, layers: Layers, *name: str | int) -> Segment:
        steps = SegmentOptimizer(self.optimizer, self.rate, self.momentum, self.decay)
        return Segment(layers, steps, Rng.of(self.seed).child("weights", *name), self.precision)

    def _batches(self, rows: int) -> Batches:
        return Batches(rows, self.batch, self.epochs, Rng.of(self.seed).child("batches"))

    def _is_checkpoint(self, batches: Batches, done: int) -> bool:
        return done % (self.checkpoint_every or batches.an_epoch) == 0

    # The roles.

    async def train_guest(
        self, rows: GuestRows, peers: Peers, hosts: Sequence[str], *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:  # fmt: skip
        """The guest's role: join the hosts' embeddings with its own, and send back gradients.

        Raises:
            MessageError: a host sent something that is no embedding of the step's rows.
        """
        torch, hosts = load_torch(), list(hosts)
        if state is None:
            await peers.broadcast({"hosts": hosts}, hosts)
        at_guest = _Labelled.of(self, rows, len(hosts) + 1, state)
        hiding = [one for one in self.defence if one.hides == "labels"]
        leaks = LabelLeaks(self.audit, len(hosts), len(rows.x), self.width, state and state["leaks"])
        cut, batches = Cut(peers, np.dtype(self.precision)), self._batches(len(rows.x))
        columns = (rows.x.shape[1],) * (len(hosts) + 1)  # the hosts' are not known here
        with few_threads(self._work(columns, rows.objective.outputs) * self.batch):
            for step, at in batches.from_step(0 if state is None else int(state["done"])):
                got = await cut.recv_all(hosts, step, (len(at), self.width), "embeddings")
                embeddings = [torch.from_numpy(each).requires_grad_() for each in got]
                at_guest.loss([at_guest.bottom(at_guest.x[at]), *embeddings], at).backward()
                for k, (host, each) in enumerate(zip(hosts, embeddings, strict=True)):
                    shown = each.grad
                    for one in hiding:
                        shown = one.hide(shown, secret)
                    if leaks.attacks:
                        leaks.note(k, each, shown, rows.targets[at], at)
                    await cut.send(host, step, shown)
                at_guest.step()
                if save is not None and self._is_checkpoint(batches, step + 1):
                    await save({"done": step + 1, "leaks": leaks.state(), **at_guest.state()})
        found = leaks.result(rows.targets)
        return {**at_guest.packed(), "width": self.width, "hosts": len(hosts), **({"leaks": found} if found else {})}

    async def train_host(
        self, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> Part:
        """A host's role: send embeddings, and take the gradients of them.

        Raises:
            MessageError: the guest sent something that is no gradient of the step's rows.
        """
        torch = load_torch()
        if state is None:
            state = {"hosts": _hosts_of(await peers.recv(guest), peers, guest), "done": 0}
        number = 1 + next(i for i, name in enumerate(state["hosts"]) if name not in peers.names)
        own = _Owned.of(self, x, number, state.get("bottom"))
        made = Rng.of(self.seed).child("modules", number)
        modules = [
            HostModules(one, self.width, x.shape[1], made.child(k), secret, self.precision, state.get(f"module-{k}"))
            for k, one in enumerate(one for one in self.defence if isinstance(one, SunModules))
        ]
        cut, batches = Cut(peers, np.dtype(self.precision)), self._batches(len(x))
        with few_threads(self._bottom(x.shape[1]).multiplications * self.batch):
            for step, at in batches.from_step(int(state["done"])):
                embedding = own.bottom(own.x[at])
                await cut.send(guest, step, embedding)
                found = await cut.recv(guest, step, (len(at), self.width), "gradients")
                for one in modules:
                    one.penalty(own.x[at], embedding).backward(retain_graph=True)
                embedding.backward(torch.from_numpy(found))
                own.bottom.step()
                if save is not None and self._is_checkpoint(batches, step + 1):
                    more = {f"module-{k}": one.state() for k, one in enumerate(modules)}
                    await save({**state, "done": step + 1, "bottom": own.bottom.state(), **more})
        part = own.packed()
        if "inversion" in self.audit:
            part["leaks"] = {"inversion": invert_embeddings(_embed(part, x), own.scales.apply(x))}
        return part

    def train_pooled(self, rows: GuestRows) -> Part:
        """The guest's part that the same network has when all columns are in one place: nothing is cut."""
        parties = rows.columns or (rows.x.shape[1],)
        ends = np.cumsum((0, *parties)).tolist()
        owned = [_Owned.of(self, rows.x[:, a:b], k) for k, (a, b) in enumerate(itertools.pairwise(ends))]
        at_guest = _Labelled.of(self, GuestRows(rows.x[:, : ends[1]], rows.targets, rows.objective), len(parties))
        owned[0] = _Owned(at_guest.x, at_guest.scales, at_guest.bottom)
        with few_threads(self._work(parties, rows.objective.outputs) * self.batch):
            for _, at in self._batches(len(rows.x)).from_step(0):
                at_guest.loss([one.bottom(one.x[at]) for one in owned], at).backward()
                for one in owned[1:]:
                    one.bottom.step()
                at_guest.step()
        others = [one.packed() for one in owned[1:]]
        return {**at_guest.packed(), "width": self.width, "hosts": len(others), "others": others}

    # Predictions.

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> Mapping[str, Any]:
        """A host's embeddings of rows."""
        return {"cut": _embed(part, x)}

    @classmethod
    def read_answer(cls, part: Part, message: Any, rows: int, host: int, name: str) -> NDArray[Any]:
        """A host's embeddings of rows, ``(rows, width)``.

        Raises:
            MessageError: they are of another form, or not finite.
        """
        return read_frame(message, (rows, int(part["width"])), _precision(part), "embeddings", name)

    @classmethod
    def margins(cls, part: Part, x: NDArray[Any], answers: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The margins of rows: what the top makes of all embeddings."""
        if not answers:
            others = list(part.get("others", ()))
            sizes = [int(each["bottom"]["layers"]["inputs"]) for each in (part, *others)]
            columns = np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=1)
            x, answers = columns[0], [_embed(each, rows) for each, rows in zip(others, columns[1:], strict=True)]
        joined = np.concatenate([_embed(part, x), *answers], axis=1)
        made = apply_layers(part["head"], apply_layers(part["trunk"], joined))
        return np.asarray(made * made.dtype.type(part["spread"]) + made.dtype.type(part["centre"]))


@dataclass
class _Owned:
    """A party's columns, and the bottom that reads them."""

    x: Any
    scales: ColumnScales
    bottom: Segment

    @classmethod
    def of(cls, model: SplitNet, x: NDArray[Any], number: int, state: Any = None) -> _Owned:
        """Read the training rows of party ``number``, the guest being 0; go on from a checkpoint's ``state``."""
        scales = ColumnScales.of(x)
        scaled = load_torch().from_numpy(scales.apply(x).astype(model.precision))
        bottom = model._segment(model._bottom(x.shape[1]), "bottom", number)
        if state is not None:
            bottom.restore(state)
        return cls(scaled, scales, bottom)

    def packed(self) -> dict[str, Any]:
        """The party's part of the model."""
        return {"bottom": self.bottom.packed(), "scales": self.scales.packed()}


class _Scaled(NamedTuple):
    """Labels as the network fits them: of a regression, deviations from the mean in units of the spread."""

    targets: Any
    centre: float
    spread: float

    @classmethod
    def of(cls, rows: GuestRows, precision: type[Any]) -> _Scaled:
        torch = load_torch()
        if rows.objective.name != SQUARED:
            kind = np.int64 if rows.objective.name != LOGISTIC else precision
            return cls(torch.from_numpy(rows.targets.astype(kind)), 0.0, 1.0)
        centre, spread = float(rows.targets.mean()), float(rows.targets.std()) or 1.0
        return cls(torch.from_numpy(((rows.targets - centre) / spread).astype(precision)), centre, spread)


@dataclass
class _Labelled(_Owned):
    """The party with the labels: its columns and bottom, and the segments behind the cut."""

    trunk: Segment
    head: Segment
    labels: _Scaled
    objective: TreeLoss

    @classmethod
    def of(cls, model: SplitNet, rows: GuestRows, parties: int, state: Any = None) -> _Labelled:  # type: ignore[override]
        own = _Owned.of(model, rows.x, 0, state and state["bottom"])
        trunk, head = (
            model._segment(layers, name)
            for name, layers in zip(("trunk", "head"), model._tops(parties, rows.objective.outputs), strict=True)
        )
        if state is not None:
            trunk.restore(state["trunk"])
            head.restore(state["head"])
        labels = _Scaled.of(rows, model.precision)
        return cls(own.x, own.scales, own.bottom, trunk, head, labels, rows.objective)

    @property
    def _segments(self) -> dict[str, Segment]:
        return {"bottom": self.bottom, "trunk": self.trunk, "head": self.head}

    def loss(self, embeddings: Sequence[Any], at: NDArray[np.int64]) -> Any:
        """The loss of a batch."""
        joined = load_torch().cat(list(embeddings), 1)
        return loss_of(self.objective, self.head(self.trunk(joined)), self.labels.targets[at])

    def step(self) -> None:
        """Move all weights."""
        for one in self._segments.values():
            one.step()

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: one.state() for name, one in self._segments.items()}

    def packed(self) -> dict[str, Any]:
        """The guest's part of the model."""
        more = {"trunk": self.trunk.packed(), "head": self.head.packed()}
        return {**super().packed(), **more, "centre": self.labels.centre, "spread": self.labels.spread}


def _sizes(values: Sequence[int]) -> bool:
    return all(isinstance(one, int) and one >= 1 for one in values)


def _hosts_of(message: Any, peers: Peers, guest: str) -> list[str]:
    """The hosts in the order of their columns, as the guest has told them: the other roles, and this one."""
    told = message.get("hosts") if isinstance(message, Mapping) else None
    good = isinstance(told, list) and all(isinstance(one, str) for one in told)
    others = sorted(name for name in peers.names if name != guest)
    good = good and len(told) == len(others) + 1 and sorted(one for one in told if one in peers.names) == others
    require(good, f"no list of hosts from {guest!r}", "SplitNet")
    return list(told)  # type: ignore[arg-type]


def _precision(part: Part) -> np.dtype[Any]:
    found: np.dtype[Any] = np.asarray(part["head"]["weights"][0]).dtype
    return found


def _embed(part: Part, x: NDArray[Any]) -> NDArray[Any]:
    return apply_layers(part["bottom"], ColumnScales.unpacked(part["scales"]).apply(x))
