"""DualAdapt: classifiers look for disagreement at the targets, and the source's features remove it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.data.labels.hiding import LABELS
from atoll.learn.algorithm import Algorithm, Helped, Labelled, LocalWork, Movable, RoundInfo
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..domain_network import classes_of, outputs_of, width_of
from ..losses import cross_entropy_of_rows, mean_of, mix_rows, seen
from ..objectives.consistency import pseudo_labels
from ..objectives.domains import classifier_discrepancy
from ..pre_pass import PrePass
from ..views.base import View
from .base import Method

__all__ = ["DualAdapt", "FeatureMixture", "MixtureSums", "SourceLoss", "TargetLoss", "log_density", "mixture_of"]

# A mixture of Gaussians of the targets' features, one component for each class, from sums alone.


_FLOOR = 1e-4
"""Smallest variance of a component, in squared units of the features."""


def log_density(z: Any, mixture: Mapping[str, Any]) -> Any:
    """Return ``log sum_k share_k N(z | mean_k, variance_k)`` of each row, ``(B,)``; components of share 0 do not count."""
    away = (z.unsqueeze(1) - mixture["means"]) ** 2 / mixture["variances"] + torch.log(mixture["variances"])
    each = -0.5 * (away.sum(2) + z.shape[1] * math.log(2.0 * math.pi))
    return torch.logsumexp(each + torch.log(mixture["shares"].clamp(min=1e-30)), 1)


@dataclass(frozen=True)
class MixtureSums(OwnLoss):
    """What a target adds up for the mixture of features: for each class, its probability, features times it, and their squares times it. It is only read."""

    view: View | None = None

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return ``{"count": (C,), "first": (C, D), "second": (C, D)}``."""
        out = outputs_of(model(seen(self.view, x, keys, 0, real)), broadcast["params"], "DualAdapt")
        share = out.logits.softmax(1) * real.unsqueeze(1)
        return {"count": share.sum(0), "first": share.T @ out.features, "second": share.T @ out.features**2}


@dataclass(frozen=True, kw_only=True)
class FeatureMixture(PrePass):
    """A pass that trains nothing: it replies with the sums of `MixtureSums` over all rows."""

    view: View | None = None
    card: ClassVar[Card] = Card(part=True, note="A part of DualAdapt: it does not train.")

    @property
    def losses(self) -> tuple[Any, ...]:
        """What is read."""
        return (MixtureSums(self.view),)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with sums of 0."""
        del client
        zero = broadcast["mixture"]["means"] * 0.0
        return {"params": broadcast["params"], "read": {"count": zero[:, 0], "first": zero, "second": zero}}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the sums."""
        del broadcast, work
        return {"mixture": Sum(local["read"], role="side")}, client


def mixture_of(sums: Mapping[str, Any]) -> Tree:
    """Return shares, means and variances from the sums of all targets."""
    kind = sums["first"].dtype
    count, first, second = (np.asarray(sums[name], dtype=np.float64) for name in ("count", "first", "second"))
    safe = np.maximum(count, 1e-12)[:, None]
    means = first / safe
    variances = np.maximum(second / safe - means**2, 0.0) + _FLOOR
    made = {"known": np.ones(1), "shares": count / max(count.sum(), 1e-12), "means": means, "variances": variances}
    return {name: value.astype(kind) for name, value in made.items()}


