"""What a request costs, under which terms it closes, and what its verb returns: a model of devices and links says when each reply arrives, or that it does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ..calls import is_real
from ..errors import ConfigError, nearest
from ..time.deadline import Deadline, Risk, Share
from .party import Parties
from .request import Mailboxes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..algebra.aggregate import Role
    from .task import Workload

__all__ = [
    "Accept",
    "Combined",
    "Cost",
    "Exchanged",
    "Free",
    "Late",
    "Outcomes",
    "Plan",
    "REASONS",
    "Replies",
    "Spending",
    "AcceptRule",
    "Terms",
    "is_instant",
]


@dataclass(frozen=True)
class Plan:
    """A request as the cost model sees it: sizes and work, never results.

    Attributes:
        request: path of the request.
        down: bytes sent to each party: one number for all, or one each if parties have mail.
        up: bytes of each reply, 0 if unknown beforehand.
        now: seconds on the clock.
        key: random key of the request, for draws that depend on nothing else.
        work: a function that returns the declared work of each party, as columns.
        turn: the number of the round of the request: the first part of its label ``at=(turn, ...)`` if that is a whole number,
            else the number of earlier requests of the task. Draws by turn and party are the same for all programs with rounds.
        superstep: number of earlier requests under the same `Deadline`.
        risk: the part of the turn that the request stands for: crashes of the turn at a point in this part hit this request.
        lacking: a function that returns the joules that each party's battery lacks of being full: what it has spent on earlier requests, according to
            the meters, minus what it has recharged since with the model's ``recharge``, and never below 0. ``None`` means that nothing is lacking.
    """

    request: str
    down: int | NDArray[np.int64]
    up: int
    now: float
    key: int
    work: Callable[[], Workload]
    turn: int = 0
    lacking: Callable[[], NDArray[np.float64]] | None = None
    superstep: int = 0
    risk: Risk = (0.0, 1.0)


REASONS = ("answered", "crashed", "left", "unavailable", "too little memory", "empty battery")
"""The meanings of the numbers in ``Outcomes.reason``."""


@dataclass(frozen=True)
class Spending:
    """What a device has spent by the moment at which it is called off: energy as a piecewise linear function of time.

    Attributes:
        moments: seconds from sending, ``(corners, devices)``, ascending: the progress of a device when the message to stop reaches it.
        joules: energy spent by then, ``(corners, devices)``; 0 at the first corner.
        ends: seconds from sending after which nothing can be saved, ``(devices,)``: the device is done, or has failed.
    """

    moments: NDArray[np.float64]
    joules: NDArray[np.float64]
    ends: NDArray[np.float64]

    def by(self, seconds: float, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """Joules that some devices have spent if they are called off this long after sending; ``inf`` if it is too late."""
        moments, joules = self.moments[:, which], self.joules[:, which]
        spans = np.diff(moments, axis=0)
        into = np.divide(seconds - moments[:-1], spans, out=(seconds >= moments[:-1]) * 1.0, where=spans > 0)
        spent = (np.clip(into, 0.0, 1.0) * np.diff(joules, axis=0)).sum(axis=0)
        return np.where(seconds >= self.ends[which], np.inf, spent)


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a request, one entry a party.

    Attributes:
        seconds: seconds from sending until the reply arrives; for a crash, until the link notices it.
        done: whether a reply arrives.
        fraction: share of the work done, 1 when done.
        energy: joules that the device spends, ``None`` if the model does not count energy.
        reason: why no reply arrives, as an index into ``REASONS``; ``None`` if the model does not say.
        spending: how ``energy`` is spent, for devices that are called off before they are done; ``None`` charges them all of it.
    """

    seconds: NDArray[np.float64]
    done: NDArray[np.bool_]
    fraction: NDArray[np.float64]
    energy: NDArray[np.float64] | None = None
    reason: NDArray[np.int8] | None = None
    spending: Spending | None = None


class Cost(Protocol):
    """A model of devices and links. It is pure: the same plan has the same outcomes.

    It may offer ``forecast(parties, plan) -> seconds``, the time of each party without failures, and ``available(parties, now) -> mask``, the parties
    that can be asked at a moment; see ``Federation.forecast`` and ``Federation.available``. It may offer ``require_turns(parties, last)``, which refuses
    a run up to a turn that it could not plan, before any party is contacted. A number ``recharge`` recharges the batteries of all devices with
    this many watts all the time; the default is none. If ``instant`` is true, Atoll forecasts nothing and reports no losses; see `is_instant`.

    ``session(parties, plans, until) -> Prospects | None`` decides the outcomes of the roles of a session, given the party and the plan of each, in
    the roles' order, and the time of the deadline (``math.inf`` for none). Without it, or if it returns ``None``, only ``transfer`` takes time and no party is lost.
    """

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        """Decide when each party replies, or that it does not."""
        ...

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        """Seconds to carry bytes from one party to another."""
        ...


class Free:
    """A cost model in which everything is instantaneous and no party fails.

    Attributes:
        instant: whether a class plans, transfers and decides about sessions without delay: true, unless a subclass overrides one of them.
    """

    instant = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "instant" not in vars(cls):
            cls.instant = cls.plan is Free.plan and cls.transfer is Free.transfer and not hasattr(cls, "session")

    def plan(self, parties: Parties, plan: Plan) -> Outcomes:
        """Let every reply arrive at once."""
        del plan
        n = len(parties)
        return Outcomes(np.zeros(n), np.ones(n, dtype=bool), np.ones(n))

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        """Return 0: transfers take no time."""
        del source, target, nbytes
        return 0.0


def is_instant(cost: Cost) -> bool:
    """Whether everything is instantaneous and no party fails, so that there is nothing to forecast and no loss to report."""
    return bool(getattr(cost, "instant", False))


Late = Literal["cancel", "arrive", "drop"]


class AcceptRule(Protocol):
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


Accept = int | AcceptRule | Share
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
