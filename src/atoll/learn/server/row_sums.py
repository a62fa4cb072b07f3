"""An evaluation as sums over rows, which add up over parties, and the resulting means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atoll.core.algebra.aggregate import Parts

__all__ = ["as_parts", "scores"]


def as_parts(sums: Mapping[str, float]) -> dict[str, Parts]:
    """Return a party's evaluation as a reply: its sums, as one part."""
    value = {name: np.float64(v) for name, v in sums.items()}
    return {"measure": Parts(value, examples=float(sums["n"]), role="metric")}


def scores(sums: Mapping[str, Any]) -> dict[str, float]:
    """Return means from sums: ``loss_sum / n`` becomes ``loss``, ``correct / n`` accuracy, ``squared_error / n`` mse, ..."""
    n = float(sums["n"])
    if n == 0:
        return {}
    names = {"loss_sum": "loss", "correct": "accuracy", "squared_error": "mse", "absolute_error": "mae"}
    found = {names.get(name, name): float(value) / n for name, value in sums.items() if name != "n"}
    if "mse" in found:
        found["rmse"] = float(np.sqrt(found["mse"]))
    return found
