"""What a training releases of one client at most, before anyone is contacted: a site compares it with what is left of its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from atoll.core.algebra.rng import Rng
from atoll.core.capability import FIXED_COHORT
from atoll.core.event import Event, NonPrivate
from atoll.core.facets import facet

from ..algorithm import Phased

if TYPE_CHECKING:
    from ..context import Context
    from ..topology.base import Topology

__all__ = ["entrusted_to_server", "most_released"]


def most_released(context: Context, topology: Topology, rows: int) -> Sequence[Event] | None:
    """Return the events of a client that takes part in every round, in all phases; ``None`` if its number of replies has no bound.

    Args:
        context: the training's context, with its learner.
        topology: its topology.
        rows: the client's number of examples.
    """
    own = topology.released(context.rounds)
    if own:
        entrusted = topology.against != "server"
        return (NonPrivate(what="replies that reach the server"),) if entrusted else [*own, *_measured(context)]
    if not context.protected:
        return (NonPrivate(what="updates of a training"),)
    if not all(FIXED_COHORT in offers for offers in (topology.offers, context.pacing.offers)):
        return None  # one client may reply several times in what counts as a round
    algorithm, contacts = context.algorithm, _contacts(context)
    if context.aggregation.event is not None:
        return (NonPrivate(what="updates that reach the server"),)
    once = context.events(rows, algorithm.phases, context.learner.init(Rng(0)))
    made: list[Event] = [replace(event, count=event.count * contacts) for event in once if contacts]
    trusted = _trusted(context)
    if trusted:
        made.append(NonPrivate(what="updates that only the others' trust protects", seen_by=trusted))
    return [*made, *_measured(context)]


def _measured(context: Context) -> list[Event]:
    return [NonPrivate(what="measures at clients")] if context.evaluation.clients else []


def entrusted_to_server(context: Context, topology: Topology) -> Sequence[Event]:
    """Return the events of all rounds in which the server adds the noise; none if clients add it.

    Args:
        context: the training's context.
        topology: its topology.
    """
    if topology.against != "server":
        return topology.released(context.rounds)
    event, contacts = context.aggregation.event, _contacts(context)
    return () if event is None or not contacts else (replace(event, count=event.count * contacts),)


def _trusted(context: Context) -> str:
    """Who may see a client's update with less noise than its events say, because it is trusted not to look; empty if nobody is."""
    if context.claim is not None:
        return {"model": "clients", "clients": "server"}.get(context.claim.adversary, "")
    stages = [stage for phase in context.algorithm.phases for stage in context.uplink(phase).stages]
    return "server" if any(getattr(stage, "trusted", False) for stage in stages) and not context.reducer.secure else ""


def _contacts(context: Context) -> int:
    """Rounds in which clients are contacted, at most."""
    known = facet(context.algorithm, Phased).contacts(context.rounds)
    return context.rounds if known is None else known
