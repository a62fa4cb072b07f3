"""DP-SGD: local steps along noisy sums of clipped gradients of single examples, for differential privacy of each example of a client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import PROTECTION, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, Gaussian
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Gradient, Phased, Private, Stateful
from atoll.learn.capabilities import EXAMPLES
from atoll.learn.card import Card
from atoll.learn.local.examples import Clipping, ExampleSteps
from atoll.learn.wrapped import Wrapped

__all__ = ["DPSGD", "LocalPasses"]

_MOST = 8
"""Sizes of clients whose costs are told apart."""


@dataclass(frozen=True)
class LocalPasses:
    """What one contact of a client releases, as a function of its number of examples.

    Attributes:
        plan: mini-batches.
        passes: of each pass over the data the gradients in a step, the epochs, and the steps if they are given.
    """

    plan: ExampleSteps
    passes: tuple[tuple[int, int, int | None], ...]

    def work_of(self, examples: int) -> tuple[float, tuple[int, ...]]:
        """Return the sampling rate and each pass's number of steps at a client with so many examples."""
        if not examples:
            return 1.0, (0,) * len(self.passes)
        turns = -(-examples // min(self.plan.batch, examples))
        counts = tuple(epochs * turns if steps is None else steps for _, epochs, steps in self.passes)
        return self.plan.rate_of(examples), counts

    def events(self, noise: float, rate: float, counts: Sequence[int]) -> tuple[Gaussian, ...]:
        """Return the releases of that work: ``k`` gradients of one mini-batch together have noise multiplier ``noise / sqrt(k)``."""
        found: dict[int, int] = {}
        for (gradients, _, _), steps in zip(self.passes, counts, strict=True):
            found[gradients] = found.get(gradients, 0) + steps
        return tuple(
            Gaussian(
                unit="example",
                noise_multiplier=noise / math.sqrt(gradients),
                count=steps,
                sampling=rate,
                drawn_by="party",
                between="add-remove",
            )
            for gradients, steps in found.items()
            if gradients and steps
        )

    def worst(self, sizes: Sequence[int]) -> list[tuple[float, tuple[int, ...]]]:
        """Return work that costs at least what clients of these sizes spend: of all with equal steps the highest rate; of many, a few bounds."""
        by_steps: dict[tuple[int, ...], float] = {}
        for n in sizes:
            rate, counts = self.work_of(n)
            if any(counts):
                by_steps[counts] = max(rate, by_steps.get(counts, 0.0))
        found = sorted(by_steps.items())
        width = -(-len(found) // _MOST) or 1
        groups = [found[at : at + width] for at in range(0, len(found), width)]
        return [(max(rate for _, rate in group), group[-1][0]) for group in groups]


@dataclass(frozen=True, kw_only=True)
class DPSGD(Wrapped, Private):
    """Any first-order algorithm with every gradient replaced by ``(sum_i clip(grad f_i(w), C) + N(0, (z C)^2 I)) / B``.

    The sum runs over a mini-batch that the client draws from its own secret: each of its ``n`` examples is in it with probability ``q = min(1, B/n)``, independently. ``B`` is the
    expected size of a mini-batch and a constant, so that no divisor depends on the data. All that the algorithm does with the gradient (a proximal term, control variates,
    momentum, whatever clients keep and send) is computed from released values. The guarantee therefore holds for every algorithm of local steps, against all parties that see
    replies, the server included.

    A step is one release of a Poisson-sampled Gaussian with noise multiplier ``z``. If the algorithm asks for ``k`` gradients of one mini-batch in a step, it has multiplier
    ``z / sqrt(k)``. It protects single examples: of neighbouring data, one has an example whose gradient counts and the other does not (add-remove). The client's *number* of
    examples is public, because it weights replies. A full gradient of a client, such as an anchor, is estimated from a mini-batch of expected size ``B`` too.

    We deviate from the paper: the noise of a model in float32 is floating-point (in float64 it is discrete, on a lattice to which sums are rounded), clipping leaves a margin of 1e-5 for rounding, and an example whose gradient is not finite counts as zero.

    Attributes:
        base: the algorithm inside. Its epochs or steps fix the number of releases beforehand; stragglers are charged in full.
        clip: ``C``: the largest norm of one example's gradient.
        noise: ``z``: standard deviation of the noise, divided by ``clip``.
        batch: ``B``; ``None`` is the base's ``batch_size``.
        rate: ``q`` for all clients, whatever their size; ``None`` is ``min(1, B/n)``. It needs a base with ``steps``.
        group_wise: clip each of ``L`` layers to ``C / sqrt(L)`` instead of the whole gradient to ``C``; one example then still moves the sum by at most ``C``.

    Raises:
        CompositionError: the base looks at losses or curvature, has several phases, or has a mechanism already.
    """

    clip: float
    noise: float
    batch: int | None = None
    rate: float | None = None
    group_wise: bool = False
    gradients: int = field(init=False, repr=False, compare=False)
    citation: ClassVar[str] = (
        "Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang. Deep Learning with Differential Privacy. CCS 2016."
    )
    card: ClassVar[Card] = Card(
        example={"clip": 1.0, "noise": 1.0},
        family="wrapper",
        note="Local differential privacy for each example, by noise in every local step.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "citation", f"{self.base.citation} {type(self).citation}".strip())
        object.__setattr__(self, "card", type(self).card)
        object.__setattr__(self, "partial", False)  # more epochs would be more releases than were announced
        _require_settings(self)
        if PROTECTION in self.base.offers:
            raise CompositionError(
                f"{type(self.base).__name__} is a mechanism already, or has one inside", where="DPSGD", remedy="use one"
            )
        if len(self.base.phases) > 1:
            raise CompositionError(
                f"{type(self.base).__name__} contacts its clients in {len(self.base.phases)} phases of a round, whose releases differ",
                where="DPSGD",
                remedy="use a base with one phase, such as FedAvg, FedProx, Scaffold, FedNova or FedDyn",
            )
        if self.base.cyclic:
            raise CompositionError(
                f"{type(self.base).__name__} remembers its mini-batches, which are drawn afresh here",
                where="DPSGD",
                remedy="use FedAvg, FedProx, Scaffold, FedNova or FedDyn",
            )
        object.__setattr__(self, "gradients", _gradients(self.base))
        for part in facet(self.base, Phased).passes(self.base.phases[0]):
            if type(part) is not type(self.base):
                replace(self, base=part, batch=self.size)  # refuses what it refuses here

    @property
    def size(self) -> int:
        """The expected number of examples in a mini-batch, ``B``."""
        return int(self.batch or self.base.batch_size or 0)

    @property
    def example_steps(self) -> ExampleSteps:
        """Mini-batches and noise come from the client's secret."""
        moved = self.clip / self.size
        return ExampleSteps(self.size, self.rate, self.gradients, self.noise * moved, moved)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and a model whose loss is a sum over examples."""
        return (Need(EXAMPLES, "bounds what each example contributes", "OutputPerturbation"), *super().needs)

    def batch_of(self, n: Any) -> Any:
        """Return the expected size of a mini-batch at a client with ``n`` examples; it counts the steps of an epoch."""
        return np.minimum(self.size, n) if self.rate is None else np.maximum(np.ceil(n * self.rate).astype(int), 1)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the base's passes, each with noisy gradients."""
        return self._around(phase)

    def _around(self, phase: str) -> tuple[DPSGD, ...]:
        return tuple(replace(self, base=part, batch=self.size) for part in facet(self.base, Phased).passes(phase))

    @property
    def releases(self) -> LocalPasses:
        """What one contact of a client releases."""
        passes = tuple((part.gradients, part.epochs, part.steps) for part in self._around(self.phases[0]))
        return LocalPasses(self.example_steps, passes)

    def events(self, examples: int) -> tuple[Event, ...]:
        """Return a Poisson-sampled Gaussian for every step; none for a client without examples."""
        return self.releases.events(self.noise, *self.releases.work_of(examples))

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step along noisy gradients."""
        return self.base.step(local, _Noisy(grad, self), broadcast)

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return the base's direction with a noisy gradient."""
        return self.base.direction(local, grad if isinstance(grad, _Noisy) else _Noisy(grad, self), broadcast)


class _Noisy:
    """A gradient oracle that releases noisy sums, and nothing else of the examples."""

    def __init__(self, grad: Gradient, rule: DPSGD) -> None:
        self._grad, self._rule = grad, rule

    def __call__(self, params: Tree) -> Tree:
        rule = self._rule
        total = self._grad.clipped(params, Clipping(rule.clip, rule.group_wise, 1.0 / rule.size))
        return T.add(rule.example_steps.round_sum(total), self._grad.normal(params))

    def loss(self, params: Tree) -> Any:
        raise _looks("the loss of a mini-batch")

    def hvp(self, params: Tree, vector: Tree) -> Tree:
        raise _looks("the curvature of a mini-batch")

    def hvps(self, params: Tree, vectors: Tree) -> Tree:
        raise _looks("the curvature of a mini-batch")

    def clipped(self, params: Tree, clipping: Clipping) -> Tree:
        raise _looks("clipped gradients without noise")

    def normal(self, params: Tree) -> Tree:
        raise _looks("noise")


class _Counting(_Noisy):
    """An oracle that counts gradients."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, params: Tree) -> Tree:
        self.count += 1
        return T.map(lambda leaf: 0.5 * leaf, params)


def _gradients(base: Algorithm) -> int:
    """Return the number of gradients that a step of the base's own takes, by taking one on a small model.

    Raises:
        CompositionError: it looks at something else than gradients, or takes no steps.
    """
    params = {"weight": np.array([1.0, -2.0, 3.0])}
    broadcast = base.broadcast(base.init(params), base.phases[0])
    drawn = facet(base, Stateful).draw(Rng(0), params)
    extra: Mapping[str, Tree] = {} if drawn is None else {"drawn": drawn}
    oracle = _Counting()
    try:
        base.step({**base.start(broadcast, facet(base, Stateful).client_init(params)), **extra}, oracle, broadcast)
    except (KeyError, TypeError, ValueError) as error:
        raise CompositionError(
            f"a pass of {type(base).__name__} is no step along gradients ({type(error).__name__}: {error})",
            where="DPSGD.base",
            remedy="use FedAvg, FedProx, Scaffold, FedNova or FedDyn",
        ) from error
    return oracle.count


def _looks(what: str) -> CompositionError:
    return CompositionError(
        f"the algorithm looks at {what}, which carries no noise",
        where="DPSGD.base",
        remedy="use an algorithm of gradient steps, such as FedAvg, FedProx, Scaffold, FedNova or FedDyn",
    )


def _require_settings(rule: DPSGD) -> None:
    for name in ("clip", "noise"):
        value = getattr(rule, name)
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{name}={value}", where="DPSGD", remedy="use a positive, finite number")
    if rule.rate is not None and not 0.0 < rule.rate <= 1.0:
        raise ConfigError(f"rate={rule.rate}", where="DPSGD", remedy="use a number above 0 and at most 1")
    if rule.batch is not None and rule.batch < 1:
        raise ConfigError(f"batch={rule.batch}", where="DPSGD", remedy="use a whole number of at least 1")
    if not rule.size:
        raise ConfigError(
            f"{type(rule.base).__name__} takes all rows of a client as one mini-batch",
            where="DPSGD",
            remedy=f"set batch_size=... in {type(rule.base).__name__}, or batch=... here: the expected size of a mini-batch is a constant, by which every noisy sum is divided",
        )
    if rule.rate is not None and rule.base.steps is None:
        raise ConfigError(
            f"rate={rule.rate} with epochs={rule.base.epochs}",
            where="DPSGD",
            remedy="set steps=... in the algorithm: with one rate for all clients, their number of steps must not depend on their size",
        )
