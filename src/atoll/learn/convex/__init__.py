"""Convex problems whose solution is released under privacy, with noise that the parties add inside a secure sum."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aggregated import AggregatedGradients, AggregatedOutput
    from .shared_noise import gradient_deviation, output_scale
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "aggregated": ("AggregatedGradients", "AggregatedOutput"),
            "shared_noise": ("gradient_deviation", "output_scale"),
        },
    )

__all__ = ["AggregatedGradients", "AggregatedOutput", "gradient_deviation", "output_scale"]
