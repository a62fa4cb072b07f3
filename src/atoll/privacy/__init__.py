"""Accountants: the cost of releases, and budgets that limit it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .accountant import METHODS, LossTally, PrivacyLoss, spent
    from .accountants import ACCOUNTANTS, epsilon_of
    from .budget import Budget
    from .calculator import MECHANISMS, NoisePlan, noise_for, smallest_noise
    from .canaries import Audit, audit_p_value, guessed, lower_bound
    from .composition import group_privacy, grouped, joint, parallel, sequential
    from .events import DiscreteGaussian, DistributedGaussian, Perturbed, RandomisedResponse, Skellam, SkellamMixture
    from .gaussian import (
        cost,
        exact_delta,
        exact_epsilon,
        exact_sigma,
        moments_delta,
        moments_epsilon,
        moments_sigma,
    )
    from .lattice import skellam_divergence
    from .loss_distribution import LossDistribution, compose
    from .objective import LOGISTIC, objective_alpha, objective_epsilon
    from .renyi import (
        ORDERS,
        distributed_bound,
        mixture_bound,
        renyi_curve,
        renyi_delta,
        renyi_epsilon,
        skellam_bound,
    )
    from .shuffling import Shuffled, shuffled_epsilon
    from .spending.account import LedgerAccount
    from .spending.allowance import LedgerGuard
    from .spending.demand import UNITS, Demand
    from .spending.statements import Epsilons, StatementEntry, statement
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "spending.account": ("LedgerAccount",),
            "accountant": ("METHODS", "LossTally", "PrivacyLoss", "spent"),
            "accountants": ("ACCOUNTANTS", "epsilon_of"),
            "spending.allowance": ("LedgerGuard",),
            "budget": ("Budget",),
            "canaries": ("Audit", "audit_p_value", "guessed", "lower_bound"),
            "calculator": ("MECHANISMS", "NoisePlan", "noise_for", "smallest_noise"),
            "spending.demand": ("UNITS", "Demand"),
            "events": (
                "DiscreteGaussian",
                "DistributedGaussian",
                "Perturbed",
                "RandomisedResponse",
                "Skellam",
                "SkellamMixture",
            ),
            "gaussian": (
                "cost",
                "exact_delta",
                "exact_epsilon",
                "exact_sigma",
                "moments_delta",
                "moments_epsilon",
                "moments_sigma",
            ),
            "composition": ("group_privacy", "grouped", "joint", "parallel", "sequential"),
            "lattice": ("skellam_divergence",),
            "loss_distribution": ("LossDistribution", "compose"),
            "objective": ("LOGISTIC", "objective_alpha", "objective_epsilon"),
            "shuffling": ("Shuffled", "shuffled_epsilon"),
            "spending.statements": ("StatementEntry", "Epsilons", "statement"),
            "renyi": (
                "ORDERS",
                "distributed_bound",
                "mixture_bound",
                "renyi_curve",
                "renyi_delta",
                "renyi_epsilon",
                "skellam_bound",
            ),
        },
    )

__all__ = [
    "ACCOUNTANTS",
    "LOGISTIC",
    "MECHANISMS",
    "METHODS",
    "ORDERS",
    "UNITS",
    "Audit",
    "Budget",
    "Demand",
    "DiscreteGaussian",
    "DistributedGaussian",
    "Epsilons",
    "LedgerAccount",
    "LedgerGuard",
    "LossDistribution",
    "LossTally",
    "NoisePlan",
    "Perturbed",
    "PrivacyLoss",
    "RandomisedResponse",
    "Shuffled",
    "Skellam",
    "SkellamMixture",
    "StatementEntry",
    "audit_p_value",
    "compose",
    "cost",
    "distributed_bound",
    "epsilon_of",
    "exact_delta",
    "exact_epsilon",
    "exact_sigma",
    "group_privacy",
    "grouped",
    "guessed",
    "joint",
    "lower_bound",
    "mixture_bound",
    "moments_delta",
    "moments_epsilon",
    "moments_sigma",
    "noise_for",
    "objective_alpha",
    "objective_epsilon",
    "parallel",
    "renyi_curve",
    "renyi_delta",
    "renyi_epsilon",
    "sequential",
    "shuffled_epsilon",
    "skellam_bound",
    "skellam_divergence",
    "smallest_noise",
    "spent",
    "statement",
]
