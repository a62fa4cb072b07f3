"""A guard: labelled rows that nobody trains on decide, while training, whether rows without labels help."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from atoll.core.algebra.aggregate import Aggregate, Mean, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Gradient, Helped, Labelled, LocalWork, Movable, Phased, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.learn.local.own_loss import LossSignature, OwnLoss
from atoll.learn.wrapped import Wrapped
from atoll.torch.tracing.keyed import scramble_positions

from ..losses import cross_entropy_of_rows, mean_of
from ..views.defaults import strong
from .fixmatch import FixMatch
from .supervised import Supervised

__all__ = [
    "PLAIN",
    "Guard",
    "HeldOutLabels",
    "HeldOutLoss",
    "HeldOutScores",
    "Hiding",
    "HidingLoss",
    "WithoutHeldOut",
    "asking",
    "require_labelled",
]

# Losses that do not see some labels, which the loss inside then takes for rows without one.


def asking(*names: str) -> inspect.Signature:
    """Return the signature of a loss that asks for inputs by name."""
    return inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in dict.fromkeys(names)])


@dataclass(frozen=True)
class HidingLoss(OwnLoss):
    """Base class: a loss that hides labels from the loss ``inner``.

    Attributes:
        inner: a method's loss, which asks for ``labelled``.
        reads: inputs that `hidden` needs.
    """

    inner: Any
    reads: ClassVar[tuple[str, ...]] = ()

    @property
    def form(self) -> str:  # type: ignore[override]
        """The inner loss's form."""
        return str(self.inner.form)

    @property
    def task(self) -> str:  # type: ignore[override]
        """The inner loss's task."""
        return str(self.inner.task)

    @property
    def __signature__(self) -> inspect.Signature:
        """Everything that the inner loss asks for, and what the choice needs."""
        return asking(*LossSignature.of(self.inner).names, *self.reads)

    @abstractmethod
    def hidden(self, given: dict[str, Any]) -> Any:
        """Return which labels to hide, booleans ``(B,)``."""

    def __call__(self, **given: Any) -> Any:
        """Return the inner loss without the hidden labels."""
        hidden = self.hidden(given)
        names = LossSignature.of(self.inner).names
        return self.inner(**{n: given[n] & ~hidden if n == "labelled" else given[n] for n in names})


class Hiding:
    """The gradient as the algorithm inside sees it: the losses that it names are those that hide labels.

    Args:
        grad: the gradient, of losses that hide labels.
        hide: loss of the algorithm inside -> the one that hides labels.
    """

    def __init__(self, grad: Any, hide: Callable[[Any], Any]) -> None:
        self._grad = grad
        self._hide = hide

    def __call__(self, params: Tree) -> Tree:
        """Return the gradient."""
        return self._grad(params)

    def on(self, loss: Any = None, **given: Tree) -> Hiding:
        """Return the same for another loss."""
        return Hiding(self._grad.on(None if loss is None else self._hide(loss), **given), self._hide)

    def loss(self, params: Tree) -> Any:
        """Return the loss."""
        return self._grad.loss(params)

    def read(self, loss: Any, params: Tree) -> Any:
        """Return what a loss returns."""
        return self._grad.read(self._hide(loss), params)

    def hvp(self, params: Tree, vector: Tree) -> Tree:
        """Return the Hessian times a vector."""
        return self._grad.hvp(params, vector)


def require_labelled(algorithm: Algorithm, where: str) -> None:
    """Refuse an algorithm whose losses cannot leave out a label.

    Raises:
        ConfigError: it has no loss of its own, or one that does not ask for ``labelled``.
    """
    losses, name = facet(algorithm, Labelled).losses, type(algorithm).__name__
    blind = [loss for loss in losses if "labelled" not in LossSignature.of(loss).names]
    if losses and not blind:
        return
    what = f"the loss of {name} does not ask for `labelled`" if losses else f"{name} has no loss of its own"
    raise ConfigError(
        f"{what}, so it cannot leave out a label",
        where=where,
        remedy=f"use {where}(base=Supervised()), or another method of atoll.labels",
    )


# Held-out labels: which they are, losses that do not see them, and what two models make of them.


PLAIN = "plain"
"""Phase and state of the training on labelled rows alone."""


def held_out(index: Any, share: float) -> Any:
    """Return which rows are held out, by their numbers at their party, booleans: the same rows in every round."""
    drawn = scramble_positions(index, torch.zeros_like(index) + 0x5851F42D, torch.zeros_like(index) + 0x14057B7E, 0)
    return drawn < int(share * (1 << 32))


