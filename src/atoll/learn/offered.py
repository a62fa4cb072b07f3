"""What a learner may offer in addition to the contract of `Learner`: one small protocol each, and the capabilities that follow.

A learner offers a protocol by having its members; there is nothing to inherit from. A learner that does not train by Atoll's own local steps says so in
``offers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from atoll.core.algebra.tree import Tree
from atoll.core.capability import NO_BUFFERS, Capability

from .capabilities import (
    CLASS_SCORES,
    CURVATURE,
    EXAMPLES,
    LOCAL_STEPS,
    MARGINS,
    OWN_LOSSES,
    PERSONAL_MEASURES,
    RELEASES,
    REPORTS,
    TRAINING,
    Placed,
    lack_of,
    require_composed,
)
from .wrapped import without_idle_wrappers

if TYPE_CHECKING:
    from atoll.core.requests.task import Task

    from .algorithm import Algorithm

__all__ = [
    "SupportsApart",
    "SupportsClose",
    "SupportsCurvature",
    "SupportsExamples",
    "SupportsHeld",
    "SupportsLink",
    "SupportsLossGradient",
    "SupportsLosses",
    "SupportsMargins",
    "SupportsNotices",
    "SupportsPersonal",
    "SupportsPullback",
    "SupportsReleases",
    "SupportsReports",
    "SupportsRound",
    "SupportsScores",
    "let_go",
    "link_of",
    "metrics_of",
    "offered_by",
    "placed_model",
    "require_fit",
    "wants_round",
]


@runtime_checkable
class SupportsScores(Protocol):
    """Outputs of a model on inputs; ``Evaluation(metrics=...)`` needs them."""

    def scores(self, params: Tree, x: Any) -> Any:
        """Return the outputs, ``(n, outputs)``."""
        ...


@runtime_checkable
class SupportsLink(SupportsScores, Protocol):
    """``link`` says what the scores are, so that probabilities of classes follow from them.

    ``"softmax"``: log-probabilities up to a constant, and of one output the log-odds of the second class; ``"log"``: log-probabilities; ``"value"``: the numbers
    themselves, also of classes; ``""``: scores of which no probabilities follow, as of a hinge.
    """

    link: str


@runtime_checkable
class SupportsPullback(SupportsScores, Protocol):
    """Gradients of any sum of outputs; mutual distillation needs them."""

    def pullback(self, params: Tree, x: Any, slope: Any) -> Tree:
        """Return the gradient of ``sum(slope * scores)``."""
        ...


@runtime_checkable
class SupportsLossGradient(Protocol):
    """Gradients at any point; the gradient-divergence analysis needs them."""

    def loss_gradient(self, params: Tree, x: Any, y: Any) -> tuple[Any, Tree]:
        """Return the mean loss and its gradient."""
        ...


@runtime_checkable
class SupportsPersonal(Protocol):
    """Clients' own models; ``Evaluation(personal=True)`` needs them."""

    def personal(self, params: Tree, state: Tree) -> Tree:
        """Return the model of a client with this private state (``None``: it has not trained) and the global model ``params``."""
        ...


@runtime_checkable
class SupportsHeld(Protocol):
    """Buffers of the model that clients keep: a model is measured with each client's own, and not at the server."""

    @property
    def withheld(self) -> tuple[str, ...]:
        """Return the names of these buffers; empty if all travel."""
        ...

    def held(self, params: Tree, state: Tree) -> tuple[Tree, bool]:
        """Return a model as the client with this private state has it, and whether training has made its buffers."""
        ...


@runtime_checkable
class SupportsReports(Protocol):
    """Clients that report on a model; see `atoll.learn.local.reports`, its ``Reporting`` is a base class for such learners."""

    report: Task

    def check_reports(self, reports: Mapping[str, Any] | None) -> Any:
        """Refuse reports that this model cannot make."""
        ...

    def report_of(self, params: Tree, data: Any, reports: Mapping[str, Any]) -> dict[str, Tree]:
        """Return reports of a model on some data, by name."""
        ...


@runtime_checkable
class SupportsReleases(Protocol):
    """Private training: ``train`` calls `atoll.learn.local.reports.begin_release` first, and sends nothing but the algorithm's reply."""

    releases: bool


