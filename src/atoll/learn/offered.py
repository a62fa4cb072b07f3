"""What a learner may offer beside the contract of `Learner`: a small protocol each, and the capabilities that follow.

A learner offers a protocol by having its members; there is nothing to inherit from. One whose training is not Atoll's own local steps says so in ``offers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from atoll.core.algebra.tree import Tree
from atoll.core.capability import NO_BUFFERS, Capability

from .capabilities import (
    CLASS_SCORES,
    CURVATURE,
    LOCAL_STEPS,
    MARGINS,
    PERSONAL_MEASURES,
    RELEASES,
    REPORTS,
    TRAINING,
)
from .compose import Placed, lack_of, require_composed
from .wrapped import without_idle_wrappers

if TYPE_CHECKING:
    from atoll.core.requests.task import Task

    from .algorithm import Algorithm

__all__ = [
    "SupportsApart",
    "SupportsCurvature",
    "SupportsLossGradient",
    "SupportsMargins",
    "SupportsPersonal",
    "SupportsPullback",
    "SupportsReleases",
    "SupportsReports",
    "SupportsRound",
    "SupportsScores",
    "offered_by",
    "placed_model",
    "require_fit",
    "wants_round",
]


@runtime_checkable
class SupportsScores(Protocol):
    """Outputs of a model on inputs; ``Evaluation(metrics=...)`` needs them."""

    def scores(self, params: Tree, x: Any) -> Any:
        """The outputs, ``(n, outputs)``."""
        ...


@runtime_checkable
class SupportsPullback(SupportsScores, Protocol):
    """Gradients of any sum of outputs; mutual distillation needs them."""

    def pullback(self, params: Tree, x: Any, slope: Any) -> Tree:
        """The gradient of ``sum(slope * scores)``."""
        ...


@runtime_checkable
class SupportsLossGradient(Protocol):
    """Gradients at any point; the gradient-divergence analysis needs them."""

    def loss_gradient(self, params: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        """The mean loss and its gradient."""
        ...


@runtime_checkable
class SupportsPersonal(Protocol):
    """Clients' own models; ``Evaluation(personal=True)`` needs them."""

    def personal(self, params: Tree, state: Tree) -> Tree:
        """The model of a client with this private state (``None``: it has not trained), beside the global one."""
        ...


@runtime_checkable
class SupportsReports(Protocol):
    """Clients that report on a model; see `atoll.learn.local.reports`, whose ``Reporting`` is a base for such learners."""

    report: Task

    def check_reports(self, reports: Mapping[str, Any] | None) -> Any:
        """Refuse reports that this model cannot make."""
        ...

    def report_of(self, params: Tree, data: Any, reports: Mapping[str, Any]) -> dict[str, Tree]:
        """Reports of a model on some data, by name."""
        ...


@runtime_checkable
class SupportsReleases(Protocol):
    """Private training: ``train`` calls `atoll.learn.local.release.released` first, and sends nothing but the algorithm's reply."""

    releases: bool


@runtime_checkable
class SupportsCurvature(Protocol):
    """Hessian-vector products; ``curved`` says whether they are those of a loss that is not piecewise linear."""

    curved: bool


@runtime_checkable
class SupportsMargins(Protocol):
    """``margins`` says whether the loss is the log-loss of one margin."""

    margins: bool


@runtime_checkable
class SupportsRound(Protocol):
    """``wants_round`` says whether the loss asks for the number of the contact, which broadcasts then hold as ``"round"``."""

    wants_round: bool


@runtime_checkable
class SupportsApart(Protocol):
    """Cohorts in blocks whose clients each got a broadcast of their own; rounds of gossip use it on engines that take blocks."""

    def apart(self) -> Any:
        """What trains them (see `atoll.torch.blocks.apart.Apart`), or ``None`` where clients are trained one by one anyway."""
        ...


def wants_round(learner: Any) -> bool:
    """Whether broadcasts hold the number of the contact."""
    return isinstance(learner, SupportsRound) and learner.wants_round


def offered_by(learner: Any) -> frozenset[Capability]:
    """The capabilities of a learner: its own ``offers``, by default local steps, and what its protocols say."""
    told: dict[Capability, bool] = {
        NO_BUFFERS: not learner.buffers(),
        REPORTS: isinstance(learner, SupportsReports),
        PERSONAL_MEASURES: isinstance(learner, SupportsPersonal),
        CLASS_SCORES: isinstance(learner, SupportsPullback),
        RELEASES: isinstance(learner, SupportsReleases) and learner.releases,
        CURVATURE: isinstance(learner, SupportsCurvature) and learner.curved,
        MARGINS: isinstance(learner, SupportsMargins) and learner.margins,
    }
    own: frozenset[Capability] = getattr(learner, "offers", frozenset({TRAINING, LOCAL_STEPS}))
    return own | {capability for capability, there in told.items() if there}


def require_fit(algorithm: Algorithm, name: str, offers: frozenset[Capability]) -> None:
    """Refuse an algorithm that a model cannot be trained by, when the learner is made.

    Args:
        algorithm: with its ``needs``.
        name: of the model, for the error.
        offers: capabilities of the learner.

    Raises:
        CompositionError: the algorithm needs another one of the model.
    """
    require_composed(
        (Placed.of("algorithm", without_idle_wrappers(algorithm)), Placed("model", name, (), lack_of(offers)))
    )


def placed_model(learner: Any) -> Placed:
    """A learner in the slot of the model."""
    return Placed("model", type(learner).__name__, (), lack_of(offered_by(learner), getattr(learner, "lacks", {})))
