"""What a round expects of devices and what became of it: the form of replies, and the outcome of each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Parts
from atoll.core.errors import ConfigError
from atoll.core.requests.cost import is_instant
from atoll.core.requests.party import among
from atoll.core.requests.request import ReplyForm

from ..local.release import buffer_replies
from ..local.reports import key_of
from ..wrapped import dry_reply

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.results import Combined

    from ..context import Context
    from .invitation import Inviter

__all__ = ["outcome_columns", "reply_form", "require_in_time"]


def reply_form(context: Context, state: Tree, phase: str, reports: Mapping[str, Any] | None = None) -> ReplyForm:
    """Return the form of a client's reply in a phase.

    Args:
        context: the training's context.
        state: a server's state, with ``"server"`` and ``"buffers"``; only the form of its model matters.
        phase: the phase.
        reports: the reports that were asked for: name -> options.
    """
    algorithm, params, buffers = context.local_algorithm, state["server"]["params"], state.get("buffers")
    one, three = (dry_reply(algorithm, params, phase, examples) for examples in (1.0, 3.0))
    later = dry_reply(algorithm, params, phase, 3.0, steps=2.0)
    optional: dict[str, Aggregate | None] = {
        key_of(name): _report(name, told) for name, told in (reports or {}).items()
    }
    if buffers:
        optional |= buffer_replies(buffers, buffers, 1.0, singly=context.singly)
    weights = {
        name: (float(one[name].weight), float(three[name].weight))
        for name in one
        if float(three[name].weight) == float(later[name].weight)  # those that depend on the steps have no bound
    }
    heaviest = (max((w for w, _ in weights.values()), default=1.0), max((w for _, w in weights.values()), default=3.0))
    # A client of an algorithm with several models gives weight to the one that it chooses.
    weights = {name: heaviest if pair == (0.0, 0.0) else pair for name, pair in weights.items()}
    examples = dict.fromkeys((*optional, "loss"), (1.0, 3.0))
    return ReplyForm(one, optional, context.learner_metrics, {**examples, **weights})


def _report(name: str, options: Any) -> Aggregate | None:
    """Return an example of a report whose form is known; ``None`` for others."""
    if name == "loss":
        return Parts(np.float64(0.0), role="report")
    if name == "sketch":
        return Parts(np.zeros(int(options["size"])), role="report")
    return None


# ---------------------------------------------------------------- outcomes of a cohort on its devices


def outcome_columns(fed: Federation, combined: Combined) -> dict[str, Any]:
    """Return what a request adds to its round's row; empty in a world without devices.

    ``crashed``: clients that never answer; ``late``: replies not awaited; ``synchronised``: copies of the model sent; ``wasted``: discarded work
    in whole local updates (a crash discards the share done, a late reply all of it). See also `atoll.rounds.loop.Losses`.
    """
    outcomes, asked = combined.outcomes, combined.asked
    if is_instant(fed.world.cost) or outcomes is None or asked is None:
        return {}
    heard = among(asked.positions, combined.senders.positions)
    crashed, late = ~outcomes.done, outcomes.done & ~heard
    return {
        "crashed": int(crashed.sum()),
        "late": int(late.sum()),
        "synchronised": len(asked),
        "wasted": float(outcomes.fraction[crashed].sum() + late.sum()),
    }


def require_in_time(inviter: Inviter) -> None:
    """Refuse a deadline that no client can meet, of the pacing or of a selection rule such as FedCS.

    Raises:
        ConfigError: names the fastest client and its time.
    """
    context = inviter.context
    limits = {"pacing": context.pacing.deadline, "selection": getattr(context.selection, "deadline", None)}
    deadlines = {part: limit for part, limit in limits.items() if limit is not None}
    if not deadlines:
        return
    everyone = inviter.fed.parties
    seconds = inviter.seconds(everyone)
    if seconds is None or len(seconds) == 0:
        return
    fastest = int(np.argmin(seconds))
    for part, deadline in deadlines.items():
        if seconds[fastest] > deadline:
            raise ConfigError(
                f"no client can answer within deadline={deadline:g} s; the fastest, {everyone[fastest].name}, takes {seconds[fastest]:.4g} s",
                where=f"Training.{part}={type(getattr(context, part)).__name__}",
                remedy=f"use a deadline of at least {np.ceil(seconds[fastest]):g} s, or less local work",
            )
