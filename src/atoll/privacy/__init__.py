"""Accountants: the cost of releases, and budgets that limit it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .accountant import LossTally, Perturbed, PrivacyLoss, spent
    from .budget import Budget
    from .gaussian import (
        cost,
        exact_delta,
        exact_epsilon,
        exact_sigma,
        moments_delta,
        moments_epsilon,
        moments_sigma,
    )
    from .objective import LOGISTIC, objective_alpha, objective_epsilon
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "accountant": ("PrivacyLoss", "Perturbed", "LossTally", "spent"),
            "budget": ("Budget",),
            "gaussian": (
                "cost",
                "exact_delta",
                "exact_epsilon",
                "exact_sigma",
                "moments_delta",
                "moments_epsilon",
                "moments_sigma",
            ),
            "objective": ("LOGISTIC", "objective_alpha", "objective_epsilon"),
        },
    )

__all__ = [
    "LOGISTIC",
    "Budget",
    "LossTally",
    "Perturbed",
    "PrivacyLoss",
    "cost",
    "exact_delta",
    "exact_epsilon",
    "exact_sigma",
    "moments_delta",
    "moments_epsilon",
    "moments_sigma",
    "objective_alpha",
    "objective_epsilon",
    "spent",
]
