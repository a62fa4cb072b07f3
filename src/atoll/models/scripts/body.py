"""What a script trains: its first parameters, what else it must be told of them, and how Atoll itself measures the model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll.core.addresses import load_object
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree, items
from atoll.core.errors import ConfigError
from atoll.learn.learner import LearnerSettings, adapt

__all__ = ["ScriptBody", "body_of"]

_MODULES = "atoll.torch.scripted:body_of"
"""What makes the body of a PyTorch module."""


@dataclass(frozen=True)
class ScriptBody:
    """A model that a script trains.

    Attributes:
        learner: makes, measures and exports the model; ``None`` for plain arrays.
        arrays: plain arrays to begin with.
        form: ``torch``: a script gets a state dict of tensors.
        fixed: entries of a state dict that do not travel.
        aliases: further names of tied parameters -> the name that travels.
    """

    learner: Any = None
    arrays: Tree = None
    form: str = "arrays"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def init(self, rng: Rng) -> Tree:
        """Return the first parameters."""
        return T.map(np.array, self.arrays) if self.learner is None else self.learner.init(rng)

    def buffers(self) -> Tree:
        """Return running statistics that travel."""
        return {} if self.learner is None else self.learner.buffers()


def body_of(model: Any, settings: LearnerSettings, data: Any) -> ScriptBody:
    """Return what is trained.

    Args:
        model: a PyTorch module, an estimator, a model of Atoll, a dict of arrays, a function that makes one, or ``module:name``.
        settings: the training's.
        data: the federated data set.

    Raises:
        ConfigError: it is none of these.
    """
    factory = None
    if isinstance(model, str):
        model = load_object(model)
    if callable(model) and not hasattr(model, "learner") and not _is_module(model):
        factory, model = model, _made(model)
    if _is_module(model):
        made = load_object(_MODULES)(model if factory is None else factory, model, settings, data)
        return ScriptBody(made[0], None, "torch", *made[1:])
    if isinstance(model, Mapping):
        return _of_arrays(model)
    made = adapt(model, settings, data) if factory is None else adapt(factory, settings, data)
    return ScriptBody(made)


def _is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _made(factory: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        return factory()
    with torch.random.fork_rng(devices=[]):
        return factory()


def _of_arrays(model: Mapping[str, Any]) -> ScriptBody:
    torch = sys.modules.get("torch")
    tensors = [isinstance(value, torch.Tensor) for _, value in items(dict(model))] if torch is not None else [False]
    arrays = T.map(lambda value: np.array(value.detach().cpu() if hasattr(value, "detach") else value), dict(model))
    wrong = next((path for path, value in items(arrays) if value.dtype.kind != "f"), None)
    if wrong is not None or not items(arrays):
        raise ConfigError(
            "the model has no parameters" if wrong is None else f"parameter {wrong!r} is not of floating-point numbers",
            where="Script.model",
            remedy="give a dict of floating-point arrays",
        )
    return ScriptBody(None, arrays, "torch" if all(tensors) else "arrays")
