"""Noise on whole numbers: laws, and exact draws from a party's secret."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .additive import GaussianLattice, LaplaceLattice, add_gaussian, add_laplace, clip_rows, snap, words_of
    from .laws import DiscreteGaussianLaw, DiscreteLaplaceLaw, Law, PoissonLaw, SkellamLaw
    from .sampler import DISTANCE, DiscreteSampler, Source, sampler_of
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "additive": (
                "GaussianLattice",
                "LaplaceLattice",
                "add_gaussian",
                "add_laplace",
                "clip_rows",
                "snap",
                "words_of",
            ),
            "laws": ("DiscreteGaussianLaw", "DiscreteLaplaceLaw", "Law", "PoissonLaw", "SkellamLaw"),
            "sampler": ("DISTANCE", "DiscreteSampler", "Source", "sampler_of"),
        },
    )

__all__ = [
    "DISTANCE",
    "DiscreteGaussianLaw",
    "DiscreteLaplaceLaw",
    "DiscreteSampler",
    "GaussianLattice",
    "LaplaceLattice",
    "Law",
    "PoissonLaw",
    "SkellamLaw",
    "Source",
    "add_gaussian",
    "add_laplace",
    "clip_rows",
    "sampler_of",
    "snap",
    "words_of",
]
