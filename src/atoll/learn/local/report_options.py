"""The reports, their options, and their rows; `atoll.learn.local.reports` describes their content."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np

from atoll.core.algebra.rng import shuffles
from atoll.core.errors import ConfigError, DataError

__all__ = ["CAN", "OPTIONS", "TRAINED", "check_options", "rows_for"]

OPTIONS: Mapping[str, tuple[str, ...]] = {"loss": ("rows",), "profile": ("layer",), "sketch": ("size",)}
"""All reports, with the names of their options."""
CAN = {
    "loss": "a model with a loss",
    "profile": "a PyTorch module",
    "sketch": "atoll.models.linear or a PyTorch module",
}
"""Models that can make each report."""
TRAINED = ("loss", "sketch")
"""Reports that come from training and take no pass over the data."""


def check_options(name: str, options: Any) -> None:
    """Refuse options that a report does not have, and counts below 1.

    Raises:
        ConfigError: names the first wrong option.
    """
    if not isinstance(options, Mapping | None) or not set(options or {}) <= set(OPTIONS[name]):
        known = ", ".join(OPTIONS[name])
        raise ConfigError(f"options {options!r} of report {name!r}", where="reports", remedy=f"options are: {known}")
    given = {"size": None, **(options or {})} if name == "sketch" else options or {}
    for option, value in given.items():
        if option != "layer" and (not isinstance(value, Integral) or value < 1):
            raise ConfigError(
                f"{option}={value!r} of report {name!r}", where="reports", remedy="use a whole number of at least 1"
            )


def rows_for(options: Mapping[str, Any], data: Any, key: int) -> Any:
    """Return a client's rows for a survey report: all, or as many as its options say, drawn from the client's key.

    Raises:
        DataError: the report needs some rows of data that cannot be split.
    """
    rows, n = options.get("rows"), len(data)
    if rows is None or rows >= n:
        return data
    whole = data.dataset() if hasattr(data, "dataset") else data
    if not hasattr(whole, "take"):
        raise DataError(
            f"cannot draw rows from a {type(data).__name__}",
            where="a survey's data",
            remedy="ask for all rows, or use Dataset",
        )
    return whole.take(shuffles(np.array([key], dtype=np.uint64), 1, n)[0, 0, :rows])
