"""Bias of SAFA: the chances of its fastest and slowest client to contribute to a round, and their ratio.

The model of W. Wu, "Towards Efficient Horizontal Federated Learning", PhD thesis, Warwick 2021, section 3.6 (Eqs. 3.14 to 3.31). A client contributes to
round r directly, if it is picked (``P_D``), or through the update that it finished in round r - 1 without being picked (``P_S``). With fraction C and share
of crashed clients R there are three cases:

* 1, ``C >= 1 - R``: every client that finishes is picked;
* 2, ``(1 - C)(1 - R) <= C < 1 - R``: the fastest is always picked, the slowest whenever it was not picked last round;
* 3, ``C < (1 - C)(1 - R)``: the fastest is picked whenever it was not picked last round, the slowest never.

"Whenever it was not picked last round" is the recurrence ``x_r = (1 - cr)(1 - x_{r-1})`` with ``x_0 = 0``, whose solution is

    x_r = ((cr - 1)^(r+1) + 1 - cr) / (2 - cr)  ->  (1 - cr) / (2 - cr).

The thesis prints the denominator as ``cr - 2`` (Eqs. 3.24, 3.25, 3.30), with the sign lost: its ``x_r`` is negative and its ``1 - x_r`` above 1. With the
right sign, its conclusions about cases 2 and 3 reverse: the fastest client is favoured in case 2, the slowest in case 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from atoll.core.errors import ConfigError

__all__ = ["Chances", "alternating", "bias", "bias_fedavg", "bias_limit", "case_of", "chances", "chances_by_formula"]


@dataclass(frozen=True)
class Chances:
    """A client's chances to contribute to a round, in two mutually exclusive ways.

    Attributes:
        direct: picked in this round, ``P_D``.
        stored: finished but not picked in the round before, and not picked now, ``P_S``.
    """

    direct: float
    stored: float

    @property
    def total(self) -> float:
        """``P = P_D + P_S``."""
        return self.direct + self.stored


class SpeedPair(NamedTuple):
    """The chances of the fastest and the slowest client."""

    fastest: Chances
    slowest: Chances


def _share(name: str, value: float, where: str) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name}={value}", where=where, remedy="use a number from 0 to 1")


def case_of(fraction: float, crashed: float) -> int:
    """Return which of the three cases holds; 2 and 3 meet at ``C = (1 - R) / (2 - R)``.

    Args:
        fraction: ``C``.
        crashed: share of clients that crash in a round, ``R``.
    """
    _share("fraction", fraction, "case_of")
    _share("crashed", crashed, "case_of")
    if fraction >= 1.0 - crashed:
        return 1
    return 2 if fraction >= (1.0 - fraction) * (1.0 - crashed) else 3


def alternating(crash: float, number: int, *, printed: bool = False) -> float:
    """Return ``x_r``: the chance that a client is picked in round r if it is picked whenever it finishes and was not picked last round.

    Args:
        crash: the client's probability to crash in a round, ``cr``.
        number: the round, ``r >= 0``.
        printed: use the denominator of Eq. 3.24 with its wrong sign, to show what follows from it.
    """
    _share("crash", crash, "alternating")
    if number < 0:
        raise ConfigError(f"number={number}", where="alternating", remedy="use a round of 0 or later")
    made = ((crash - 1.0) ** (number + 1) + 1.0 - crash) / (2.0 - crash)
    return -made if printed else made


def _store_chance(crash: float, before: float) -> float:
    """Return the chance of finishing unpicked in the round before (``1 - cr - x_{r-1}``) and crashing in this one."""
    return crash * (1.0 - before - crash)


def _pair(case: int, fastest: float, slowest: float, xs: tuple[float, float], before: tuple[float, float]) -> SpeedPair:
    """Return Eqs. 3.20 to 3.23, given ``x_r`` and ``x_{r-1}`` of both clients."""
    if case not in (1, 2, 3):
        raise ConfigError(f"case={case}", where="bias", remedy="use 1, 2 or 3, or case_of(fraction, crashed)")
    a = Chances(1.0 - fastest, 0.0) if case < 3 else Chances(xs[0], _store_chance(fastest, before[0]))
    if case == 1:
        return SpeedPair(a, Chances(1.0 - slowest, 0.0))
    b = Chances(xs[1], _store_chance(slowest, before[1])) if case == 2 else Chances(0.0, 1.0 - slowest)
    return SpeedPair(a, b)


def chances(case: int, fastest: float, slowest: float, number: int) -> SpeedPair:
    """Return both clients' chances in round r, by the recurrence.

    Args:
        case: 1, 2 or 3.
        fastest: probability that the fastest client crashes in a round, ``cr_A``.
        slowest: the same for the slowest client, ``cr_B``.
        number: the round, ``r >= 2``.

    Raises:
        ConfigError: the case, a probability or the round is out of range.
    """
    _check(fastest, slowest, number)
    x, before = (0.0, 0.0), (0.0, 0.0)
    for _ in range(number):
        before, x = x, ((1.0 - fastest) * (1.0 - x[0]), (1.0 - slowest) * (1.0 - x[1]))
    return _pair(case, fastest, slowest, x, before)


def chances_by_formula(case: int, fastest: float, slowest: float, number: int, *, printed: bool = False) -> SpeedPair:
    """Return the same as `chances`, by the closed form; ``printed`` uses the sign of Eqs. 3.24 to 3.30, which gives numbers outside [0, 1].

    Args:
        case: 1, 2 or 3.
        fastest: ``cr_A``.
        slowest: ``cr_B``.
        number: the round, ``r >= 2``.
        printed: use the thesis's formula: ``P_D = (1 - cr) sigma_{r-1}`` and ``P_S = cr (sigma_{r-1} - cr)`` with ``sigma`` above 1.
    """
    _check(fastest, slowest, number)
    before = tuple(alternating(cr, number - 1, printed=printed) for cr in (fastest, slowest))
    now = tuple((1.0 - cr) * (1.0 - x) for cr, x in zip((fastest, slowest), before, strict=True))
    return _pair(case, fastest, slowest, (now[0], now[1]), (before[0], before[1]))


def _check(fastest: float, slowest: float, number: int) -> None:
    _share("fastest", fastest, "bias")
    _share("slowest", slowest, "bias")
    if number < 2:
        raise ConfigError(f"number={number}", where="bias", remedy="the model covers rounds from 2 on")


def bias(case: int, fastest: float, slowest: float, number: int, *, printed: bool = False) -> float:
    """Return ``bias(r) = P_A / P_B`` (Eqs. 3.14, 3.31): how many times more likely the fastest client contributes than the slowest.

    Args:
        case: 1, 2 or 3.
        fastest: ``cr_A``.
        slowest: ``cr_B``, below 1.
        number: the round, ``r >= 2``.
        printed: use the thesis's sign error.
    """
    made = chances_by_formula(case, fastest, slowest, number, printed=True) if printed else chances(case, fastest, slowest, number)  # fmt: skip
    if not made.slowest.total > 0.0:
        raise ConfigError(f"slowest={slowest}: it never contributes", where="bias", remedy="use a number below 1")
    return made.fastest.total / made.slowest.total


def bias_limit(case: int, fastest: float, slowest: float) -> float:
    """Return the limit of `bias`, with an error that decays as ``(1 - cr)^r``: ``P -> 1/(2 - cr) - cr^2`` for the client that alternates, else ``1 - cr``."""
    alternates = [1.0 / (2.0 - cr) - cr**2 for cr in (fastest, slowest)]
    a = alternates[0] if case == 3 else 1.0 - fastest
    b = alternates[1] if case == 2 else 1.0 - slowest
    return a / b


def bias_fedavg(fastest: float, slowest: float) -> float:
    """Return ``(1 - cr_A) / (1 - cr_B)`` (Eq. 3.15)."""
    return (1.0 - fastest) / (1.0 - slowest)
