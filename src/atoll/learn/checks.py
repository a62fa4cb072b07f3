"""Checks of algorithm settings (positive, counts, shares, known words) and of models (finite)."""

from __future__ import annotations

import math

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import AtollError, ConfigError, nearest
from atoll.core.validation import is_real

__all__ = [
    "require_choice",
    "require_count",
    "require_finite",
    "require_positive",
    "require_share",
]


def require_positive(where: str, **values: float) -> None:
    """Refuse rates, penalties and bounds that are not positive and finite.

    Raises:
        ConfigError: names the first wrong value.
    """
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{name}={value}", where=where, remedy="use a positive, finite number")


def require_count(where: str, **values: int) -> None:
    """Refuse counts that are not whole numbers of at least 1.

    Raises:
        ConfigError: names the first wrong value.
    """
    for name, value in values.items():
        if not is_real(value) or value < 1 or not float(value).is_integer():
            raise ConfigError(f"{name}={value!r}", where=where, remedy="use a whole number of at least 1")


def require_share(where: str, **shares: float) -> None:
    """Refuse a memory factor outside [0, 1).

    Raises:
        ConfigError: a value is outside.
    """
    for name, value in shares.items():
        if not 0.0 <= value < 1.0:
            raise ConfigError(f"{name}={value}", where=where, remedy="use a number in [0, 1)")


def require_choice(where: str, name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse an unknown word.

    Raises:
        ConfigError: names the nearest known word.
    """
    if value not in known:
        hint = nearest(str(value), known)
        raise ConfigError(f"{name}={value!r} is not known.{hint}", where=where, remedy=f"use one of {', '.join(known)}")


def require_finite(
    params: Tree, number: int, *, whose: str = "the global model", rate: str = "the server's learning rate"
) -> None:
    """Refuse a model with NaN or infinity.

    Args:
        params: the model's parameters by name.
        number: the round.
        whose: the model's name in the error.
        rate: what the remedy says to lower.

    Raises:
        AtollError: names the first parameter that is not finite.
    """
    for name, leaf in params.items() if isinstance(params, dict) else []:
        # One sum is enough to tell, unless it overflows.
        if isinstance(leaf, np.ndarray) and not math.isfinite(float(leaf.sum())) and not np.isfinite(leaf).all():
            raise AtollError(
                f"parameter {name!r} of {whose} is not finite",
                where=f"round {number}",
                remedy=f"lower {rate}; the last checkpoint is intact",
            )
