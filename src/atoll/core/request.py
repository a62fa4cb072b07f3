"""Requests and replies: what passes between a federation and its hosts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import message as M
from . import tree as T
from .aggregate import Aggregate, Total, Totals
from .chain import Chain
from .states import States
from .task import Task
from .tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Folded", "Mail", "Ran", "Reply", "Request", "not_finite", "not_finite_total", "sketch", "wire_form"]

_ARRAYS = (np.ndarray, np.generic)


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

    def nbytes(self, to: str) -> int:
        """Encoded size of what waits for one party."""
        return sum(M.nbytes(payload) for payload in self._envelopes.get(to, {}).values())

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
        slot: where the parties keep their private state for this program.
        key: the random key of the request; each party's is derived from it and its name.
        uplink: stages for the replies of a sum.
        public: round parameters of the stages.
        mail: envelopes to hand over.
        turn: the number of the round in which it is made, for models of devices; see ``Plan``.
        apart: the replies of a sum are not added up, so that each can be used when it arrives; see ``Part.of``.
        least: usable replies without which the sum fails. The parties then stay as they were, because nobody takes what they sent. Only hosts
            look at it, so that it does not travel.
    """

    id: str
    task: Task
    message: Tree
    slot: str
    key: int
    uplink: Chain = field(default_factory=Chain)
    public: tuple[Tree, ...] = ()
    mail: Mail | None = None
    turn: int = 0
    apart: bool = False
    least: int = 0

    @property
    def memory(self) -> str:
        """Where the parties keep what the uplink's stages remember: a slot inside the program's that no scope can be named like."""
        inner = self.task.wraps or self.task
        return f"{self.slot}//{inner.name}/{self.uplink.place}"


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


@dataclass(frozen=True)
class Ran:
    """A task that ran: its reply, and what it left behind.

    Attributes:
        reply: the reply.
        state: the party's private state afterwards.
        changed: whether the state changed.
        sealed: it drew on secrets or spent privacy budget, so running it again would not give the same.
        time: clock time at which it ended, for a role of a session.
        said: bytes that it sent to its peers, for a role of a session.
        memory: what the uplink's stages remember, ``None`` when they went unused.
    """

    reply: Reply
    state: Tree = None
    changed: bool = False
    sealed: bool = False
    time: float = 0.0
    said: int = 0
    memory: Tree = None


@dataclass
class Folded:
    """The replies of a cohort as one.

    Attributes:
        totals: named sums.
        senders: positions whose replies are in the sums, in cohort order.
        nbytes: encoded reply size of each sender.
        rejected: position -> why its reply was kept out.
        errors: position -> what its task raised.
        states: the private states that they leave behind.
        memories: what the uplink's stages remember of them.
        kept: sealed replies, for the journal.
    """

    totals: Totals
    senders: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    rejected: dict[int, str] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    states: States = field(default_factory=States)
    memories: States = field(default_factory=States)
    kept: list[Ran] = field(default_factory=list)

    def keep(self, ran: Ran) -> None:
        """Remember a sealed reply."""
        if ran.sealed and ran.reply.error is None:
            self.kept.append(ran)


def wire_form(value: Any) -> Any:
    """A reply as a message tree: aggregates become plain dicts."""
    if isinstance(value, dict) and any(isinstance(v, Aggregate) for v in value.values()):
        return {
            k: {"kind": v.kind, "value": v.value, "weight": v.weight} if isinstance(v, Aggregate) else v
            for k, v in value.items()
        }
    return value


def not_finite(value: Tree, weight: Any) -> str:
    """The path of the first non-finite leaf, ``"."`` for a bare leaf or the weight, ``""`` when all is finite."""
    if not (math.isfinite(weight) if type(weight) is float else np.isfinite(np.asarray(weight, np.float64)).all()):
        return "."
    for path, leaf in T.items(value):
        if isinstance(leaf, _ARRAYS):
            if leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
                return path or "."
        elif isinstance(leaf, float):
            if not math.isfinite(leaf):
                return path or "."
        elif type(leaf).__module__ == "torch" and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            return path or "."
    return ""


def not_finite_total(total: Total) -> str:
    """The path of the first non-finite leaf of a total, as ``not_finite`` gives it."""
    if total.kind == "parts":
        return next((bad for part in total.value if (bad := not_finite(part.value, part.weight))), "")
    return not_finite(total.value, total.weight)


def sketch(message: Tree) -> str:
    """A message in short: paths, dtypes and shapes."""
    parts = (
        f"{path}:{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf)) or ''}"
        for path, leaf in T.items(message)
    )
    text = ", ".join(parts)
    return "{" + (text if len(text) < 300 else text[:297] + "...") + "}"
