"""Which sampling an adversary does not know: only that protects."""

from __future__ import annotations

from typing import Literal, get_args

from atoll.core.errors import ConfigError
from atoll.core.event import Event, Gaussian, NonPrivate, Sampled

__all__ = ["ADVERSARIES", "NEIGHBOURS", "Adversary", "Neighbours", "hidden_rate", "in_the_clear", "require_setting"]

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
