"""A plain function of scores and labels as a metric: exact on one set of rows, and over clients the mean of their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from atoll.core.algebra.metric import Summary
from atoll.core.errors import ConfigError, DataError

from ..local.argument_order import read_order
from .base import ScoreMetric, ratio

__all__ = ["FunctionMetric", "require_function"]

_KNOWN: dict[str, Callable[..., Any]] = {}
"""Functions that a job of this process has named: a message has names alone, and nobody can name a function that the job does not have."""


def require_function(given: Any) -> None:
    """Refuse what is no function: text, a class, a number.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(given, type) or not callable(given):
        raise ConfigError(
            f"{given!r} is not a metric of scores",
            where="metrics",
            remedy="use a metric such as Confusion(10), or a function of scores and labels that returns a number",
        )


def _fresh(function: Any) -> Any:
    """Return a copy of a callable object: what it counts at one client is not to be seen at the next. Functions are as they are."""
    if isinstance(function, FunctionType | MethodType | partial) or not hasattr(function, "__dict__"):
        return function
    try:
        return deepcopy(function)
    except Exception:  # it holds what cannot be copied
        return function


@dataclass(frozen=True)
class FunctionMetric(ScoreMetric):
    """``function(scores, labels) -> number`` as a metric, under the function's name.

    On the server's rows, it is the function. Over clients, it is ``sum_k n_k f_k / sum_k n_k``, the mean of the clients' own values by their rows: most functions of all rows,
    such as an area under a curve, differ from that. A client whose value is NaN does not count. To have the value of all rows together, write a `ScoreMetric`, whose summaries
    add up.

    Scores come first, then labels. A function whose parameters are named for the other order, as scikit-learn's ``(y_true, y_pred)`` and ``(y_true, y_score)`` are,
    gets them in its own order, and one that takes them by name alone, by name; see `atoll.learn.local.argument_order`.

    Attributes:
        function: takes the outputs, ``(n, outputs)``, or ``(n,)`` if there is one output a row, and the labels, ``(n,)``; returns a number, NaN where it is not defined.

    Raises:
        ConfigError: it is not a function with a name, or one that no job of this process has.
    """

    function: Any

    def __post_init__(self) -> None:
        if isinstance(self.function, str):
            if self.function not in _KNOWN:
                raise ConfigError(
                    f"no job here has the metric {self.function!r}",
                    where="FunctionMetric",
                    remedy="use an engine of one machine, or write a metric as a class in a module that all parties have",
                )
            object.__setattr__(self, "function", _KNOWN[self.function])
        require_function(self.function)
        _KNOWN[self.key] = self.function  # another function of the same name keeps its own key

    @property
    def name(self) -> str:
        """The name of the function, under which its values stand."""
        return str(getattr(self.function, "__name__", type(self.function).__name__)).strip("<>")

    @property
    def key(self) -> str:
        """What stands for the function in a message."""
        whole = f"{getattr(self.function, '__module__', '?')}:{getattr(self.function, '__qualname__', self.name)}"
        names = (
            whole if k == 0 else f"{whole}#{k}" for k in itertools.count()
        )  # the order of a program's functions is the same when it resumes
        return next(name for name in names if _KNOWN.get(name, self.function) is self.function)

    @property
    def doubt(self) -> str:
        """A sentence that says which argument gets the scores, if the names of the parameters do not; else ``""``."""
        order = read_order(self.function)
        if order.known:
            return ""
        first, second = order.names if len(order.names) == 2 else ("its first argument", "its second")
        return f"{self.name} gets the model's scores as {first} and the labels as {second}: name the parameters scores and labels, or y_true and y_pred, to say which is which"

    def zero(self) -> Summary:
        """The summary of no rows."""
        return {"sum": 0.0, "weight": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the function's value with the number of rows as its weight; nothing where it is NaN or infinite.

        Raises:
            DataError: it raised, or returned something else than a number.
        """
        z, y = np.asarray(scores), np.asarray(targets)
        if z.shape == (*y.shape, 1):  # beside labels (n,), (n, 1) would pair every row with every other
            z = z.reshape(y.shape)
        given = z.view(), y.view()
        for each in given:  # other metrics get the same scores: a function that changes them would change theirs
            each.setflags(write=False)
        order = read_order(self.function)
        try:
            value = float(order.call(_fresh(self.function), *given))
        except Exception as error:  # the function is the user's own and may raise anything
            shown = [f"{name} {each.shape}" for name, each in zip(("scores", "labels"), given, strict=True)]
            shapes = ", ".join(shown[::-1] if order.labels_first else shown)
            raise DataError(
                f"{self.name}({shapes}) raised {type(error).__name__}: {error}",
                where=f"metric {self.name!r}",
                remedy="return one number, and float('nan') where it is not defined, such as for rows of one class; scores are the model's outputs, and classes "
                "are scores.argmax(1)",
            ) from error
        if not math.isfinite(value):
            return self.zero()
        return {"sum": value * len(given[1]), "weight": float(len(given[1]))}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the mean by rows, under the function's name."""
        return {self.name: ratio(summary["sum"], summary["weight"])}
