"""What an algorithm needs and offers because of the functions that its class overrides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from atoll.core.capability import (
    NO_BUFFERS,
    NUMBERS,
    PROTECTION,
    RELEASED_ONLY,
    REPLIES_ONLY,
    Capability,
    Need,
)
from atoll.core.requests.stage import Stage

from .capabilities import LOCAL_STEPS, ONE_PHASE, OWN_MODELS, PARTIAL_WORK, RELEASES

__all__ = ["STEP_HOOKS", "changes", "needs_of_hooks", "offers_of_hooks"]

STEP_HOOKS = ("step", "direction", "passes", "draw")
"""Functions that define a local step. An algorithm that overrides none of them works with any model."""
_GUARDS = (RELEASED_ONLY, RELEASES, NO_BUFFERS, REPLIES_ONLY)


class Hooked(Protocol):
    """The members of an algorithm that this module reads."""

    @property
    def phases(self) -> Sequence[str]: ...
    @property
    def partial(self) -> bool: ...

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Return the uplink stages of the method itself in a phase."""
        ...


def changes(algorithm: Hooked, base: type, *hooks: str) -> bool:
    """Return whether the class of an algorithm overrides one of these functions of a base class."""
    return any(getattr(type(algorithm), hook) is not getattr(base, hook) for hook in hooks)


def needs_of_hooks(algorithm: Hooked, base: type) -> tuple[Need, ...]:
    """Return the needs that follow from the functions that an algorithm overrides."""
    made: list[Need] = []
    if changes(algorithm, base, *STEP_HOOKS):
        made.append(Need(LOCAL_STEPS, "changes the local step", "FedAvg"))
    if changes(algorithm, base, "uplink"):
        own = (stage for phase in algorithm.phases for stage in algorithm.uplink(phase))
        inner = next((type(stage).__name__ for stage in own if stage.on == "value"), "")
        instead = "an algorithm without stages of its own, such as FedAvg()"
        made += [Need(NUMBERS, f"has {inner} act on its replies", instead)] if inner else []
    if changes(algorithm, base, "events"):
        why, instead = (
            "promises privacy for its replies and for nothing else",
            "the same algorithm without privacy",
        )
        made += [Need(capability, why, instead) for capability in _GUARDS]
    return tuple(made)


def offers_of_hooks(algorithm: Hooked, base: type) -> frozenset[Capability]:
    """Return the capabilities that follow from an algorithm's settings and from the functions that it overrides."""
    told = {
        ONE_PHASE: len(algorithm.phases) == 1,
        PARTIAL_WORK: algorithm.partial,
        OWN_MODELS: changes(algorithm, base, "personal"),
        PROTECTION: changes(algorithm, base, "events"),
    }
    return frozenset(capability for capability, there in told.items() if there)
