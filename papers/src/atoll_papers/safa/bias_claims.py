"""Fig. 3.5: the bias of SAFA, by the recurrence with the corrected sign, and by running the algorithm itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atoll.learn.pacing.cached.bias import bias, bias_limit
from atoll.reproduce import Claim

from .costs import stated
from .reference import draw_crashes, safa
from .tasks import LAG

__all__ = ["bias_claims", "contributed"]

_CRASH = 0.3
_FRACTIONS = {2: 0.55, 3: 0.1}
"""A fraction ``C`` in each case, for clients that crash with probability 0.3."""
_CLIENTS, _ROUNDS, _SEED = 100, 3000, 5


def contributed(case: int, crash: float = _CRASH, rounds: int = _ROUNDS) -> float:
    """Run SAFA with 100 clients of different speeds, and return how often the fastest contributed, over how often the slowest did.

    A client contributes to a round if it is picked, or if its update from the round before waits in the cache and it is not picked.

    Args:
        case: 2 or 3.
        crash: every client's probability to crash in a round.
        rounds: rounds to run.
    """
    draw = np.random.default_rng(_SEED)
    made = safa(draw_crashes(rounds, _CLIENTS, crash, draw), np.arange(1.0, _CLIENTS + 1), _FRACTIONS[case], LAG)
    used = made.picked[1:] | (made.undrafted[:-1] & ~made.picked[1:])
    fastest, slowest = used[:, 0].mean(), used[:, -1].mean()
    return float(fastest / slowest)


def bias_claims() -> list[Claim]:
    """Judge Fig. 3.5 with the corrected sign of the closed form; limits for equal probabilities of crash of 0.3."""
    return [_case(2, lambda ratio: ratio < 1), _case(3, lambda ratio: ratio > 1), _converges(_CRASH)]


def _case(case: int, holds: Callable[[float], bool]) -> Claim:
    limit, ran = bias_limit(case, _CRASH, _CRASH), contributed(case)
    note = (
        f"simulated: fastest over slowest client, {_CLIENTS} clients, C = {_FRACTIONS[case]:g}, cr = {_CRASH:g}, {_ROUNDS} rounds; "
        "by the recurrence in brackets; above 1 the fastest client contributes more often; FedAvg has 1"
    )
    return stated(f"bias {case}", f"{ran:.3f} ({limit:.3f})", holds(ran) and holds(limit), note)


def _converges(crash: float, last: int = 60) -> Claim:
    """Judge from which round on the bias of both cases stays within 3 % of its final value."""
    limits = {case: bias_limit(case, crash, crash) for case in (2, 3)}
    off = {r: max(abs(bias(case, crash, crash, r) / limits[case] - 1) for case in limits) for r in range(2, last + 1)}
    far = [r for r in off if off[r] > 0.03]
    since = max(far, default=1) + 1
    ours = f"within {off[10]:.3f} of its limit in round 10, within 0.03 from round {since} on"
    note = f"cases 2 and 3 by the recurrence, cr = {crash:g}, up to round {last}; holds if within 0.03 from round 10 on"
    return stated("bias converges", ours, since <= 10, note)
