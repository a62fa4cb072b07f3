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
    from ..selection.base import Selection

__all__ = ["SAFA"]


@dataclass(frozen=True, kw_only=True)
class SAFA(Pacing):
    """Clients with a moderately stale model keep working on it; a round takes the first replies, and surplus replies count one round later.

    In round ``t``, the current version is ``t-1``; client k trains from version ``v_k``, with lag ``(t-1) - v_k``:

    1. Lag-tolerant distribution: up-to-date clients (``v_k = t-1``) and deprecated ones (lag above the tolerance) receive the model. Others keep theirs,
       and what they had trained before they crashed.
       If the selection rule invites only some clients, the server still stops every client that works beyond the tolerance. A client that has submitted
       since it received a model gets the new one at its next invitation.
    2. Every invited client trains. The round closes when the selection rule has enough replies (``CFCFM``: ``count`` replies, first from clients not
       taken last time), or at the deadline.
    3. Discriminative aggregation over a cache with one model per client: the taken replies and, for deprecated clients, ``w(t-1)`` enter the cache;
       ``w(t) = sum_k (n_k/n) c_k``, or the plain mean if the algorithm counts clients equally; then the other replies enter (the bypass) and count next round.

    The server rebuilds a client's model as the base it received plus its update, so it refuses a secure reducer, which hides updates. Uplink stages act
    on the updates. Everything else in replies (control variates, running statistics) is folded on arrival.

    Wu, He, Lin, Mao, Maple, Jarvis 2021, "SAFA: a Semi-Asynchronous Protocol for Fast Federated Learning with Low Overhead"; Wu 2021, "Towards
    Efficient Horizontal Federated Learning", Eqs. 3.7-3.11, Algorithms 1 and 2. The sources differ: the tables follow ``lag > tau``, Eq. 3.7 prints
    ``lag >= tau`` (``literal``); the tables restart every client in every round and count all that finish before the deadline, although
    the round closed earlier, which a server cannot know (``published``). By default, a slow client works on, and its reply counts when it arrives. A client
    that will crash works on until then, and only then continues from what it had done.

    Attributes:
        lag_tolerance: ``tau``, rounds that a client's model may lag behind; or a rule that sets each client's own.
        lag_seconds: a lagging model is also too old this many seconds after it was made, for rounds of uneven length; ``None``, as
            published, counts only rounds.
        deadline: ``T_lim``, seconds of a round; ``None`` waits until the round is full or no client can answer any more.
        literal: deprecate at ``lag >= tau``, as Eq. 3.7 is printed.
        resume: a client that crashed continues from its last whole epoch; otherwise it restarts from its base.
        published: use the assumptions of the tables; virtual time only, and with a deadline.
        bounded: when a round is full, the server tells clients that still work. They keep what they have and finish in the next rounds. So a round uploads
            little more than it takes, while the published method uploads every reply.
        staleness: weights an entry of the cache by its age in rounds; ``None`` weights all entries equally, as published.
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
                remedy="use resume=True and published=False: a stopped client continues from what it has",
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
        """Return the clients with a lag beyond the tolerance.

        Args:
            lag: lag of each client in rounds, ``(clients,)`` like all arguments.
            failed: number of failures of each client, for adaptive tolerances.
            tried: number of tries of each client.
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
        """The base's needs, one server that sees each reply, and replies that rebuild as base plus update."""
        partly = Need(PARTIAL_WORK, "lets clients continue from their last finished epoch", "resume=False")
        return (
            *super().needs,
            Need(ONE_PHASE, "has clients with models of several versions, which would mix the phases", "Synchronous()"),
            Need(PLAIN_MEAN, "aggregates over its own cache", "Synchronous()"),
            Need(DISTINCT_CLIENTS, "keeps one model per client", "Synchronous()"),
            Need(SINGLE_REPLIES, "rebuilds single models", "Synchronous() or FedBuff()"),
            *((partly,) if self.resume else ()),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """Rounds of clients that have models of several versions and may crash."""
        return super().offers - {FIXED_COHORT, ONE_MODEL}

    def updates(self, selection: Selection, population: int) -> int:
        """Return all clients for a rule that takes replies as they come, since all train."""
        return population if selection.picks else super().updates(selection, population)

    def check(self, context: Context) -> None:
        """Refuse updates without a client weight, and work that cannot continue where it was cut off."""
        weighs_examples(self, context.algorithm, context.learner.init(Rng(0)))
        whole = own_epochs(context.algorithm) == 1 or LOCAL_STEPS in offered_by(context.learner)
        if self.resume and not whole:
            why = "this model runs its own training, and its training cannot be cut at an epoch"
            refuse(self, why, "pacing", "use resume=False")

    def course(self, context: Context) -> Course:
        """Return rounds over clients with models of several versions."""
        from .cached.course import LagTolerantRounds

        return LagTolerantRounds(self, context)
