"""Requests and replies: what passes between a federation and its hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .aggregate import Totals
from .stage import Chain
from .task import Task
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Folded", "Mail", "Reply", "Request"]


class Mail:
    """Sealed envelopes held by the relay: ``to -> sender -> payload``. The program sees who wrote to whom, never what."""

    def __init__(self, envelopes: Mapping[str, Mapping[str, Tree]] | None = None) -> None:
        self._envelopes: dict[str, dict[str, Tree]] = {to: dict(box) for to, box in (envelopes or {}).items()}

    def put(self, sender: str, outbox: Mapping[str, Tree]) -> None:
        """Hold what one sender posted."""
        for to, payload in outbox.items():
            self._envelopes.setdefault(to, {})[sender] = payload

    def box(self, to: str) -> dict[str, Tree]:
        """What waits for one party, by sender in order of name."""
        return dict(sorted(self._envelopes.get(to, {}).items()))

    def only_from(self, senders: set[str]) -> Mail:
        """The envelopes of a fixed set of senders."""
        return Mail({to: {s: p for s, p in box.items() if s in senders} for to, box in self._envelopes.items()})

    @property
    def routes(self) -> list[tuple[str, str]]:
        """``(sender, recipient)`` pairs, sorted."""
        return sorted((sender, to) for to, box in self._envelopes.items() for sender in box)

    def sealed(self) -> dict[str, dict[str, Tree]]:
        """The raw form, for a checkpoint."""
        return {to: dict(box) for to, box in self._envelopes.items()}


@dataclass(frozen=True, eq=False)
class Request:
    """One task for some parties.

    Attributes:
        id: the path of the request; with a party it names one execution, and is never run twice.
        task: what to do.
        message: the same for every party.
        slot: the program's scope, for private state.
        key: the random key of the request; each party's is derived from it and its name.
        uplink: stages for the replies of a sum.
        public: round parameters of the stages.
        mail: envelopes to hand over.
    """

    id: str
    task: Task
    message: Tree
    slot: str
    key: int
    uplink: Chain = field(default_factory=Chain)
    public: tuple[Tree, ...] = ()
    mail: Mail | None = None


@dataclass
class Reply:
    """What one party answered.

    Attributes:
        party: position of the party.
        value: the reply.
        mail: envelopes it posted, recipient -> payload.
        notes: progress reported while running.
        nbytes: encoded size of the value and envelopes.
        error: what the task raised, else ``None``.
    """

    party: int
    value: Any = None
    mail: dict[str, Tree] = field(default_factory=dict)
    notes: list[Tree] = field(default_factory=list)
    nbytes: int = 0
    error: Exception | None = None


@dataclass
class Folded:
    """The replies of a cohort as one.

    Attributes:
        totals: named sums.
        senders: positions whose replies are in the sums, in cohort order.
        nbytes: encoded reply size of each sender.
        rejected: position -> why its reply was kept out.
        errors: position -> what its task raised.
    """

    totals: Totals
    senders: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    rejected: dict[int, str] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
