"""What trainings an asynchronous pacing refuses, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from atoll.core import tree as T
from atoll.core.aggregate import Aggregate, Mean
from atoll.core.rng import Rng

from ..algorithm import RoundInfo
from ..wrapped import dry_reply, innermost
from .base import refuse

if TYPE_CHECKING:
    from atoll.core.tree import Tree

    from ..algorithm import Algorithm
    from ..learner import Learner
    from ..training import Training
    from .base import Pacing

__all__ = ["require_at_work", "require_delta", "require_flexible"]


def require_flexible(pacing: Pacing, job: Training) -> None:
    """Refuse what cannot be done when clients work on models of several versions.

    Raises:
        CompositionError: with the reason and the remedy.
    """
    name, rule = type(job.algorithm).__name__, job.selection
    if len(job.algorithm.phases) != 1:
        phases = ", ".join(job.algorithm.phases)
        why = f"{name} has phases {phases}, and clients at work would be in different ones"
        refuse(pacing, why, "algorithm", "use an algorithm of one phase, or Synchronous()")
    if job.algorithm.card.everyone:
        why = f"{name} needs every client in every round, and here replies come one after another"
        refuse(pacing, why, "algorithm", "use for example Scaffold(), or Synchronous()")
    if not job.aggregation.summable:
        why = f"{type(job.aggregation).__name__} keeps single models of one round's base"
        refuse(pacing, why, "aggregation", "use Renormalised(), Rescaled() or KeepGlobal()")
    if rule.repeats:
        why = f"{type(rule).__name__} may draw a client twice, and a client works once at a time"
        refuse(pacing, why, "selection", "draw without replacement")
    if rule.listens or rule.picks:
        what = "compares clients' reports about one model" if rule.listens else "chooses among the replies of a round"
        why = f"{type(rule).__name__} {what}, and clients work on several"
        refuse(pacing, why, "selection", "use Uniform() or another rule that invites, or Synchronous()")
    if job.down() is not None:
        why = "a compressed way down is told against the one model that everybody holds, and clients hold several"
        refuse(pacing, why, "downlink", "leave it out, or use Synchronous()")
    if job.budget is not None:
        why = "whom a round will ask is not known before it begins, and so not whose budget it would exceed"
        refuse(pacing, why, "budget", "leave it out: what every client spends is in the ledger")


def require_at_work(pacing: Pacing, setting: str, wanted: int, most: int) -> None:
    """Refuse a setting that wants more clients than can be at work.

    Args:
        pacing: whose it is.
        setting: its name and value.
        wanted: clients.
        most: that are at work.

    Raises:
        CompositionError: it does.
    """
    if wanted > most:
        why = f"{setting}, and {most} clients are at work"
        refuse(pacing, why, "pacing", f"use at most {most}, or select more clients")


def require_delta(pacing: Pacing, job: Training, learner: Learner, *, drops: bool) -> None:
    """Refuse algorithms whose replies are not the update of one model that may be weighed by its staleness.

    Args:
        pacing: which one refuses.
        job: the training.
        learner: its learner.
        drops: replies may be dropped although their work was done.

    Raises:
        CompositionError: with the reason and the remedy.
    """
    algorithm, name = job.algorithm, type(job.algorithm).__name__
    params = learner.init(Rng(0))
    reply = dry_reply(algorithm, params, algorithm.phases[0])
    remedy = "use an algorithm such as FedAvg, FedProx or Scaffold, or Synchronous()"
    if not isinstance(reply.get("update"), Mean):
        refuse(pacing, f"{name} does not reply with the mean update of a model", "algorithm", remedy)
    more = [key for key, a in reply.items() if key != "update" and not a.metric and a.kind != "sum"]
    if more:
        why = f"{name} also replies with {', '.join(more)}, which a mixture of stale models says nothing about"
        refuse(pacing, why, "algorithm", remedy)
    stateful = algorithm.client_init(params) is not None
    if stateful and drops:
        why = f"clients of {name} keep state, and what they kept of a dropped reply the server would never know"
        refuse(pacing, why, "pacing", "use max_staleness=None")
    if stateful and _entangled(innermost(algorithm), params, reply):
        why = (
            f"clients of {name} and its server keep the same sums of updates, and a weight would be in one of them only"
        )
        refuse(pacing, why, "algorithm", remedy)


def _entangled(algorithm: Algorithm, params: Tree, reply: Mapping[str, Aggregate]) -> bool:
    """Whether the update moves something of the server's beside the model that is tied to what clients keep (``extrapolates``)."""
    server, info = algorithm.init(params), RoundInfo(1, 1, 1, 1, 1.0)
    known = {key: a.total().result() for key, a in reply.items()}
    ones = T.map(lambda leaf: leaf * 0 + 1, params)

    def folded(update: Tree) -> Tree:
        return algorithm.fold(server, {**known, "update": update}, info, algorithm.phases[0])

    still, moved = folded(T.zeros_like(params)), folded(ones)
    pairs = [(still[key], moved[key]) for key in algorithm.extrapolates if key != "params"]
    return any(
        abs(a - b).max() > 0 for one, other in pairs for a, b in zip(T.leaves(one), T.leaves(other), strict=True)
    )
