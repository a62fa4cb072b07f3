"""Which sampling an adversary does not know: only that protects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, NonPrivate, Sampled

__all__ = [
    "ADVERSARIES",
    "NEIGHBOURS",
    "Adversary",
    "Neighbours",
    "as_counted",
    "hidden_rate",
    "in_the_clear",
    "neighbours_counted",
    "require_setting",
]

Adversary = Literal["server", "clients", "model"]
Neighbours = Literal["add-remove", "replace-one"]
ADVERSARIES: tuple[str, ...] = get_args(Adversary)
NEIGHBOURS: tuple[str, ...] = get_args(Neighbours)

_SEES = {
    "everyone": frozenset(ADVERSARIES),
    "clients": frozenset({"server", "clients"}),
    "server": frozenset({"server"}),
}
_KNOWS = {"public": frozenset(ADVERSARIES), "server": frozenset({"server"}), "party": frozenset[str]()}


def hidden_rate(event: Event, adversary: str, neighbours: str) -> float:
    """The rate at which a unit takes part, as far as the adversary does not know who does: 1 if it knows the draw.

    A sample of fixed size counts for neighbours by replacing one only: if one is added, everybody's rate changes.
    """
    if not isinstance(event, Sampled) or adversary in _KNOWS[event.drawn_by]:
        return 1.0
    if (event.scheme, neighbours) == ("fixed", "add-remove"):
        return 1.0
    return event.sampling


def as_counted(event: Event, adversary: str, neighbours: str) -> Event:
    """The release between the neighbours that count against this adversary.

    A server sees which users and which islands take part, so what hides whether one does hides nothing from it: against a server, one is replaced by another. A release
    whose sensitivity is that of a unit which is there or not (``between="add-remove"``) then moves twice as far: away, and back. Examples are not seen one by one.
    """
    return event.twice_as_far() if _replaced(event, adversary, neighbours) else event  # type: ignore[attr-defined]


def _replaced(event: Event, adversary: str, neighbours: str) -> bool:
    seen = adversary == "server" and event.unit != "example"
    return getattr(event, "between", "") == "add-remove" and (seen or neighbours == "replace-one")


def neighbours_counted(events: Iterable[Event], adversary: str, neighbours: str) -> str:
    """The neighbours that an epsilon of these releases is about, where ``neighbours`` was asked for: by replacing one if a release counts so; see `as_counted`."""
    return "replace-one" if any(_replaced(event, adversary, neighbours) for event in events) else neighbours


def in_the_clear(event: Event, adversary: str) -> bool:
    """Whether the adversary sees a release that has no noise."""
    if isinstance(event, NonPrivate):
        return adversary in _SEES[event.seen_by]
    return isinstance(event, Gaussian) and event.noise_multiplier == 0


def require_setting(adversary: str, neighbours: str, where: str = "atoll.privacy") -> None:
    """Refuse an adversary or neighbours that do not exist.

    Raises:
        ConfigError: names the value and those that exist.
    """
    if adversary not in ADVERSARIES:
        raise ConfigError(f"adversary={adversary!r}", where=where, remedy=f"use one of {', '.join(ADVERSARIES)}")
    if neighbours not in NEIGHBOURS:
        raise ConfigError(f"neighbours={neighbours!r}", where=where, remedy=f"use one of {', '.join(NEIGHBOURS)}")
