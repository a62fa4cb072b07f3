"""Learners: what a training needs from a model of any library, and a small protocol for each thing that it may offer beside.

A learner offers a protocol by having its members; there is nothing to inherit from. A learner that does not train by Atoll's own local steps says so in
``offers``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from atoll.core.addresses import load_object
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import NO_BUFFERS, Capability
from atoll.core.errors import ConfigError

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
    "Learner",
    "LearnerSettings",
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
    "adapt",
    "factory_for",
    "release_learner",
    "link_of",
    "metrics_of",
    "capabilities_of",
    "placed_model",
    "register_adapter",
    "require_fit",
    "wants_round",
]


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """Settings that a training gives to a learner.

    Attributes:
        algorithm: the local update.
        loss: a name such as ``"cross_entropy"``, a callable, or ``"auto"``: chosen from the data's task.
        device: cpu, cuda, mps or auto.
        compile: auto, always or never.
        buffers: how to treat buffers that training changes: ``"averaged"`` or ``"local"``.
        singly: whether the server sees single replies; see `atoll.learn.local.reports.buffer_replies`.
        factory: makes the model; its initial weights then follow the run's seed.
        protected: whether something in the training makes replies private, so that nothing may leave beside what it protects.
        volume: client updates expected in the whole run; it decides whether compiling pays off.
    """

    algorithm: Algorithm
    loss: Any = "auto"
    device: str = "cpu"
    compile: str = "auto"
    buffers: str = "averaged"
    factory: Callable[[], Any] | None = None
    volume: int | None = None
    protected: bool = False
    singly: bool = True


class Learner(Protocol):
    """A model that can be trained at parties and evaluated anywhere.

    ``train`` receives ``{"broadcast": tree, "phase": str}`` and replies with the algorithm's aggregates plus the metric ``loss``
    (mean of the local losses). The message may also contain ``"epochs": k``, a whole number of at
    least 1: the client then does ``k`` epochs instead of the algorithm's own (``k`` steps, if the algorithm counts ``steps``; see
    `atoll.learn.local.update`); and ``"reports": {name: options}``: the reply then has ``"report/<name>"`` too (see `atoll.learn.local.reports`, whose
    ``Reporting`` is a base class for learners that report, with the task ``report``). ``measure`` receives ``{"params": tree}`` and replies with ``Sum``
    aggregates of the evaluation (see ``evaluate``) for the party's own data.

    ``takes_device = False`` says that it computes where it likes: a training then refuses ``device=`` and ``compile="always"`` (``compiles = False``: only the
    latter). ``notices``, a sequence of
    sentences, is what the result says of it.

    Everything else that a learner may offer has a small protocol below, ``Supports…``: scores, gradients of scores and of the loss, personal models,
    curvature, margins, releases under privacy, and rounds of gossip in blocks.
    """

    train: Task
    measure: Task
    report: Task

    def init(self, rng: Rng) -> Tree:
        """Return the initial parameters, a dict of arrays."""
        ...

    def buffers(self) -> Tree:
        """Return the buffers that travel with the parameters: statistics, which are averaged, and counters, which the server keeps; empty for most models."""
        ...

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums over a data set: ``n``, ``loss_sum`` and, by task, ``correct``, ``squared_error``, ..."""
        ...

    def check_reports(self, reports: Mapping[str, Any] | None) -> Any:
        """Refuse reports that this model cannot make, before any client is contacted."""
        ...

    def report_of(self, params: Tree, data: Any, reports: Mapping[str, Any]) -> dict[str, Tree]:
        """Return reports of a model on some data, by name: the server compares its own with the clients'."""
        ...

    def export(self, params: Tree) -> Any:
        """Return a model of the user's kind with these parameters."""
        ...

    def check(self, data: Any) -> None:
        """Refuse data that do not fit the model, before any client is contacted."""
        ...


Adapter = Callable[[Any, LearnerSettings, Any], Learner]
_ADAPTERS: dict[str, str] = {
    "torch": "atoll.torch:adapt",
    "sklearn": "atoll.models.estimators:adapt",
}


def register_adapter(library: str, where: str) -> None:
    """Register the ``module:function`` that adapts models whose class comes from a library."""
    _ADAPTERS[library] = where