@runtime_checkable
class SupportsCurvature(Protocol):
    """Hessian-vector products; ``curved`` says whether the loss is other than piecewise linear."""

    curved: bool


@runtime_checkable
class SupportsExamples(Protocol):
    """``per_example`` says whether the gradient of an example's loss depends on no other example."""

    per_example: bool


@runtime_checkable
class SupportsMargins(Protocol):
    """``margins`` says whether the loss is the log-loss of one margin."""

    margins: bool


@runtime_checkable
class SupportsLosses(Protocol):
    """``takes_losses`` says whether local steps can descend losses that the algorithm brings with it; see ``Algorithm.losses``."""

    takes_losses: bool


@runtime_checkable
class SupportsNotices(Protocol):
    """``notices``, sentences about the model that the result of a training says."""

    notices: Sequence[str]


@runtime_checkable
class SupportsRound(Protocol):
    """``wants_round`` says whether the loss needs the number of the contact; broadcasts then contain it as ``"round"``."""

    wants_round: bool


@runtime_checkable
class SupportsApart(Protocol):
    """Blocks in which each client has its own broadcast; gossip rounds use them on engines that support blocks."""

    def apart(self) -> Any:
        """Return the trainer of such blocks (see `atoll.torch.learner.Apart`), or ``None`` if clients are trained one by one anyway."""
        ...


@runtime_checkable
class SupportsClose(Protocol):
    """What a learner holds besides memory, such as processes of its own: it lets go of it when a training ends."""

    def close(self) -> None:
        """Let go of it; it may be needed again."""
        ...


def let_go(learner: Any) -> None:
    """Let a learner go of what it holds, if it holds anything."""
    if isinstance(learner, SupportsClose):
        learner.close()


def wants_round(learner: Any) -> bool:
    """Return whether broadcasts contain the number of the contact."""
    return bool(getattr(learner, "wants_round", False))  # asked in every round: looking at a protocol takes longer


def link_of(learner: Any) -> str:
    """Return what a learner's scores are; see `SupportsLink`."""
    return str(learner.link) if isinstance(learner, SupportsLink) else ""


def metrics_of(learner: Any) -> frozenset[str] | None:
    """Return the names of the metrics in a client's reply besides the algorithm's own; ``None`` if the learner's own code names them."""
    named = getattr(learner, "metrics", ("loss",))
    return None if named is None else frozenset(named)


def offered_by(learner: Any) -> frozenset[Capability]:
    """Return the capabilities of a learner: its own ``offers``, by default local steps, and what its protocols say."""
    told: dict[Capability, bool] = {
        NO_BUFFERS: not learner.buffers(),
        REPORTS: isinstance(learner, SupportsReports),
        PERSONAL_MEASURES: isinstance(learner, SupportsPersonal),
        CLASS_SCORES: isinstance(learner, SupportsPullback),
        RELEASES: isinstance(learner, SupportsReleases) and learner.releases,
        CURVATURE: isinstance(learner, SupportsCurvature) and learner.curved,
        EXAMPLES: isinstance(learner, SupportsExamples) and learner.per_example,
        MARGINS: isinstance(learner, SupportsMargins) and learner.margins,
        OWN_LOSSES: isinstance(learner, SupportsLosses) and learner.takes_losses,
    }
    own: frozenset[Capability] = getattr(learner, "offers", frozenset({TRAINING, LOCAL_STEPS}))
    return own | {capability for capability, there in told.items() if there}


def require_fit(algorithm: Algorithm, name: str, offers: frozenset[Capability]) -> None:
    """Refuse an algorithm that cannot train the model, when the learner is made.

    Args:
        algorithm: the algorithm, with its ``needs``.
        name: the model's name in the error.
        offers: capabilities of the learner.

    Raises:
        CompositionError: the algorithm needs a capability that the model does not offer.
    """
    require_composed(
        (Placed.of("algorithm", without_idle_wrappers(algorithm)), Placed("model", name, (), lack_of(offers)))
    )


def placed_model(learner: Any) -> Placed:
    """Return a learner in the slot of the model."""
    return Placed("model", type(learner).__name__, (), lack_of(offered_by(learner), getattr(learner, "lacks", {})))
