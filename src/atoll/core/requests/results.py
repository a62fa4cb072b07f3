"""The results of a federation's verbs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..calls import is_real
from ..errors import ConfigError, nearest
from ..time.deadline import Deadline, Share
from .party import Parties
from .request import Mailboxes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..algebra.aggregate import Role
    from .cost import Outcomes

__all__ = ["Accept", "Combined", "Exchanged", "Late", "Replies", "Taker", "Terms"]

Late = Literal["cancel", "arrive", "drop"]


class Taker(Protocol):
    """A rule that decides which replies a round accepts, and when it is full."""

    def __call__(self, arrived: NDArray[np.int64]) -> tuple[NDArray[np.int64], int | None]:
        """Choose among replies.

        Args:
            arrived: positions of the parties whose replies arrive in time, in order of arrival.

        Returns:
            The places in ``arrived`` that are accepted, and the place of the reply that closes the round, or ``None`` if the round keeps waiting.
            Replies after that one must not matter.
        """
        ...


Accept = int | Taker | Share
"""Number of replies after which a round closes, a rule, or a share of a quota that several requests fill together."""


@dataclass(frozen=True)
class Terms:
    """The conditions under which a round of replies closes.

    Attributes:
        deadline: seconds after sending, or a `Deadline` that several requests share; ``None`` waits for every party with a working link.
        quorum: minimum number of replies; with fewer, the round fails.
        accept: number of replies after which the round closes early (over-selection), a rule that chooses, or a share of a ``Quota``; ``None`` accepts all.
        late: what to do with the others: ``"cancel"`` their work, let them ``"arrive"`` later, or do the work and ``"drop"`` the reply.
        down: bytes of the message to each party, if they differ from its size because a party is sent only what it does not know.
            Arguments, round parameters and letters are added.
        up: bytes of a reply for the cost model, or a function that gives them; by default the task's declaration.
    """

    deadline: float | Deadline | None = None
    quorum: int = 1
    accept: Accept | None = None
    late: Late = "cancel"
    down: NDArray[np.int64] | None = field(default=None, compare=False)
    up: int | Callable[[], int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.deadline, Deadline | None) and not (is_real(self.deadline) and self.deadline > 0):
            raise ConfigError(
                f"deadline={self.deadline!r} seconds", where="a request", remedy="use a positive number, or None"
            )
        if self.quorum < 0:
            raise ConfigError(f"quorum={self.quorum}", remedy="use a whole number of at least 0")
        if isinstance(self.accept, int) and self.accept < max(1, self.quorum):
            raise ConfigError(
                f"accept={self.accept} closes the round before quorum={self.quorum} is reached",
                remedy="use accept >= quorum >= 1",
            )
        if self.late not in ("cancel", "arrive", "drop"):
            raise ConfigError(f"late={self.late!r}", remedy="use 'cancel', 'arrive' or 'drop'")

    def with_down(self, down: NDArray[np.int64]) -> Terms:
        """The same terms with other bytes of the message."""
        return replace(self, down=down)

    def limit(self, sent: float) -> float:
        """The time after which no reply to a request is in time; ``inf`` without a deadline."""
        if isinstance(self.deadline, Deadline):
            return self.deadline.until
        return math.inf if self.deadline is None else sent + self.deadline

    @property
    def within(self) -> str:
        """The deadline in words, after a space; empty without a deadline."""
        seconds = self.deadline.seconds if isinstance(self.deadline, Deadline) else self.deadline
        return "" if seconds is None else f" within {seconds:g} s"


@dataclass(frozen=True)
class Replies:
    """Single replies.

    Attributes:
        senders: the parties that replied, in cohort order.
        values: their replies, in the same order.
        silent: the parties that did not reply.
        errors: errors of tasks by party name (if errors are dropped).
        notes: progress reports by party name.
        rejected: maps a party's name to why the reply of a wrapped task must not be in a sum.
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
    """The replies of one superstep, and the sealed envelopes that the relay holds.

    Attributes:
        mail: pass it to the next superstep; ``mail.only_from(names)`` fixes the senders.
    """

    mail: Mailboxes = field(default_factory=Mailboxes)


class UnknownKey(ConfigError, KeyError):  # noqa: N818 - what Python calls a KeyError
    """A key that no reply has."""


@dataclass(frozen=True)
class Combined:
    """The combined replies of a cohort; never single replies, except in ``Parts``.

    Attributes:
        value: combined values by name.
        n: number of replies in it.
        weight: sums of weights by name.
        kinds: kinds of the aggregates by name: mean, sum, vote or parts. Parts are in cohort order.
        roles: purposes of the values by name: update, side, metric, report, buffer or counter.
        asked: the parties that were asked.
        outcomes: the outcome for each of them, one entry a party of ``asked``, if the world knows it.
        senders: the parties whose replies are in it, in cohort order.
        silent: the parties that did not reply in time.
        rejected: maps a party's name to why its reply was kept out.
        errors: errors of tasks by party name (if errors are dropped).
        seconds: seconds from sending to closing.
        bytes_up: bytes that arrived.
        bytes_down: bytes that were sent.
        counts: entries that travelled as words of a few bits: ``words``, how many of them were ``clamped`` at parties because they did not fit, how many
            ``overflowed`` in the sum, and of how many nobody knows that (``unchecked``); ``wrong_shares``, how many parties dealt or revealed shares that
            others did not commit to; and ``excess_left``, of how many the noise that could be taken back was not, because shares were wrong.
        inputs: maps an aggregate and the place of a stage that fits to what the stage got on average; see ``atoll.core.requests.chain``.
        told: maps an aggregate to what the last stage counted in its sum, with ``n``, the replies in it, and the ``version`` of the round parameters.
        outliers: maps the name of a party whose reply is in it to how that reply stands far outside the cohort, where an engine sees single replies.
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
    counts: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: dict[str, dict[str, int]] = field(default_factory=dict)
    outliers: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """A value by its name.

        Raises:
            ConfigError: no reply has it. It is a ``KeyError`` too.
        """
        try:
            return self.value[name]
        except (KeyError, TypeError):
            raise UnknownKey(
                f"{name!r} is in no reply.{nearest(name, self.value)}",
                where="Combined",
                remedy=f"use one of {', '.join(self.value)}" if self.value else "return it from the task",
            ) from None

    def of(self, *roles: Role) -> dict[str, Any]:
        """The values with some roles, by name: ``combined.of("metric")``."""
        return {name: value for name, value in self.value.items() if self.roles.get(name, "update") in roles}
