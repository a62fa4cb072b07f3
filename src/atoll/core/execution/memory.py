"""The memory of one party's uplink stages, while a reply goes through them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..algebra.aggregate import Aggregate
from ..algebra.tree import Tree

if TYPE_CHECKING:
    from ..persistence.state_table import StateTable
    from ..requests.request import Request

__all__ = ["StageMemory"]


@dataclass
class StageMemory:
    """The memory of one party for one kind of request: maps an aggregate to memories by stage index.

    Attributes:
        table: where it is stored; ``None`` starts without memory.
        position: position of the party.
        before: the memory before the reply.
        now: the memory to keep once the reply is in.
    """

    table: StateTable | None = None
    position: int = 0
    before: dict[str, dict[str, Tree]] = field(default_factory=dict)
    now: dict[str, dict[str, Tree]] = field(default_factory=dict)

    def begin(self, request: Request, reply: Mapping[str, Aggregate]) -> None:
        """Look up the memory; an aggregate that is new starts with a fresh one."""
        if request.uplink.remembers:
            kept = None if self.table is None else self.table.get(self.position)
            self.before = {**request.uplink.fresh(reply), **(kept or {})}
            self.now = {name: memory for name, memory in (kept or {}).items() if name not in reply}

    def of(self, name: str) -> Mapping[str, Tree]:
        """The memory of an aggregate."""
        return self.before.get(name, {})

    def keep(self, name: str, memory: dict[str, Tree]) -> None:
        """Set the new memory of an aggregate."""
        if memory:
            self.now[name] = memory
