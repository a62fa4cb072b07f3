"""The parts of a job, what each needs and offers, and the one place that compares them.

A need is met if every part in the capability's slots offers it; for a capability for which ``some`` part is enough, if one part offers it. A part
does not meet its own needs. An empty slot lacks nothing: a need of the model waits until there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.core.capability import Capability, Need
from atoll.core.errors import CompositionError

__all__ = ["Missing", "Placed", "compose", "lack_of", "require_composed"]


@dataclass(frozen=True)
class Placed:
    """A part in its slot, as the other parts see it.

    Attributes:
        slot: the job's slot, such as ``"selection"``.
        name: the part's name in errors.
        needs: the part's needs.
        lack: capability -> why the part does not offer it, as the end of a sentence; empty if it offers it.
        setting: the job's setting that holds the part; by default the slot.
    """

    slot: str
    name: str
    needs: Sequence[Need]
    lack: Callable[[Capability], str]
    setting: str = ""

    @classmethod
    def of(cls, slot: str, part: Any, name: str = "", setting: str = "") -> Placed:
        """Return a part that declares ``needs``, ``offers`` and, optionally, its own reasons in ``lacks``."""
        lack = lack_of(part.offers, getattr(part, "lacks", {}))
        return cls(slot, name or type(part).__name__, part.needs, lack, setting)


def lack_of(
    offers: Collection[Capability], lacks: Mapping[Capability, str] | None = None
) -> Callable[[Capability], str]:
    """Return ``Placed.lack`` of a part that offers these capabilities and has its own reasons for some that it does not offer."""
    words = lacks or {}
    return lambda capability: "" if capability in offers else words.get(capability, capability.lack)


@dataclass(frozen=True)
class Missing:
    """A need that is not met.

    Attributes:
        part: the part that has the need.
        need: the need.
        lacking: the part that does not offer the capability.
    """

    part: Placed
    need: Need
    lacking: Placed

    @property
    def error(self) -> CompositionError:
        """Return an error that names both parts, the capability, the place and the remedy."""
        wanted = self.need.capability
        remedies = [remedy for remedy in (self.need.instead, wanted.instead) if remedy]
        return CompositionError(
            f"{self.part.name} {self.need.why}, and {self.lacking.name} {self.lacking.lack(wanted)} (missing: {wanted.name})",
            where=f"Training.{self.part.setting or self.part.slot}",
            remedy=f"use {', or '.join(dict.fromkeys(remedies))}",
        )


def compose(parts: Iterable[Placed], later: Collection[str] = ()) -> Iterator[Missing]:
    """Yield every need of these parts that the others do not meet; nothing if the parts go together.

    Args:
        parts: any number of parts of one job; a slot may hold several.
        later: slots with parts not known yet, which may still meet a need for which ``some`` part is enough.
    """
    placed = list(parts)
    for part in placed:
        for need in part.needs:
            yield from _unmet(part, need, placed, later)


def require_composed(parts: Iterable[Placed], later: Collection[str] = ()) -> None:
    """Refuse parts that do not go together.

    Args:
        parts: the parts of one job.
        later: as in ``compose``.

    Raises:
        CompositionError: the first need that is not met.
    """
    for missing in compose(parts, later):
        raise missing.error


def _unmet(part: Placed, need: Need, placed: Sequence[Placed], later: Collection[str]) -> list[Missing]:
    """Return the need, once for every part that fails it; empty if it is met, or if no part that could meet it is there."""
    wanted = need.capability
    if wanted.some and set(wanted.of) & set(later):
        return []
    asked = [other for slot in wanted.of for other in placed if other.slot == slot and other is not part]
    lacking = [other for other in asked if other.lack(wanted)]
    if wanted.some and len(lacking) < len(asked):
        return []
    return [Missing(part, need, other) for other in (lacking[:1] if wanted.some else lacking)]
