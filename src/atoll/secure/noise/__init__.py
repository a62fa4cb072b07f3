"""Noise underneath secure sums: clients round their updates to a grid and add noise of whole numbers, in words that add up."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .excess import ExcessNoise
    from .laws import DiscreteGaussianNoise, SkellamMixtureNoise, SkellamNoise
    from .rounding import rounded_bound
    from .stage import LatticeNoise
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "excess": ("ExcessNoise",),
            "laws": ("DiscreteGaussianNoise", "SkellamMixtureNoise", "SkellamNoise"),
            "rounding": ("rounded_bound",),
            "stage": ("LatticeNoise",),
        },
    )

__all__ = [
    "DiscreteGaussianNoise",
    "ExcessNoise",
    "LatticeNoise",
    "SkellamMixtureNoise",
    "SkellamNoise",
    "rounded_bound",
]
