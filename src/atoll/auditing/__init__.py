"""Auditing: trainings with canaries, which try to refute the epsilon that a run claims."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .canaries import Canaries, Planted
    from .cost import CostPoint, PrivacyCost, privacy_cost
    from .run import audit, claimed_epsilon
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "canaries": ("Canaries", "Planted"),
            "cost": ("CostPoint", "PrivacyCost", "privacy_cost"),
            "run": ("audit", "claimed_epsilon"),
        },
    )

__all__ = ["Canaries", "CostPoint", "Planted", "PrivacyCost", "audit", "claimed_epsilon", "privacy_cost"]
