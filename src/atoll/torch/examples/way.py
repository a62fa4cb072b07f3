"""How a model's clipped sums are computed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ExampleWay"]


@dataclass(frozen=True)
class ExampleWay:
    """How to compute clipped sums.

    Attributes:
        axes: the axis of the examples of each layer's use, for `by_norms`; ``None`` to make every gradient.
        loops: make them one after another, since the model cannot be vectorised over its rows.
        reason: why not by norms.
    """

    axes: tuple[int, ...] | None
    loops: bool = False
    reason: str = ""