@dataclass(frozen=True)
class HeldOutLabels:
    """Which labels are held out: a share of the rows, or those that a column of the data marks.

    Attributes:
        share: of the rows, drawn by number.
        column: name of a column, 0 for labels that teach; ``None`` for the share.
    """

    share: float = 0.2
    column: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """Inputs of a loss that the choice needs."""
        return ("index",) if self.column is None else (self.column,)

    def of(self, given: Mapping[str, Any]) -> Any:
        """Return which labels of a mini-batch are held out, booleans ``(B,)``."""
        return held_out(given["index"], self.share) if self.column is None else given[self.column] != 0


@dataclass(frozen=True)
class WithoutHeldOut(HidingLoss):
    """Hide the labels that are held out, as long as they judge: while ``broadcast["judging"]`` is above 0."""

    held: HeldOutLabels

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """The labels' names, and what the choice needs."""
        return ("labelled", "broadcast", *self.held.reads)

    def hidden(self, given: dict[str, Any]) -> Any:
        """Return which labels are held out."""
        return self.held.of(given) & (given["broadcast"]["judging"] > 0)


@dataclass(frozen=True)
class HeldOutLoss(OwnLoss):
    """Cross-entropy over the held-out labels."""

    held: HeldOutLabels
    task: ClassVar[str] = "classes"
    names: ClassVar[tuple[str, ...]] = ("model", "x", "target", "labelled", "real")

    @property
    def __signature__(self) -> inspect.Signature:
        """What the loss asks for, and what the choice of labels needs."""
        return asking(*self.names, *self.held.reads)

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, real: Any, **given: Any) -> Any:
        """Return the mean over held-out labels, 0 if there is none."""
        return mean_of(cross_entropy_of_rows(model(x), target), self.held.of(given) * labelled * real)


@dataclass(frozen=True)
class HeldOutScores(OwnLoss):
    """Sums over held-out labels of what two models make of them: ``d_i = CE(plain) - CE(guarded)``, above 0 where the guarded model is better."""

    held: HeldOutLabels
    task: ClassVar[str] = "classes"
    names: ClassVar[tuple[str, ...]] = (*HeldOutLoss.names, "broadcast")

    @property
    def __signature__(self) -> inspect.Signature:
        """What the comparison asks for, and what the choice of labels needs."""
        return asking(*self.names, *self.held.reads)

    def __call__(
        self, *, model: Any, x: Any, target: Any, labelled: Any, real: Any, broadcast: Any, **given: Any
    ) -> Any:
        """Return number, sum and sum of squares of the ``d_i``."""
        counts = self.held.of(given) * labelled * real
        guarded, plain = (
            cross_entropy_of_rows(model(x, broadcast[name], training=False), target).clamp(max=_WORST)
            for name in ("params", PLAIN)
        )
        gain = (plain - guarded) * counts
        return {"rows": counts.sum().reshape(1), "gain": gain.sum().reshape(1), "square": (gain**2).sum().reshape(1)}


_WORST = 5.0  # nats: a row on which a model is wrong and sure counts at most this, so that one row does not decide


CHECK = "guard"


