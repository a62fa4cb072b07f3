"""What goes with what: the parts of a job, what each needs and offers, and the one place that compares them.

A need is met if every part in the slots of its capability offers it; of a capability that ``some`` part is enough for, if one does. A part does not meet its
own needs. A slot without a part lacks nothing: a need of the model waits until there is one.
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
    """A part in its slot, as the others see it.

    Attributes:
        slot: of the job, such as ``"selection"``.
        name: what errors call the part.
        needs: its rows.
        lack: capability -> why the part does not offer it, as the end of a sentence; empty if it does.
        setting: of the job in which the part was given; by default the slot.
    """

    slot: str
    name: str
    needs: Sequence[Need]
    lack: Callable[[Capability], str]
    setting: str = ""

    @classmethod
    def of(cls, slot: str, part: Any, name: str = "", setting: str = "") -> Placed:
        """A part that declares ``needs``, ``offers`` and, where it wants words of its own, ``lacks``."""
        lack = lack_of(part.offers, getattr(part, "lacks", {}))
        return cls(slot, name or type(part).__name__, part.needs, lack, setting)


def lack_of(
    offers: Collection[Capability], lacks: Mapping[Capability, str] | None = None
) -> Callable[[Capability], str]:
    """``Placed.lack`` of a part that offers these, and has words of its own for some that it does not."""
    words = lacks or {}
    return lambda capability: "" if capability in offers else words.get(capability, capability.lack)


@dataclass(frozen=True)
class Missing:
    """A need that is not met.

    Attributes:
        part: whose need it is.
        need: the row.
        lacking: a part that does not offer the capability.
    """

    part: Placed
    need: Need
    lacking: Placed

    @property
    def error(self) -> CompositionError:
        """Both parts, the capability, the place and the remedy."""
        wanted = self.need.capability
        remedies = [remedy for remedy in (self.need.instead, wanted.instead) if remedy]
        return CompositionError(
            f"{self.part.name} {self.need.why}, and {self.lacking.name} {self.lacking.lack(wanted)} (missing: {wanted.name})",
            where=f"Training.{self.part.setting or self.part.slot}",
            remedy=f"use {', or '.join(dict.fromkeys(remedies))}",
        )


def compose(parts: Iterable[Placed], later: Collection[str] = ()) -> Iterator[Missing]:
    """Every need of these parts that the others do not meet, one after another; none where they go together.

    Args:
        parts: of one job, in any number; a slot may hold several.
        later: slots whose parts are not known yet, one of which may still meet a need that ``some`` part is enough for.
    """
    placed = list(parts)
    for part in placed:
        for need in part.needs:
            yield from _unmet(part, need, placed, later)


def require_composed(parts: Iterable[Placed], later: Collection[str] = ()) -> None:
    """Refuse parts that do not go together.

    Args:
        parts: of one job.
        later: as in ``compose``.

    Raises:
        CompositionError: the first need that is not met.
    """
    for missing in compose(parts, later):
        raise missing.error


def _unmet(part: Placed, need: Need, placed: Sequence[Placed], later: Collection[str]) -> list[Missing]:
    """The need, once for every part that fails it; nothing where it is met, or where nobody who could meet it is there."""
    wanted = need.capability
    if wanted.some and set(wanted.of) & set(later):
        return []
    asked = [other for slot in wanted.of for other in placed if other.slot == slot and other is not part]
    lacking = [other for other in asked if other.lack(wanted)]
    if wanted.some and len(lacking) < len(asked):
        return []
    return [Missing(part, need, other) for other in (lacking[:1] if wanted.some else lacking)]
