"""Surveys: programs that compare the clients' data without training a model."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .divergence import Divergence, GradientDivergence
    from .matching import EncryptedMatching, Matched
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "divergence": ("Divergence", "GradientDivergence"),
            "matching": ("EncryptedMatching", "Matched"),
        },
    )

__all__ = ["Divergence", "EncryptedMatching", "GradientDivergence", "Matched"]
