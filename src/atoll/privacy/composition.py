"""Composition: what several releases cost together, by who is in which, and what a group of units costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, Laplace

from .events import DiscreteGaussian, DistributedGaussian, Perturbed, RandomisedResponse, Skellam
from .shuffling import Shuffled

__all__ = ["group_privacy", "grouped", "joint", "parallel", "sequential"]

Array = npt.NDArray[np.float64]
Steps = Sequence[tuple[npt.ArrayLike, Collection[str]]]


@checked_call
def sequential(*curves: npt.ArrayLike) -> Array:
    """Releases about the same units: Rényi curves add up. Mironov 2017, Proposition 1."""
    return np.sum([np.asarray(curve, np.float64) for curve in curves], axis=0) if curves else np.zeros(1)


@checked_call
def parallel(steps: Steps) -> Array:
    """Releases about units of which nobody is in two: the largest curve, order by order.

    Sound only if private data do not decide who is in which: form groups from public attributes.

    Args:
        steps: pairs of a Rényi curve and the names of the units that it is about.

    Raises:
        ConfigError: a unit is in two steps.
    """
    seen: set[str] = set()
    for _, units in steps:
        if twice := seen & set(units):
            raise ConfigError(
                f"{min(twice)!r} is in two releases, so they are not parallel",
                where="parallel",
                remedy="use joint(steps), which adds up what each unit is in",
            )
        seen |= set(units)
    return joint(steps)


@checked_call
def joint(steps: Steps) -> Array:
    """Releases about units that partly overlap: the largest of the units' sums, order by order. Mind what `parallel` says about groups.

    Args:
        steps: pairs of a Rényi curve and the names of the units that it is about.
    """
    sums: dict[str, Array] = {}
    for curve, units in steps:
        for unit in set(units):
            sums[unit] = sums.get(unit, 0.0) + np.asarray(curve, np.float64)
    return np.max([*sums.values()], axis=0) if sums else np.zeros(1)


@checked_call
def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """The guarantee of a group of ``k`` units: ``(k epsilon, delta (e^(k epsilon) - 1) / (e^epsilon - 1))``. Vadhan 2017, Lemma 2.2.

    Args:
        epsilon: of one unit, above 0.
        delta: of one unit.
        size: ``k``, at least 1.

    Raises:
        ConfigError: a value out of range.
    """
    if not (epsilon > 0 and 0 <= delta <= 1 and size >= 1):
        raise ConfigError(
            f"epsilon={epsilon}, delta={delta}, size={size}",
            where="group_privacy",
            remedy="use a positive epsilon, delta in [0, 1] and at least one unit",
        )
    if size * epsilon > 700:
        return size * epsilon, 1.0 if delta > 0 else 0.0
    return size * epsilon, min(1.0, delta * math.expm1(size * epsilon) / math.expm1(epsilon))


@checked_call
def grouped(event: Event, size: int) -> Event:
    """The release as a group of ``size`` units sees it: moved ``size`` times as far, and never with amplification by sampling.

    Raises:
        ConfigError: the group is empty, or nothing is known about this kind of event.
    """
    if size < 1:
        raise ConfigError(f"size={size}", where="grouped", remedy="use at least one unit")
    if isinstance(event, Gaussian):
        return replace(event, noise_multiplier=event.noise_multiplier / size, sampling=1.0)
    if isinstance(event, Laplace | RandomisedResponse):
        bound: Event = Perturbed(unit=event.unit, scope=event.scope, count=event.count, epsilon=size * event.epsilon)
        return replace(event, epsilon=size * event.epsilon, sampling=1.0) if isinstance(event, Laplace) else bound
    if isinstance(event, Shuffled):  # nothing is known of several clones: as without shuffling
        return Perturbed(unit=event.unit, scope=event.scope, count=event.count, epsilon=size * event.epsilon)
    if isinstance(event, Perturbed):
        return replace(event, epsilon=size * event.epsilon)
    if isinstance(event, Skellam | DiscreteGaussian | DistributedGaussian):
        return replace(event, sensitivity=size * event.sensitivity, sampling=1.0)
    raise ConfigError(
        f"the cost of an event of kind {event.kind!r} for a group is not known",
        where="grouped",
        remedy="use group_privacy on its epsilon and delta",
    )
