"""A PyTorch module that a script trains: `CustomLoop` makes, measures and exports it, and its loop is never called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from .custom import CustomLoop
from .learner import loss_of_task
from .models import array_of, params_of

if TYPE_CHECKING:
    import numpy as np

    from atoll.learn.learner import Learner, LearnerSettings

__all__ = ["body_of", "untold_of"]


def body_of(
    given: nn.Module | Callable[[], nn.Module], module: nn.Module, settings: LearnerSettings, data: Any
) -> tuple[Learner, Mapping[str, np.ndarray], Mapping[str, str]]:
    """Return a learner of a module, and what `untold_of` says of it.

    Args:
        given: the module, or the function that makes it.
        module: the module.
        settings: the training's settings.
        data: the federated data set.
    """
    loop = CustomLoop(given, _never, loss=loss_of_task(module, getattr(data, "task", "")))
    learner = loop.learner(replace(settings, factory=None), data)
    return learner, *untold_of(module, {**params_of(module), **learner.buffers()})


def untold_of(module: nn.Module, names: Collection[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return what a complete state dict has besides the entries that travel; frozen parameters stay with the model.

    Args:
        module: the module.
        names: the entries that travel.

    Returns:
        Further buffers, such as counters, by name; and further names of tied parameters -> the name that travels.
    """
    kept = module.state_dict(keep_vars=True)
    first = {id(kept[name]): name for name in names}
    aliases = {name: first[id(value)] for name, value in kept.items() if name not in names and id(value) in first}
    known = {*names, *aliases}
    fixed = {
        name: array_of(value)
        for name, value in kept.items()
        if name not in known and not isinstance(value, nn.Parameter)
    }
    return fixed, aliases


def _never(*given: Any) -> None:
    del given
