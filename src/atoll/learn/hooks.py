"""What an algorithm needs and offers because of the functions that its class has of its own."""

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
"""Functions that say what a local step is. An algorithm with none of its own leaves the training to any model."""
_GUARDS = (RELEASED_ONLY, RELEASES, NO_BUFFERS, REPLIES_ONLY)


class Hooked(Protocol):
    """An algorithm, as far as it matters here."""

    @property
    def phases(self) -> Sequence[str]: ...
    @property
    def partial(self) -> bool: ...

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """The stages that the method itself puts on the way up in a phase."""
        ...


def changes(algorithm: Hooked, base: type, *hooks: str) -> bool:
    """Whether the class of an algorithm has another function than a base class, under one of these names."""
    return any(getattr(type(algorithm), hook) is not getattr(base, hook) for hook in hooks)


def needs_of_hooks(algorithm: Hooked, base: type) -> tuple[Need, ...]:
    """Rows that follow from the functions which an algorithm does not have from a base class."""
    made: list[Need] = []
    if changes(algorithm, base, *STEP_HOOKS):
        made.append(Need(LOCAL_STEPS, "changes the local step", "FedAvg"))
    if changes(algorithm, base, "uplink"):
        own = (stage for phase in algorithm.phases for stage in algorithm.uplink(phase))
        inner = next((type(stage).__name__ for stage in own if stage.on == "value"), "")
        instead = "an algorithm that sends what it has, such as FedAvg()"
        made += [Need(NUMBERS, f"has {inner} act on its replies", instead)] if inner else []
    if changes(algorithm, base, "events"):
        why, instead = (
            "promises privacy for its replies, and for nothing beside them",
            "the same algorithm without privacy",
        )
        made += [Need(capability, why, instead) for capability in _GUARDS]
    return tuple(made)


def offers_of_hooks(algorithm: Hooked, base: type) -> frozenset[Capability]:
    """Capabilities that follow from an algorithm's settings, and from the functions which it does not have from a base class."""
    told = {
        ONE_PHASE: len(algorithm.phases) == 1,
        PARTIAL_WORK: algorithm.partial,
        OWN_MODELS: changes(algorithm, base, "personal"),
        PROTECTION: changes(algorithm, base, "events"),
    }
    return frozenset(capability for capability, there in told.items() if there)