def adapt(model: Any, settings: LearnerSettings, data: Any, adapters: Mapping[str, str] | None = None) -> Learner:
    """Make a learner from a model.

    Args:
        model: a learner factory (it has ``learner(settings, data)``), a ``torch.nn.Module``, a scikit-learn estimator, or a callable without
            arguments that makes one of them.
        settings: the training's settings.
        data: the federated data set; its task, shapes and labels are used.
        adapters: library -> ``module:function``; by default the registered ones.

    Raises:
        ConfigError: no adapter knows this kind of model.
    """
    made = _adapt_model(model, settings, data, adapters)
    _require_device(made, model, settings)
    return made


def _require_device(made: Learner, model: Any, settings: LearnerSettings) -> None:
    """Refuse a device, or native code, for a model that computes elsewhere: it would train on the CPU without a word.

    Raises:
        ConfigError: names the setting.
    """
    placed = getattr(made, "takes_device", True)
    name = getattr(model, "__name__", type(model).__name__)
    if not placed and settings.device not in ("cpu", "auto"):
        raise ConfigError(
            f"device={settings.device!r} has no effect on {name}, which does not compute on a device of Atoll's choice",
            where="Training.device",
            remedy="leave device out, or give a PyTorch module (a loop or a script of yours moves its own model)",
        )
    if not getattr(made, "compiles", placed) and settings.compile == "always":
        raise ConfigError(
            f"compile='always' has no effect on {name}: Atoll makes native code of PyTorch modules alone",
            where="Training.compile",
            remedy="leave compile out, or give a PyTorch module",
        )


def _adapt_model(model: Any, settings: LearnerSettings, data: Any, adapters: Mapping[str, str] | None) -> Learner:
    known = dict(_ADAPTERS) if adapters is None else dict(adapters)
    if hasattr(model, "learner"):
        made: Learner = model.learner(settings, data)
        return made
    for base in type(model).__mro__:
        where = known.get(base.__module__.partition(".")[0])
        if where is not None:
            adapter: Adapter = load_object(where)
            return adapter(model, settings, data)
    if callable(model):
        return _adapt_model(_make_template(model), replace(settings, factory=factory_for(model, data)), data, known)
    raise ConfigError(
        f"a model of type {type(model).__name__} cannot be trained",
        where="Training.model",
        remedy=f"give a model of one of {sorted(known)}, or an object with a `learner(settings, data)` method",
    )


def factory_for(factory: Callable[[], Any], data: Any) -> Callable[[], Any]:
    """Return the factory of the networks for a data set: one of Atoll's draws first weights by the columns' names; one of a user's own is as it is.

    Args:
        factory: the factory; one of `atoll.models` may have ``for_columns``.
        data: the federated data set, of which only the names of its columns count.
    """
    names = getattr(getattr(data, "about", None), "features", ())
    made: Callable[[], Any] = factory.for_columns(names) if names and hasattr(factory, "for_columns") else factory
    return made


def _make_template(factory: Callable[[], Any]) -> Any:
    """Return a template from a factory. PyTorch's global generator keeps its state (the real weights follow the run's seed).

    Raises:
        ConfigError: it is a class, or another function, that needs arguments.
    """
    torch = sys.modules.get("torch")
    try:
        inspect.signature(factory).bind()
    except ValueError:  # a function of C, whose signature Python does not know
        pass
    except TypeError as error:
        name = getattr(factory, "__name__", type(factory).__name__)
        raise ConfigError(
            f"model={name} needs arguments: {error}",
            where="Training.model",
            remedy=f"give a model, as in model={name}(...), or a function without arguments that makes one",
        ) from None
    if torch is None:
        return factory()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(
            0
        )  # buffers and frozen parameters do not travel: they are the same in every process
        return factory()


@runtime_checkable
class SupportsScores(Protocol):
    """Outputs of a model on inputs; ``Evaluation(metrics=...)`` needs them."""

    def scores(self, params: Tree, x: Any) -> Any:
        """Return the outputs, ``(n, outputs)``."""
        ...


@runtime_checkable
class SupportsLink(SupportsScores, Protocol):
    """``link`` says what the scores are, so that probabilities of classes follow from them.

    ``"softmax"``: log-probabilities up to a constant, and of one output the log-odds of the second class; ``"log"``: log-probabilities;
    ``"probability"``: probabilities, and of one output that of the second class; ``"value"``: the numbers themselves, also of classes; ``""``: scores of which no probabilities follow, as of a hinge.
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


def release_learner(learner: Any) -> None:
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


def capabilities_of(learner: Any) -> frozenset[Capability]:
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
    return Placed("model", type(learner).__name__, (), lack_of(capabilities_of(learner), getattr(learner, "lacks", {})))
