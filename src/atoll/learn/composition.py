"""What a training refuses of its parts together, with the reason and the remedy, before anyone is contacted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import CompositionError
from atoll.core.rng import Rng

from .release import is_private, require_private_reply
from .sketches import update_of
from .wrapped import dry_reply, innermost, overrides

if TYPE_CHECKING:
    from atoll.core.chain import Chain
    from atoll.core.stage import Stage

    from .learner import Learner
    from .training import Training

__all__ = ["check_memory", "check_pacing", "check_packed", "check_private", "check_replies", "check_secure"]


def check_packed(job: Training, given: Chain, own: Sequence[Stage]) -> None:
    """Refuse to compress what the algorithm compresses."""
    packed = next((stage for stage in given.value_stages if stage.packs), None)
    inner = next((stage for stage in own if stage.on == "value"), None)
    if packed is not None and inner is not None:
        raise CompositionError(
            f"{type(job.algorithm).__name__} has {type(inner).__name__} act on its replies, and {type(packed).__name__} sends a binary form before that",
            where="Training.uplink",
            remedy=f"leave {type(packed).__name__} out, or use an algorithm that sends what it has, such as FedAvg()",
        )


def check_memory(job: Training) -> None:
    """Refuse to weigh by odds that nobody tells, and stages that remember where their leftovers mean nothing."""
    if job.aggregation.weighs_odds and not job.selection.tells_odds:
        raise CompositionError(
            f"{type(job.aggregation).__name__} weighs by the probability of every draw, and {type(job.selection).__name__} does not tell it, or draws without replacement",
            where="Training.selection",
            remedy="use SizeProportional() or FedProf(replace=True), or another aggregation",
        )
    if innermost(job.algorithm).card.family == "statistics" and any(stage.remembers for stage in job.uplink):
        raise CompositionError(
            f"{type(job.algorithm).__name__} replaces its statistics in every round, and a stage that remembers adds last round's leftovers",
            where="Training.uplink",
            remedy="use a stage without memory, or none: statistics are exact",
        )
    for stage in (s for phase in job.algorithm.phases for s in job.up(phase).stages):
        if stage.remembers and job.selection.repeats:
            raise CompositionError(
                f"{type(job.selection).__name__} may draw a client twice, and {type(stage).__name__} remembers one reply of each",
                where="Training.selection",
                remedy="draw without replacement",
            )


def check_secure(job: Training, reducer: str) -> None:
    """Refuse what looks at single replies, where the reducer of this name reveals sums only."""
    for phase in job.algorithm.phases:
        job.up(phase).require_summable(reducer)
    job.evaluation.require_sums(reducer)
    if not job.aggregation.summable:
        raise CompositionError(
            f"{type(job.aggregation).__name__} sees single replies, and {reducer} reveals sums only",
            where="Training.aggregation",
            remedy="use Renormalised, Rescaled or KeepGlobal, or a plain reducer",
        )
    if job.pacing.single:
        raise CompositionError(
            f"{type(job.pacing).__name__} rebuilds single models, and {reducer} reveals sums only",
            where="Training.pacing",
            remedy="use Synchronous() or FedBuff(), or a plain reducer",
        )
    if job.selection.listens:
        raise CompositionError(
            f"{type(job.selection).__name__} looks at what single clients report, and {reducer} reveals sums only",
            where="Training.selection",
            remedy="use Uniform(), or a plain reducer",
        )
    if job.selection.repeats:
        raise CompositionError(
            f"{type(job.selection).__name__} may draw a client twice, and {reducer} takes one reply of each",
            where="Training.selection",
            remedy="draw without replacement",
        )


def check_pacing(job: Training, learner: Learner, data: Any) -> None:
    """Refuse a pace that the topology does not keep, and reports that nobody can make."""
    if not job.topology.keeps(job.pacing):
        layered = job.pacing.layered
        whose, other = ("edges under a cloud", "Hierarchical()") if layered else ("a server", "Star()")
        raise CompositionError(
            f"{type(job.topology).__name__} has rounds of its own, and {type(job.pacing).__name__} paces those of {whose}",
            where="Training.pacing",
            remedy=f"use Synchronous(), or topology={other}",
        )
    job.pacing.check(job, learner, data)
    if job.selection.inquiry is not None:
        job.selection.inquiry.check(job, learner)
    if job.selection.reports:
        _check_reports(job, learner)


def _check_reports(job: Training, learner: Learner) -> None:
    check = getattr(learner, "check_reports", None)
    if check is None:
        raise CompositionError(
            f"{type(job.selection).__name__} wants clients to report {', '.join(job.selection.reports)}, and this model cannot",
            where="Training.selection",
            remedy="use a model that reports (atoll.models, PyTorch), or Uniform()",
        )
    check(job.selection.reports)
    if "sketch" in job.selection.reports:
        update_of(dry_reply(job.algorithm, learner.init(Rng(0))), innermost(job.algorithm))


def check_replies(job: Training, learner: Learner) -> None:
    """Refuse an algorithm whose clients send something else than the server folds: one that is a pass of others, or half written."""
    inside = innermost(job.algorithm)
    if not overrides(inside, "finish") or overrides(inside, "fold"):
        return
    reply = dry_reply(inside, learner.init(Rng(0)))
    if "update" not in reply:
        raise CompositionError(
            f"clients of {type(inside).__name__} reply with {', '.join(reply) or 'nothing'}, and its server folds an update",
            where="Training.algorithm",
            remedy="use a whole algorithm; one of your own whose `finish` gives no 'update' needs a `fold`",
        )


def check_private(job: Training, learner: Learner, data: Any) -> None:
    """Refuse what would leak beside a mechanism, and clients too small for its promise."""
    if not is_private(job.algorithm):
        if job.budget is not None:
            raise CompositionError(
                f"a privacy budget, and {type(job.algorithm).__name__} protects nothing",
                where="Training.budget",
                remedy="use for example OutputPerturbation around it, or no budget",
            )
        return
    if not job.topology.private:
        raise CompositionError(
            f"{type(job.topology).__name__} does not say that a privacy mechanism is sound on it, and clients may send more there than {type(job.algorithm).__name__} releases",
            where="Training.topology",
            remedy="use Star(), or set `private = True` on a topology whose messages all follow from released replies",
        )
    require_private_reply(job.algorithm, learner)
    if job.selection.listens:
        told = ", ".join(job.selection.reports) or "profiles, in part encrypted"
        raise CompositionError(
            f"{type(job.selection).__name__} wants reports ({told}), which would leave clients without noise",
            where="Training.selection",
            remedy="use Uniform(), or train the same algorithm without privacy",
        )
    if job.evaluation.clients:
        raise CompositionError(
            "measures of clients would leave them without noise",
            where="Training.evaluation",
            remedy="evaluate at the server, or measure the same algorithm without privacy",
        )
    for n in np.unique(getattr(data, "sizes", [])):
        job.algorithm.events(int(n))
