"""What a scikit-learn transformer needs to know about a column to be fitted."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.errors import ConfigError, nearest

__all__ = ["Needed", "needs_of", "positioned"]

_MOMENTS, _LIMITS, _VALUES, _NOTHING = "moments", "limits", "values", ""
_QUARTILES, _PRODUCTS = "quartiles", "products"
_WHAT = {
    "StandardScaler": _MOMENTS,
    "MinMaxScaler": _LIMITS,
    "MaxAbsScaler": _LIMITS,
    "OneHotEncoder": _VALUES,
    "OrdinalEncoder": _VALUES,
    "Binarizer": _NOTHING,
    "FunctionTransformer": _NOTHING,
    "Normalizer": _NOTHING,
    "PCA": _PRODUCTS,
    "PolynomialFeatures": _NOTHING,
    "RobustScaler": _QUARTILES,
}
_COUNTING = ("min_frequency", "max_categories")


@dataclass(frozen=True)
class Needed:
    """What a transformer needs.

    Attributes:
        who: the transformer's class.
        what: ``"moments"`` (means and variances), ``"quartiles"``, ``"products"`` (covariances), ``"limits"`` (smallest and largest values), ``"values"`` (all that occur),
            or nothing.
        columns: of these columns.
    """

    who: str
    what: str
    columns: tuple[int, ...]


def needs_of(step: Any, width: int | None) -> list[Needed]:
    """Return what a step needs of which columns, given the number of columns (``None``: columns are left out).

    Raises:
        ConfigError: the step cannot be fitted to summaries.
    """
    if step in (None, "passthrough", "drop"):
        return []
    if type(step).__name__ == "ColumnTransformer":
        needs = [
            _need(part, _places(columns, width)) for _, part, columns in step.transformers if not isinstance(part, str)
        ]
        _require_apart(needs)
        return needs
    return [_need(step, tuple(range(width or 0)))]


def _require_apart(needs: list[Needed]) -> None:
    """Refuse a column of which two transformers need different things: no stand-in rows have both.

    Raises:
        ConfigError: names the column and the transformers.
    """
    taken: dict[int, Needed] = {}
    for need in needs:
        for column in need.columns if need.what else ():
            other = taken.setdefault(column, need)
            if other.what != need.what or (need.what == _PRODUCTS and other is not need):
                raise ConfigError(
                    f"column {column} goes through {other.who} and {need.who} beside each other",
                    where="FitTransformers",
                    remedy="give each column to one transformer, or put them one after the other",
                )


def _need(step: Any, columns: tuple[int, ...]) -> Needed:
    name = type(step).__name__
    if name not in _WHAT:
        raise ConfigError(
            f"{name} cannot be fitted to means, covariances, quantiles, limits and values of columns",
            where="FitTransformers",
            remedy=f"use one of {', '.join(_WHAT)}, alone or in a ColumnTransformer; or fit {name} beforehand on rows that may be shared. "
            "Imputers are fitted by atoll.fitting.Fit(model=Columns(), impute=...), since a data set has no missing values",
        )
    for setting in _COUNTING:
        if getattr(step, setting, None) is not None:
            raise ConfigError(
                f"{name}({setting}={getattr(step, setting)}) depends on how often a value occurs",
                where="FitTransformers",
                remedy=f"leave {setting} out",
            )
    _refuse_settings(step, name)
    return Needed(name, _WHAT[name], columns)


def _refuse_settings(step: Any, name: str) -> None:
    """Refuse settings whose fit depends on more than the summaries.

    Raises:
        ConfigError: names the setting.
    """
    good: dict[str, tuple[bool, str]] = {}
    if name == "RobustScaler":
        good["quantile_range"] = (tuple(step.quantile_range) == (25.0, 75.0), "use the quartiles, (25.0, 75.0)")
    elif name == "PCA":
        exact = ("auto", "full", "covariance_eigh")
        good["svd_solver"] = (step.svd_solver in exact, f"use {', '.join(map(repr, exact))}: others draw at random")
        good["n_components"] = (step.n_components != "mle", "give a number of components, or a share of the variance")
    for setting, (fine, remedy) in good.items():
        if not fine:
            raise ConfigError(f"{name}({setting}={getattr(step, setting)!r})", where="FitTransformers", remedy=remedy)


def _places(columns: Any, width: int | None) -> tuple[int, ...]:
    if width is None:
        return ()
    chosen = np.arange(width)[[columns] if isinstance(columns, int) else columns]
    return tuple(np.atleast_1d(chosen).tolist())


def positioned(step: Any, names: Sequence[str]) -> Any:
    """Return a step whose columns are positions: a name is replaced by its position in the data.

    Raises:
        ConfigError: there is no such column.
    """
    if type(step).__name__ != "ColumnTransformer":
        return step
    made = copy.copy(step)
    made.transformers = [(name, part, _positions(columns, names)) for name, part, columns in step.transformers]
    return made


def _positions(columns: Any, names: Sequence[str]) -> Any:
    if isinstance(columns, str):
        return [_position(columns, names)]
    if isinstance(columns, slice) or callable(columns):
        return columns
    listed = [columns] if isinstance(columns, int) else list(columns)
    return [_position(column, names) if isinstance(column, str) else column for column in listed]


def _position(column: str, names: Sequence[str]) -> int:
    if column not in names:
        raise ConfigError(
            f"no column {column!r}.{nearest(column, list(names))}",
            where="FitTransformers",
            remedy=f"name one of {', '.join(names)}" if names else "give positions: the data have no names of columns",
        )
    return list(names).index(column)
