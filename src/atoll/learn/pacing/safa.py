"""SAFA: semi-asynchronous federated averaging (Wu et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.capability import DISTINCT_CLIENTS, FIXED_COHORT, SINGLE_REPLIES, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.validation import is_real

from ..aggregation.keep_local import SingleReplies
from ..capabilities import LOCAL_STEPS, ONE_MODEL, ONE_PHASE, PARTIAL_WORK, PLAIN_MEAN
from ..checks import require_positive
from ..local.partial import own_epochs
from ..offered import offered_by
from .base import Pacing, refuse, weighs_examples
from .cached.lag import AdaptiveLag
from .staleness import Staleness

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.rounds.loop import Course

    from ..algorithm import Algorithm
    from ..context import Context

__all__ = ["SAFA"]


@dataclass(frozen=True, kw_only=True)
class SAFA(Pacing):
    """Clients with a moderately stale model go on with it; a round takes the first replies, and surplus replies count one round later.

    A round ``t`` with current version ``t-1``; client k trains from version ``v_k``, its lag is ``(t-1) - v_k``:

    1. Lag-tolerant distribution: up-to-date clients (``v_k = t-1``) and deprecated ones (lag above the tolerance) are sent the model. Others keep theirs,
       and what they had trained before they crashed.
       Where the selection rule invites some only, whoever works beyond the tolerance is called off all the same, and whoever has submitted since it was sent a
       model gets the new one when it is invited.
    2. Everyone invited trains; the round closes when the selection rule is content (``CFCFM``: ``count`` replies, first those who were not taken
       last time), or at the deadline.
    3. Discriminative aggregation over a cache with one model a client: the replies taken and, for deprecated clients, ``w(t-1)`` go in;
       ``w(t) = sum_k (n_k/n) c_k``, or the plain mean where the algorithm counts clients alike; then the other replies go in (the bypass), and count in the next round.

    A client's model is rebuilt as the base that it was sent plus its update, so a secure reducer, which hides updates, is refused. Uplink stages act
    on the updates. Everything else that replies carry (control variates, running statistics) is folded when it arrives.

    Wu, He, Lin, Mao, Maple, Jarvis 2021, "SAFA: a Semi-Asynchronous Protocol for Fast Federated Learning with Low Overhead"; Wu 2021, "Towards
    Efficient Horizontal Federated Learning", Eqs. 3.7-3.11, Algorithms 1 and 2. Where they differ: the tables follow ``lag > tau``, Eq. 3.7 prints
    ``lag >= tau`` (``literal``); the tables let every client begin afresh in every round and count all who end before the deadline, though
    the round closed earlier, which a server cannot know (``published``). By default a slow client works on, and its reply counts when it comes; one that
    will crash works on until it does, and goes on from what it had done only then.

    Attributes:
        lag_tolerance: ``tau``, rounds that a client's model may lag behind; or a rule that gives each client its own.
        lag_seconds: a model that lags is also too old once so many seconds have passed since it was made, for rounds of uneven length; ``None``, as
            published, counts rounds alone.
        deadline: ``T_lim``, seconds of a round; ``None`` waits until the round is full or nobody can answer any more.
        literal: deprecate at ``lag >= tau``, as Eq. 3.7 is printed.
        resume: a client that crashed goes on from the last whole epoch it had done; otherwise it begins again from its base.
        published: what the tables assume; virtual time only, and with a deadline.
        bounded: when a round is full, whoever still works is told so, keeps what it has and does what is left in the next rounds. So a round uploads little more
            than it takes, where the published method uploads every reply.
        staleness: weighs an entry of the cache by its age in rounds; ``None`` weighs them alike, as published.
    """

    lag_tolerance: int | AdaptiveLag = 5
    lag_seconds: float | None = None
    deadline: float | None = None
    literal: bool = False
    resume: bool = True
    published: bool = False
    bounded: bool = False
    staleness: Staleness | None = None

    def __post_init__(self) -> None:
        least = 1 if self.literal else 0
        tau = self.lag_tolerance
        if not isinstance(tau, AdaptiveLag) and not (is_real(tau) and tau >= least and float(tau).is_integer()):
            raise ConfigError(
                f"lag_tolerance={self.lag_tolerance!r}",
                where="SAFA",
                remedy="use a whole number of rounds, at least 0 (1 with literal=True); the source found 5 best",
            )
        if self.lag_seconds is not None:
            require_positive("SAFA", lag_seconds=self.lag_seconds)
        if self.deadline is not None and not self.deadline > 0:
            raise ConfigError(
                f"deadline={self.deadline} seconds", where="SAFA", remedy="use a positive number, or None"
            )
        if self.bounded and (self.published or not self.resume):
            raise ConfigError(
                f"bounded=True with published={self.published}, resume={self.resume}",
                where="SAFA",
                remedy="use resume=True and published=False: who is called off goes on from what it has",
            )
        if self.published and self.deadline is None:
            raise ConfigError(
                "published=True without a deadline",
                where="SAFA",
                remedy="give the deadline by which a client counts as finished",
            )

    def deprecated(
        self, lag: NDArray[np.int64], failed: NDArray[np.int64], tried: NDArray[np.int64], age: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Whose lag is beyond the tolerance.

        Args:
            lag: rounds, ``(clients,)``, as all of them.
            failed: how often each client did, for adaptive tolerances.
            tried: of how many times.
            age: seconds since each client's model was made.
        """
        tolerance: Any = self.lag_tolerance
        if isinstance(tolerance, AdaptiveLag):
            tolerance = tolerance.tolerance(failed, tried)
        late = np.asarray(lag >= tolerance if self.literal else lag > tolerance)
        return (late if self.lag_seconds is None else late | (age > self.lag_seconds)) & (lag > 0)

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with its update as a single reply."""
        return SingleReplies(base=base)

    @property
    def needs(self) -> tuple[Need, ...]:
        """One server that sees each reply, and replies that are rebuilt as base plus update."""
        partly = Need(PARTIAL_WORK, "has clients go on from the last epoch that they had done", "resume=False")
        return (
            *super().needs,
            Need(ONE_PHASE, "has clients of several versions, which would mix the phases", "Synchronous()"),
            Need(PLAIN_MEAN, "aggregates over its own cache", "Synchronous()"),
            Need(DISTINCT_CLIENTS, "keeps one model of each client", "Synchronous()"),
            Need(SINGLE_REPLIES, "rebuilds single models", "Synchronous() or FedBuff()"),
            *((partly,) if self.resume else ()),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """Rounds, of clients whose models are of several versions and some of which crash."""
        return super().offers - {FIXED_COHORT, ONE_MODEL}

    def check(self, context: Context) -> None:
        """Refuse updates that no weight of a client fits, and work that cannot go on where it was cut off."""
        weighs_examples(self, context.algorithm, context.learner.init(Rng(0)))
        whole = own_epochs(context.algorithm) == 1 or LOCAL_STEPS in offered_by(context.learner)
        if self.resume and not whole:
            why = "this model runs its own training, and its training cannot be cut at an epoch"
            refuse(self, why, "pacing", "use resume=False")

    def course(self, context: Context) -> Course:
        """Rounds over clients of several versions."""
        from .cached.course import LagTolerantRounds

        return LagTolerantRounds(self, context)