def part_of(params: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    """Return the parameters whose names begin with one of some parts."""
    return {name: leaf for name, leaf in params.items() if name.startswith(parts)}


@dataclass(frozen=True)
class SourceLoss(OwnLoss):
    """At the source: ``CE_1 + CE_2 + weight mean w(m) |p_1(m) - p_2(m)|`` on mixed rows ``m``, in which both classifiers are those that were sent.

    So the discrepancy trains the features alone. ``m = s x + (1 - s) x'`` mixes each row with another one of the mini-batch and stands for a row of a target; ``w`` says how
    likely its features are under the targets' mixture, with mean 1.

    Attributes:
        view: of the rows.
        weight: of the discrepancy.
        mix: ``s = max(v, 1 - v)`` with ``v`` from ``Beta(mix, mix)``.
    """

    view: View | None
    weight: float
    mix: float
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        rows, params = seen(self.view, x, keys, 0, real), broadcast["params"]
        out = _pair(model(rows), params)
        taught = cross_entropy_of_rows(out.logits, target) + cross_entropy_of_rows(out.second, target)
        loss = mean_of(taught, labelled * real)
        if self.weight == 0.0:
            return loss
        mixture, _, _ = mix_rows(rows, keys, 1, real, self.mix)
        other = _pair(model(mixture, part_of(params, "classifier.", "second.")), params)
        apart = classifier_discrepancy(other.logits, other.second)
        likely = log_density(other.features.detach(), broadcast["mixture"]) / other.features.shape[1]
        raised = torch.exp(likely - likely.max()) * real
        counts = torch.where(broadcast["mixture"]["known"] > 0, raised, real)
        return loss + self.weight * mean_of(apart, counts)


@dataclass(frozen=True)
class TargetLoss(OwnLoss):
    """At a target: ``mean_K (CE_1 + CE_2) - weight mean |p_1 - p_2|`` with the features that were sent, so that it trains the classifiers alone.

    ``K`` are rows of whose class the global model is sure; its guesses keep the classifiers from the trivial answers that disagreement alone allows.

    Attributes:
        view: of the rows.
        weight: of the discrepancy.
        tau: how sure the global model must be.
    """

    view: View | None
    weight: float
    tau: float

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        rows, params = seen(self.view, x, keys, 0, real), broadcast["params"]
        out = _pair(model(rows, part_of(params, "features.")), params)
        with torch.no_grad():
            guess, kept = pseudo_labels(model(rows, params, training=False), self.tau)
        taught = cross_entropy_of_rows(out.logits, guess) + cross_entropy_of_rows(out.second, guess)
        apart = classifier_discrepancy(out.logits, out.second)
        return mean_of(taught, kept * real) - self.weight * mean_of(apart, real)


@dataclass(frozen=True, kw_only=True)
class DualAdapt(Method, Labelled, Helped, Movable):
    """One labelled source, many targets without labels, after the maximum classifier discrepancy (Yao et al. 2022; Saito et al. 2018).

    A round has three contacts. The source (a helper party with the labels) trains features and both classifiers on its labels, and its features to remove
    the classifiers' disagreement on mixed rows, which stand for the targets'. The targets then add up a mixture of Gaussians of their features, one for each
    class, which weighs the source's mixed rows in the next round. At last they train both classifiers to disagree while the features are held, with the global
    model's sure guesses as labels.

    We deviate in one point: the paper fits a mixture at each participant. Here a component is a class, its rows are weighted by the model's
    probabilities (one step of expectation maximisation), and all targets share one mixture, so that only sums leave them.

    Attributes:
        weight: of the discrepancy, 0 or more.
        tau: how sure the global model must be of a guess at the targets.
        mix: rows are mixed by a share from ``Beta(mix, mix)``.
        view: of all rows; ``None`` for the rows as they are.
    """

    weight: float = 1.0
    tau: float = 0.9
    mix: float = 0.75
    view: View | None = None
    citation: ClassVar[str] = "Yao, Gong, Qi, Cui, Zhu, Yang. Federated Multi-Target Domain Adaptation. WACV 2022."
    card: ClassVar[Card] = Card(family="wrapper", note="Labels at one source, a party of its own; clients are targets.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight >= 0.0 or not 0.0 < self.tau <= 1.0 or not self.mix > 0.0:
            raise ConfigError(
                f"weight={self.weight}, tau={self.tau}, mix={self.mix}",
                where="DualAdapt",
                remedy="use a weight of 0 or more, a tau between 1/C and 1, and a mix above 0",
            )
        if self.base.phases != ("train",):
            raise CompositionError(
                f"DualAdapt around {type(self.base).__name__}, which has phases {', '.join(self.base.phases)}",
                where="DualAdapt",
                remedy="use a base with one contact a round, such as FedAvg or FedProx",
            )
        object.__setattr__(self, "phases", ("source", "mixture", "train"))
        object.__setattr__(self, "card", type(self).card)

    @property
    def losses(self) -> tuple[Any, ...]:
        """The targets' loss."""
        return (TargetLoss(self.view, self.weight, self.tau),)

    @property
    def helpers(self) -> Mapping[str, str]:
        """The source: a party with labelled rows."""
        return {**facet(self.base, Helped).helpers, LABELS: LABELS}

    @property
    def label_holders(self) -> tuple[str, ...]:
        """The source."""
        return (LABELS,)

    def asks(self, phase: str) -> tuple[str, ...]:
        """The source works in its own phase, the targets in the others."""
        return (LABELS,) if phase == "source" else facet(self.base, Helped).asks(phase)

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return all phases."""
        del state
        return self.phases

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the phase's pass."""
        if phase == "source":
            return (_AtSource(base=self.base, loss=SourceLoss(self.view, self.weight, self.mix)),)
        return (FeatureMixture(view=self.view, method=self),) if phase == "mixture" else super().passes("train")

    def init(self, params: Tree) -> Tree:
        """Start without a mixture."""
        kind = next(iter(params.values())).dtype
        zero = np.zeros((classes_of(params), width_of(params, "DualAdapt")), kind)
        mixture = {"known": zero[0, :1], "shares": zero[:, 0], "means": zero, "variances": zero + 1}
        return {**super().init(params), "mixture": mixture}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model and the mixture."""
        del phase
        return {**super().broadcast(state, "train"), "mixture": state["mixture"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold the updates, or make the mixture of the sums."""
        if phase == "mixture":
            return {**state, "mixture": mixture_of(sums["mixture"])}
        return {**super().fold(state, sums, info, "train"), "mixture": state["mixture"]}

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance as the base does."""
        return {**super().advance(state, info), "mixture": state["mixture"]}

    def moved(self, state: Tree) -> Tree:
        """Bring the state up to date as the base does."""
        return {**super().moved(state), "mixture": state["mixture"]}


@dataclass(frozen=True, kw_only=True)
class _AtSource(Method, Labelled):
    """The source's local training."""

    loss: SourceLoss
    card: ClassVar[Card] = Card(part=True)

    @property
    def losses(self) -> tuple[Any, ...]:
        """The source's loss."""
        return (self.loss,)


def _pair(made: Any, params: Mapping[str, Any]) -> Any:
    """Return a network's outputs, of which both classifiers are there.

    Raises:
        CompositionError: the network has one classifier.
    """
    out = outputs_of(made, params, "DualAdapt")
    if out.second is None:
        raise CompositionError(
            "DualAdapt, and a network with one classifier",
            where="DualAdapt",
            remedy="give DomainNetwork(..., second=nn.Linear(...))",
        )
    return out
