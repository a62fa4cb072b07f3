"""What the verbs of a federation return."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..errors import ConfigError
from ..time.deadline import Deadline
from ..time.quota import Share
from .party import Parties
from .request import Mailboxes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..algebra.aggregate import Role
    from ..time.clock import Outcomes

__all__ = ["Accept", "Combined", "Exchanged", "Late", "Replies", "Taker", "Terms"]

Late = Literal["cancel", "arrive", "drop"]


class Taker(Protocol):
    """Which replies a round takes, and when it is full."""

    def __call__(self, arrived: NDArray[np.int64]) -> tuple[NDArray[np.int64], int | None]:
        """Choose among replies.

        Args:
            arrived: positions of those whose reply comes in time, in order of arrival.

        Returns:
            The places in ``arrived`` that are taken, and the place of the one at whose arrival the round closes, or ``None`` if it waits on. What
            comes after that one must not matter.
        """
        ...


Accept = int | Taker | Share
"""Replies after which a round closes, a rule, or a share of a quota that several requests fill together."""


@dataclass(frozen=True)
class Terms:
    """When a round of replies closes.

    Attributes:
        deadline: seconds after sending, or a `Deadline` that several requests share; ``None`` waits for everyone whose link is up.
        quorum: replies without which the round has failed.
        accept: replies after which the round closes early (over-selection), a rule that chooses, or a share of a ``Quota``; ``None`` takes all.
        late: what becomes of the others: ``"cancel"`` their work, let them ``"arrive"`` later, or do the work and ``"drop"`` the reply.
        down: bytes of the message that reach each party where they are not its own size, because a party is sent only what it does not know.
            Arguments, round parameters and letters come on top.
        up: bytes of a reply as a cost model shall know them beforehand, or what tells them; by default what the task says.
    """

    deadline: float | Deadline | None = None
    quorum: int = 1
    accept: Accept | None = None
    late: Late = "cancel"
    down: NDArray[np.int64] | None = field(default=None, compare=False)
    up: int | Callable[[], int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.deadline, Deadline | None) and not self.deadline > 0:
            raise ConfigError(f"deadline={self.deadline} seconds", remedy="use a positive number, or None")
        if self.quorum < 0:
            raise ConfigError(f"quorum={self.quorum}", remedy="use a whole number of at least 0")
        if isinstance(self.accept, int) and self.accept < max(1, self.quorum):
            raise ConfigError(
                f"accept={self.accept} closes the round before quorum={self.quorum} is reached",
                remedy="use accept >= quorum >= 1",
            )
        if self.late not in ("cancel", "arrive", "drop"):
            raise ConfigError(f"late={self.late!r}", remedy="use 'cancel', 'arrive' or 'drop'")

    def limit(self, sent: float) -> float:
        """The moment after which no reply to a request is in time; ``inf`` where there is none."""
        if isinstance(self.deadline, Deadline):
            return self.deadline.until
        return math.inf if self.deadline is None else sent + self.deadline

    @property
    def within(self) -> str:
        """The deadline in words, behind a blank; empty where there is none."""
        seconds = self.deadline.seconds if isinstance(self.deadline, Deadline) else self.deadline
        return "" if seconds is None else f" within {seconds:g} s"


@dataclass(frozen=True)
class Replies:
    """Single replies.

    Attributes:
        senders: who answered, in cohort order.
        values: their replies, in the same order.
        silent: who did not.
        errors: name -> what a party's task raised (when errors are dropped).
        notes: name -> progress reports.
        rejected: name -> why the reply of a wrapped task must not be in a sum.
    """

    senders: Parties
    values: list[Any]
    silent: Parties
    errors: dict[str, Exception] = field(default_factory=dict)
    notes: dict[str, list[Any]] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict, kw_only=True)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def by_name(self) -> dict[str, Any]:
        """Replies by the sender's name."""
        return dict(zip(self.senders.names, self.values, strict=True))


@dataclass(frozen=True)
class Exchanged(Replies):
    """Replies of one superstep, and the sealed envelopes that the relay holds.

    Attributes:
        mail: hand it to the next superstep; ``mail.only_from(names)`` fixes the senders.
    """

    mail: Mailboxes = field(default_factory=Mailboxes)


@dataclass(frozen=True)
class Combined:
    """The replies of a cohort as one; never the parts.

    Attributes:
        value: name -> combined value.
        n: replies in it.
        weight: name -> sum of weights.
        kinds: name -> kind of the aggregate: mean, sum, vote or parts. Parts come in cohort order.
        roles: name -> what the value is for: update, side, metric, report or buffer.
        asked: who was asked.
        outcomes: what became of each of them, one entry a party of ``asked``, where the world knows.
        senders: who is in it, in cohort order.
        silent: who did not answer in time.
        rejected: name -> why the reply was kept out.
        errors: name -> what a party's task raised (when errors are dropped).
        seconds: from sending to closing.
        bytes_up: bytes that arrived.
        bytes_down: bytes that were sent.
    """

    value: dict[str, Any]
    n: int
    weight: dict[str, float]
    senders: Parties
    silent: Parties
    rejected: dict[str, str] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    asked: Parties | None = None
    outcomes: Outcomes | None = None

    def __getitem__(self, name: str) -> Any:
        return self.value[name]

    def of(self, *roles: Role) -> dict[str, Any]:
        """The values of some roles, by name: ``combined.of("metric")``."""
        return {name: value for name, value in self.value.items() if self.roles.get(name, "update") in roles}
