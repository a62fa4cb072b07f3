"""HybridFL: edges over-select clients, and the cloud ends the round at a quota that all edges fill together.

Source: W. Wu, "Efficient Horizontal Federated Learning" (PhD thesis, 2021), chapter 4, algorithm 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from atoll.core.capability import Need
from atoll.core.errors import ConfigError

from ..capabilities import ONE_PHASE, PLAIN_MEAN, SAMPLE, SOLE_UPDATE
from .base import Pacing
from .regions.slack import LateCount, SlackEstimator

if TYPE_CHECKING:
    from atoll.rounds.loop import Course

    from ..context import Context

__all__ = ["HybridFL"]


@dataclass(frozen=True, kw_only=True)
class HybridFL(Pacing):
    """Over-selection that every edge tunes from counts only, a quota over all regions, and a cloud model after every round.

    With ``topology=Hierarchical(groups=...)`` and ``selection=Uniform(C)``, in every round

    1. the cloud sends ``w`` to all edges; edge r, with ``N_r`` clients, invites ``ceil(C_r N_r)`` of them at random, ``C_r = min(1, C / theta_r)``;
    2. edges tell the cloud how many models arrived, never from which clients; at ``C N`` models, or after ``deadline`` seconds, the cloud ends the round for all;
    3. edge r combines the arrived models, ``Psi_r`` with ``EDC_r = sum |D_k|`` examples, and its own last model for all other clients of its region:
       ``w_r <- (1 - EDC_r/|D_r|) w_r + (1/|D_r|) sum_{k in Psi_r} |D_k| w_k``; and updates ``theta_r`` from its counts;
    4. the cloud computes ``sum_r EDC_r w_r / sum_r EDC_r``; its difference from ``w`` is the mean update that the algorithm folds.

    Edges need two sums of their clients' replies, of models and of examples, so a secure reducer at the edge can hide single replies. Edges count
    clients but never identify them. Messages of counts, signals and completion are metered and take no time.

    A region without submissions keeps its model and has no weight. A round without any submission changes nothing and says so in ``failed``, however
    often that happens; ``on_failure="stop"`` ends the training. If all invited clients have answered, a round ends below its quota.

    Rows have, for every edge, ``edge-0/theta``, ``/fraction`` (``C_r`` as carried out), ``/quality`` (``q_r``), ``/selected``, ``/submitted``,
    ``/completed`` (by the deadline, including late ones; ``None`` if the edge does not learn of them) and ``/edc``; ``client_seconds``
    (invitation to signal) and ``cloud_seconds`` (between cloud and edges).

    Attributes:
        slack: estimates ``theta_r``. The published one, `PaperLiteral`, cannot learn; see `atoll.learn.pacing.regions.slack`. Real parties stop when the
            quota is full, so Atoll refuses estimators that count later completions there.
        theta: initial ``theta_r``; ``None`` is the estimator's own.
        deadline: ``T_lim``, seconds after an edge's invitations. ``None``: a round below its quota ends when links have noticed all losses.
        most: a region fills at most ``most * C N_r`` of the quota, so that fast regions do not keep the slow ones out; ``None`` for no limit.
        joint: edges send the cloud the two numbers behind their estimates, and the cloud sizes all selections together. It matters to
            ``ChanceConstrained``, which then needs fewer clients than if every region had to ensure its own part.
        hindsight: learn from late completions when the round closes, before they happen; possible only in a simulation. By default
            an edge learns from a round when its time limit has passed.
        on_failure: what to do with a round without submissions: ``"skip"`` or ``"stop"``.
    """

    layered: ClassVar[bool] = True
    slack: SlackEstimator = field(default_factory=LateCount)
    theta: float | None = None
    deadline: float | None = None
    most: float | None = None
    joint: bool = False
    hindsight: bool = False
    on_failure: str = "skip"

    def __post_init__(self) -> None:
        if not isinstance(self.slack, SlackEstimator):
            raise ConfigError(f"slack={self.slack!r}", where="HybridFL", remedy="use an estimator such as LateCount()")
        if self.deadline is not None and not self.deadline > 0:
            raise ConfigError(
                f"deadline={self.deadline} seconds", where="HybridFL", remedy="use a positive number, or None"
            )
        if self.most is not None and not self.most >= 1:
            raise ConfigError(
                f"most={self.most}: the regions together could not fill the quota",
                where="HybridFL",
                remedy="use at least 1, or None for no limit",
            )
        if self.on_failure not in ("skip", "stop"):
            raise ConfigError(f"on_failure={self.on_failure!r}", where="HybridFL", remedy="use 'skip' or 'stop'")
        self.estimator()  # refuses a wrong theta

    def estimator(self) -> SlackEstimator:
        """Return the estimator, with this pacing's initial theta."""
        return self.slack if self.theta is None else self.slack.begun(self.theta)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, edges that draw without knowing which clients are available, and replies with only a model update."""
        return (
            *super().needs,
            Need(SAMPLE, "has edges that may not know which clients are available", "Synchronous()"),
            Need(PLAIN_MEAN, "uses the region's last model for absent clients", "Synchronous()"),
            Need(ONE_PHASE, "asks each client once", "Synchronous()"),
            Need(SOLE_UPDATE, "treats regional models as means of clients' models by examples", "Synchronous()"),
        )

    def course(self, context: Context) -> Course:
        """Return rounds of cloud and edges."""
        from .regions.regional import RegionalRounds

        return RegionalRounds(self, context)
