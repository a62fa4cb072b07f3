"""What every mechanism refuses: samples that others can foresee, a second mechanism, a budget that counts something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from atoll.core.capability import PROTECTION
from atoll.core.errors import CompositionError
from atoll.core.facets import facet
from atoll.privacy import Budget

from ..algorithm import Compressing
from ..capabilities import SAMPLE
from ..selection import FixedSample, PoissonSample, Selection

if TYPE_CHECKING:
    from .parts import Claiming, TrainingParts

__all__ = ["require_budget", "require_one", "secret_sample"]


def secret_sample(mechanism: Claiming, training: TrainingParts, amplified: bool) -> Selection:
    """Return the training's selection, drawn from the server's secret if the sampling is to be counted.

    Raises:
        CompositionError: the sampling is to be counted, but whoever knows the seed knows the sample.
    """
    rule, name = training.selection, type(mechanism).__name__
    if amplified and (rule.drawn(1) or ("", ""))[1] == "fixed" and mechanism.neighbours == "add-remove":
        raise CompositionError(
            f"{name} counts a sample for {mechanism.neighbours} neighbours, and {type(rule).__name__} draws one of fixed size",
            where="Training.selection",
            remedy="use PoissonSample(...), or neighbours='replace-one': adding a client to a sample of fixed size changes everybody's chance",
        )
    if not amplified or rule.drawn(1) is not None or rule.distinct(10**9) == 10**9:
        return rule
    if SAMPLE in rule.offers:
        count = getattr(rule, "count", 1.0)
        if isinstance(count, float) and count == 0.0:
            count = 1
        return PoissonSample(count) if mechanism.neighbours == "add-remove" else FixedSample(count)
    raise CompositionError(
        f"{name} counts a sample that nobody knows, and {type(rule).__name__} invites clients that others can foresee",
        where="Training.selection",
        remedy="use selection=PoissonSample(...) or Uniform(...), or amplified=False: then every round counts in full",
    )


def require_one(mechanism: Claiming, training: TrainingParts) -> None:
    """Refuse a second mechanism for the same values."""
    own = [
        stage for phase in training.algorithm.phases for stage in facet(training.algorithm, Compressing).uplink(phase)
    ]
    parts: Sequence[Any] = (training.algorithm, *own, *training.uplink)
    for part in parts:
        if PROTECTION in part.offers:
            raise CompositionError(
                f"{type(part).__name__} protects the replies already, and {type(mechanism).__name__} would protect them again",
                where="Training.privacy",
                remedy="use one mechanism: noise that is added twice costs accuracy twice and is counted once",
            )


def require_budget(mechanism: Claiming, budget: Budget | None) -> None:
    """Refuse a budget that counts something other than the mechanism claims."""
    for name in ("adversary", "neighbours") if budget is not None else ():
        own, other = getattr(mechanism, name), getattr(budget, name)
        if own != other:
            raise CompositionError(
                f"the budget counts for {name} {other!r}, and {type(mechanism).__name__} protects for {own!r}",
                where="Training.budget",
                remedy=f"use Budget(..., {name}={own!r}), or leave the budget out: epsilon is one already",
            )
