"""Calls that do not fit: an unknown, missing or unusable argument is named, with its place and the remedy; and where a call of Atoll came from."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from .errors import AtollError, ConfigError, nearest

__all__ = ["KINDS", "checked_call", "is_real", "level_outside", "misfit", "shown"]

Called = TypeVar("Called", bound=Callable[..., Any])

_MOST = 200  # maximum number of characters of a value in an error
_ELSEWHERE = {
    "learning_rate": "lr", "local_epochs": "epochs", "num_epochs": "epochs", "batchsize": "batch_size", "num_rounds": "rounds",
    "n_rounds": "rounds", "strategy": "algorithm", "optimizer": "algorithm", "network": "model", "net": "model",
    "server_learning_rate": "server_lr", "loss_fn": "loss", "criterion": "loss", "metrics": "evaluation", "num_clients": "parties",
    "clients": "parties", "n_clients": "parties", "num_partitions": "parties", "partitions": "parties", "label": "target", "labels": "target",
    "weight": "examples", "num_examples": "examples", "n_workers": "workers", "num_workers": "workers", "random_state": "seed", "backend": "engine",
    "path": "folder", "out": "folder", "timeout": "deadline", "in_features": "features", "out_features": "outputs", "num_classes": "outputs",
}  # fmt: skip
"""Names that other libraries use -> ours."""


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """Whether a value is a number: not a Boolean, not text, not NaN."""
    return _whole(value) or (isinstance(value, float | np.floating) and not math.isnan(value))


KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_whole, "a whole number"),
    "float": (is_real, "a number"),
    "bool": (lambda value: isinstance(value, bool | np.bool_), "True or False"),
    "str": (lambda value: isinstance(value, str), "a word"),
    "None": (lambda value: value is None, "None"),
}
"""Maps an annotation to a check and its description."""
_ARGUMENTS = {**KINDS, "Path": (lambda value: isinstance(value, Path), "a path")}


def checked_call(called: Called) -> Called:
    """Decorate a public function, or a class: a call that does not fit raises an error that says how to make it.

    The check costs nothing where the call works. If the function fails on an argument of another kind than its annotation names (a number, a Boolean,
    text, a path, ``None``), the error names that argument.

    Raises:
        ConfigError: an argument is unknown, missing, given too often, or of another kind.
    """
    if inspect.isclass(called):
        kind: Any = called
        kind.__init__ = _guard_call(kind.__init__, kind.__name__)
        return called
    return cast(Called, _guard_call(called, called.__qualname__))


def _guard_call(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*given: Any, **settings: Any) -> Any:
        try:
            return function(*given, **settings)
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, AtollError):
                raise
            signature = inspect.signature(function)
            try:
                bound = signature.bind(*given, **settings).arguments
            except TypeError as unfit:
                raise misfit(signature, name, settings, unfit) from None
            wrong = _wrong_kind(signature, bound)
            if wrong is None:
                raise
            argument, words = wrong
            raise ConfigError(f"{argument}={shown(bound[argument])}", where=name, remedy=f"use {words}") from error

    return call


def _wrong_kind(signature: inspect.Signature, bound: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first argument of another kind than its annotation, and what the annotation says."""
    for name, value in bound.items():
        kinds = str(signature.parameters[name].annotation).split(" | ")
        if set(kinds) <= set(_ARGUMENTS) and not any(_ARGUMENTS[kind][0](value) for kind in kinds):
            return name, " or ".join(_ARGUMENTS[kind][1] for kind in kinds)
    return None


def misfit(signature: inspect.Signature, name: str, settings: Mapping[str, Any], error: TypeError) -> ConfigError:
    """The error about a call that does not fit a signature: it names the first unknown setting, or else what is missing.

    Args:
        signature: of the function, or of a class's ``__init__``.
        name: of the function or class.
        settings: the keywords of the call.
        error: what Python said.
    """
    takes = [one for one in signature.parameters if one not in ("self", "cls")]
    unknown = [given for given in settings if given not in takes]
    if unknown:
        first = unknown[0]
        what = f"{first}={shown(settings[first])}: {name} has no setting {first!r}.{_nearest_setting(first, takes)}"
    else:
        what = f"{name}() {str(error).rpartition('() ')[2]}"
    return ConfigError(
        what, where=name, remedy=f"its settings are {', '.join(takes)}" if takes else "it has no settings"
    )


def _nearest_setting(name: str, known: Sequence[str]) -> str:
    """A hint, also for the names that other libraries use."""
    other = _ELSEWHERE.get(name)
    return f" Did you mean {other!r}?" if other in known else nearest(name, known)


def shown(value: Any) -> str:
    """The value, shortened: it may be a list of a million."""
    text = repr(value)
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


def level_outside() -> int:
    """Return the level of the frame that called Atoll, for a warning."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "atoll":
        frame, level = frame.f_back, level + 1
    return level
