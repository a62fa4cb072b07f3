"""Learners: what a training needs from a model of any library."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from atoll.core.addresses import load_object
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from atoll.core.requests.task import Task

    from .algorithm import Algorithm

__all__ = ["Learner", "LearnerSettings", "adapt", "register_adapter"]


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

    `atoll.learn.offered` has a small protocol for everything else that a learner may offer: scores, gradients of scores and of the loss, personal models,
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
        return _adapt_model(_make_template(model), replace(settings, factory=model), data, known)
    raise ConfigError(
        f"a model of type {type(model).__name__} cannot be trained",
        where="Training.model",
        remedy=f"give a model of one of {sorted(known)}, or an object with a `learner(settings, data)` method",
    )


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