@dataclass(frozen=True, kw_only=True)
class _Check(Algorithm, Labelled):
    """A pass that compares two models on held-out labels, and trains nothing."""

    held: HeldOutLabels
    prefix: str = ""
    batch_size: int | None = None
    steps: int | None = 1

    @property
    def losses(self) -> tuple[Any, ...]:
        """The held-out loss, and the comparison."""
        return (HeldOutLoss(self.held), HeldOutScores(self.held))

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with nothing counted."""
        none = next(iter(broadcast["params"].values())).reshape(-1)[:1] * 0
        return {"params": broadcast["params"], "seen": {"rows": none, "gain": none, "square": none}}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Read what both models make of the rows."""
        oracle: Any = grad
        oracle.loss(local["params"])  # for the history
        return {**local, "seen": oracle.read(self.losses[1], local["params"])}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the sums, and numbers for the history."""
        made, on = local["seen"], broadcast["on"]
        count = made["rows"] + _TINY
        mean = made["gain"] / count
        error = ((made["square"] / count - mean**2).clip(min=0) / (count - 1).clip(min=1)) ** 0.5
        told = {"gain": mean, "error": error, "on": mean * 0 + on}
        metrics = {
            f"{self.prefix}{name}": Mean(value[0], examples=count[0], role="metric") for name, value in told.items()
        }
        return {"seen": Sum(made, role="side"), **metrics}, client


_TINY = 1e-6  # a party without held-out labels weighs next to nothing


@dataclass(frozen=True, kw_only=True)
class Guard(Wrapped, Labelled, Helped, Movable):
    """Train a method with rows that have no label, and beside it a model on labelled rows alone; give up the first if held-out labels say that it is worse.

    A share of the labelled rows is held out at the parties that have labels: both trainings see these rows without their labels. In each round from
    ``after`` on, these parties say how much better the method's model fits them, ``d_i = CE(plain) - CE(guarded)`` (each loss at most 5 nats). If
    ``mean d + z s/sqrt(n) + slack < 0``, the guard has tripped: rows without labels do harm. From then on the released model is the one of labelled rows alone,
    and clients without labels are no longer asked. Nothing is left to judge then, so the held-out labels teach too. The history has ``guard_gain``, the mean of ``d``, ``guard_error``, the parties' mean standard error, and ``guard_on``, 1 until it trips. None of them costs
    a test row.

    Labels at a party of their own: that party trains the plain model, and clients notice nothing. Labels at clients: they train both, which doubles
    their work and traffic. The parties that compare send three sums over their held-out rows.

    With few held-out labels only a large harm is sure; a smaller ``z`` gives up sooner. Below 0 the burden of proof is the method's: it stays only if it
    is better by so many standard errors.

    Held-out rows judge what they are like. A model that moves to another domain may lose a little at home and gain where it goes: mark the labels of a
    whole domain in a ``column``, and this domain is what the target is, one without labels, except that its labels judge.

    Attributes:
        base: the method; its losses must ask for ``labelled``.
        plain: the training on labelled rows alone. It must keep nothing at clients.
        share: share of the labelled rows that is held out, drawn row by row.
        column: name of a column that marks held-out labels, in place of a share.
        after: rounds before the first verdict; a method may start slowly.
        z: standard errors by which the method must be worse.
        slack: nats by which it may be worse besides.
    """

    base: Algorithm = field(default_factory=FixMatch, kw_only=False)
    plain: Algorithm = field(default_factory=lambda: Supervised(view=strong("images")))
    share: float = 0.2
    column: str | None = None
    after: int = 5
    z: float = 1.0
    slack: float = 0.0
    card: ClassVar[Card] = Card(family="wrapper", note="Held-out labels decide whether rows without labels are used.")
    extrapolates: ClassVar[tuple[str, ...]] = ()  # the model is one of two, and each has a state of its own
    tied: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "card", type(self).card)
        if not 0.0 < self.share < 1.0:
            raise ConfigError(f"share={self.share}", where="Guard", remedy="use a share between 0 and 1, such as 0.2")
        if self.after < 0 or not math.isfinite(self.z) or not 0.0 <= self.slack < math.inf:
            raise ConfigError(
                f"after={self.after}, z={self.z}, slack={self.slack}",
                where="Guard",
                remedy="use rounds and nats of 0 or more, and a finite number of standard errors",
            )
        for part in (self.base, self.plain):
            require_labelled(part, "Guard")
        if self.plain.phases != ("train",):
            raise ConfigError(
                f"plain has the phases {', '.join(self.plain.phases)}", where="Guard", remedy="use plain=Supervised()"
            )
        object.__setattr__(self, "phases", (CHECK, PLAIN, *self.base.phases))

    @property
    def held(self) -> HeldOutLabels:
        """Which labels are held out."""
        return HeldOutLabels(self.share, self.column)

    @property
    def losses(self) -> tuple[Any, ...]:
        """The base's losses, without held-out labels."""
        return tuple(WithoutHeldOut(loss, self.held) for loss in facet(self.base, Labelled).losses)

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Compare, train on labelled rows alone, and run the method until the guard trips."""
        first = (CHECK,) if state["guard"]["turn"] >= self.after and state["guard"]["on"] else ()
        return (*first, PLAIN, *(self.base.plan(state["base"]) if state["guard"]["on"] else ()))

    def contacts(self, rounds: int) -> int | None:
        """Return the base's number of rounds with contacts."""
        return facet(self.base, Phased).contacts(rounds)

    def wanted(self, state: Tree, phase: str) -> bool:
        """Return whether a phase is needed: the method's are not after the guard has tripped."""
        if phase in (CHECK, PLAIN):
            return True
        return bool(state["guard"]["on"]) and facet(self.base, Phased).wanted(state["base"], phase)

    def asks(self, phase: str) -> tuple[str, ...]:
        """Ask the party with labels, if there is one, to compare and to train on labelled rows alone."""
        return (
            tuple(facet(self.base, Helped).helpers) if phase in (CHECK, PLAIN) else facet(self.base, Helped).asks(phase)
        )

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the base's passes or the plain one, without held-out labels; or compare."""
        if phase == CHECK:
            return (_Check(held=self.held, prefix="" if facet(self.base, Helped).helpers else "guard_"),)
        made = facet(self.plain, Phased).passes("train") if phase == PLAIN else facet(self.base, Phased).passes(phase)
        return tuple(_Blind(base=part, held=self.held) for part in made)

    def init(self, params: Tree) -> Tree:
        """Start with the states of both trainings."""
        for part in (self.plain,) if facet(self.base, Helped).helpers else (self.base, self.plain):
            if facet(part, Stateful).client_init(params) is not None:
                raise ConfigError(
                    f"{type(part).__name__} keeps private state at clients, which two trainings would share",
                    where="Guard",
                    remedy="use a method whose clients keep nothing, such as FixMatch() or SemiFL(), or go without a guard",
                )
        guard = {"on": True, "turn": 0, "gain": 0.0}
        return self._release_model({"base": self.base.init(params), PLAIN: self.plain.init(params), "guard": guard})

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model that a phase trains, or both."""
        if phase == CHECK:
            kept = {"params": state["params"], "lr": self.lr}
            return {**kept, PLAIN: state[PLAIN]["params"], "on": float(state["guard"]["on"])}
        part, inner, step = (self.plain, PLAIN, "train") if phase == PLAIN else (self.base, "base", phase)
        return {**part.broadcast(state[inner], step), "judging": float(state["guard"]["on"])}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold the replies of a phase; after a comparison, decide."""
        if phase == CHECK:
            return self._judge_models(state, {name: float(np.sum(value)) for name, value in sums["seen"].items()})
        if phase == PLAIN:
            return self._release_model({**state, PLAIN: self.plain.fold(state[PLAIN], sums, info, "train")})
        return self._release_model({**state, "base": self.base.fold(state["base"], sums, info, phase)})

    def _judge_models(self, state: Tree, seen: Mapping[str, float]) -> Tree:
        """Return the state after a comparison."""
        n = seen["rows"]
        if n < 2:
            raise ConfigError(
                f"{n:.0f} labels are held out: nothing to judge by",
                where="Guard",
                remedy=f"use a larger share than {self.share:g}, or more labels"
                if self.column is None
                else f"mark rows with labels in the column {self.column!r}",
            )
        mean = seen["gain"] / n
        error = math.sqrt(max(0.0, seen["square"] / n - mean**2) / (n - 1))
        guard = {**state["guard"], "gain": mean, "on": mean + self.z * error + self.slack >= 0.0}
        return self._release_model({**state, "guard": guard})

    def verdict(self, history: Any) -> dict[str, Any]:
        """Return what the last comparison of a run said: whether the method stayed (``on``), and its ``gain`` in nats.

        Args:
            history: the run's rows, ``result.metrics``. With several parties that compare, ``guard_error`` is their mean, and a close verdict may be read
                differently from how the server took it.
        """
        gain, error = (float(history.last(f"guard_{name}")) for name in ("gain", "error"))
        return {"on": gain + self.z * error + self.slack >= 0.0, "gain": gain}

    def _release_model(self, state: Tree) -> Tree:
        """Return the state with the model that the guard stands for."""
        return {**state, "params": state["base" if state["guard"]["on"] else PLAIN]["params"]}

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance both trainings, and count the round."""
        on = state["guard"]["on"]
        made = {**state, "base": facet(self.base, Phased).advance(state["base"], info) if on else state["base"]}
        made[PLAIN] = facet(self.plain, Phased).advance(state[PLAIN], info)
        return self._release_model({**made, "guard": {**state["guard"], "turn": state["guard"]["turn"] + 1}})


@dataclass(frozen=True, kw_only=True)
class _Blind(Wrapped, Labelled):
    """A pass whose losses do not see held-out labels."""

    held: HeldOutLabels

    @property
    def losses(self) -> tuple[Any, ...]:
        """The base's losses, without held-out labels."""
        return tuple(self._make_hiding_loss(loss) for loss in facet(self.base, Labelled).losses)

    def _make_hiding_loss(self, loss: Any) -> Any:
        return WithoutHeldOut(loss, self.held)

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step."""
        oracle: Any = Hiding(grad, self._make_hiding_loss)
        return super().step(local, oracle, broadcast)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run this pass."""
        return (replace(self),)
