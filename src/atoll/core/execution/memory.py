"""What the uplink's stages of one party remember, while a reply is on its way through them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..algebra.aggregate import Aggregate
from ..algebra.tree import Tree

if TYPE_CHECKING:
    from ..persistence.state_table import StateTable
    from ..requests.request import Request

__all__ = ["Memory"]


@dataclass
class Memory:
    """The memory of one party for one kind of request: aggregate -> index of the stage -> what it remembers.

    Attributes:
        table: where it is kept; ``None`` remembers nothing from before.
        position: whose.
        before: what was remembered.
        now: what is to be remembered, once the reply is in.
    """

    table: StateTable | None = None
    position: int = 0
    before: dict[str, dict[str, Tree]] = field(default_factory=dict)
    now: dict[str, dict[str, Tree]] = field(default_factory=dict)

    def begin(self, request: Request, reply: Mapping[str, Aggregate]) -> None:
        """Look up what was remembered; an aggregate that comes for the first time begins anew."""
        if request.uplink.remembers:
            kept = None if self.table is None else self.table.get(self.position)
            self.before = {**request.uplink.fresh(reply), **(kept or {})}
            self.now = {name: memory for name, memory in (kept or {}).items() if name not in reply}

    def of(self, name: str) -> Mapping[str, Tree]:
        """What was remembered of an aggregate."""
        return self.before.get(name, {})

    def keep(self, name: str, memory: dict[str, Tree]) -> None:
        """Remember this of it."""
        if memory:
            self.now[name] = memory
