"""What a ledger says that parties have spent, and what they demand of jobs that would spend more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, PolicyError
from atoll.core.event import Admitted, Closed, Covered, Event, Ledger, NonPrivate, unpack_event
from atoll.core.requests.policy import ReplyDemand
from atoll.core.validation import Checked, require_parts

from .accountant import PrivacyLoss
from .budget import Budget, grouped
from .events import ADVERSARIES, in_the_clear, neighbours_counted, require_setting

__all__ = [
    "Demand",
    "Epsilons",
    "FIELDS",
    "LedgerAccount",
    "LedgerGuard",
    "StatementEntry",
    "UNITS",
    "at_unit",
    "loss_of",
    "statement",
    "worst",
]

FIELDS = ("party", "request", "job")
"""Fields of a line that are none of its event's."""


def loss_of(event: Event) -> PrivacyLoss:
    """The cost of an event; one that no accountant knows costs as much as a release without noise."""
    try:
        return PrivacyLoss.of(event)
    except ConfigError:
        return PrivacyLoss.of(NonPrivate(unit=event.unit, count=event.count, what=f"an event of kind {event.kind!r}"))


def worst(spent: PrivacyLoss, most: PrivacyLoss) -> PrivacyLoss:
    """What a job has spent or may spend at most, release by release: its promise includes what it has spent."""
    counts = dict(most.releases)
    more = {event: n - counts.get(event, 0) for event, n in spent.releases if n > counts.get(event, 0)}
    return sum((PrivacyLoss.of(event).times(n) for event, n in more.items()), most)


@dataclass
class LedgerAccount:
    """The spending of all jobs of a ledger, updated as the ledger grows.

    Attributes:
        ledger: a ledger, or its lines.
        losses: party -> job -> what the job has spent of the party; ``"*"`` is everybody.
        admitted: party -> job -> what the job was admitted for; the newest counts.
        names: job -> its name, for people.
        closed: jobs that have ended for good.
        terms: party -> the newest budget that it counted by; none if there was none.
        notes: kinds of events that cost nothing and say something about all others, such as ``"seeded-secret"``.
    """

    ledger: Ledger | Iterable[Mapping[str, Any]]
    losses: dict[str, dict[str, PrivacyLoss]] = field(default_factory=dict)
    admitted: dict[str, dict[str, PrivacyLoss]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    terms: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    _read: int = 0

    def update(self) -> LedgerAccount:
        """Read the new lines."""
        lines = self.ledger.lines(self._read) if isinstance(self.ledger, Ledger) else [*self.ledger][self._read :]
        self._read += len(lines)
        for line in lines:
            event = unpack_event({name: value for name, value in line.items() if name not in FIELDS})
            parties = [line["party"]] if isinstance(line["party"], str) else line["party"]
            self._take(event, parties, line.get("job", ""))
        return self

    def _take(self, event: Event, parties: Sequence[str], job: str) -> None:
        if isinstance(event, Admitted):
            most = sum((loss_of(unpack_event(dict(one))) for one in event.most), PrivacyLoss())
            self.names[job] = event.name
            self.closed.discard(job)
            for party in parties:
                self.admitted.setdefault(party, {})[job] = most
                self.terms[party] = dict(event.budget)
        elif isinstance(event, Closed):
            self.closed.add(job)
        elif event.free:
            self.notes.add(event.kind)
        else:
            loss = loss_of(event)
            for party in parties:
                jobs = self.losses.setdefault(party, {})
                jobs[job] = jobs.get(job, PrivacyLoss()) + loss

    @property
    def parties(self) -> list[str]:
        """Everybody who has spent or may spend, in the order of the ledger; ``"*"`` if it names nobody."""
        named = dict.fromkeys(party for party in (*self.losses, *self.admitted) if party != "*")
        return list(named or (("*",) if "*" in self.losses else ()))

    def jobs(self, party: str) -> list[str]:
        """The jobs that have spent of a party, in the order of the ledger."""
        return list(dict.fromkeys((*self.losses.get(party, ()), *self.losses.get("*", ()))))

    def spent(self, party: str, job: str | None = None) -> PrivacyLoss:
        """What was spent of a party, releases in the name of all parties included.

        Args:
            party: the party.
            job: by this job; by default by all.
        """
        total = PrivacyLoss()
        for jobs in (self.losses.get(party, {}), self.losses.get("*", {}) if party != "*" else {}):
            for by in jobs if job is None else {job} & jobs.keys():
                total = total + jobs[by]
        return total

    def open(self, party: str, besides: str | None = None) -> PrivacyLoss:
        """What was spent of a party, and what jobs that are open may still spend.

        Args:
            party: the party.
            besides: a job that does not count.
        """
        promised, total = self.admitted.get(party, {}), PrivacyLoss()
        for job in dict.fromkeys((*self.jobs(party), *promised)):
            if job != besides:
                most = PrivacyLoss() if job in self.closed else promised.get(job, PrivacyLoss())
                total = total + worst(self.spent(party, job), most)
        return total


# ---------------------------------------------------------------- what a party demands of jobs

UNITS = ("example", "user", "island")
"""Units of protection; each contains those before it."""


def at_unit(loss: PrivacyLoss, unit: str) -> PrivacyLoss:
    """The loss of one unit: a release that protects only smaller units protects this one not at all."""
    wanted = UNITS.index(unit)
    weak = sum(n for event, n in loss.releases if UNITS.index(event.unit) < wanted)
    if not weak:
        return loss
    rest = (PrivacyLoss.of(event).times(n) for event, n in loss.releases if UNITS.index(event.unit) >= wanted)
    return sum(rest, PrivacyLoss.of(NonPrivate(unit=unit, what="protects smaller units only", count=weak)))


@dataclass(frozen=True)
class Demand(Checked, ReplyDemand):
    """What a party demands of every job, whatever the job says.

    Attributes:
        require: refuse replies, and jobs, that release anything without differential privacy.
        unit: what must be protected: ``"example"``, ``"user"`` or ``"island"``. A release that protects a larger unit is enough.
        budget: what all jobs together may spend of each party; ``None`` sets no limit.
    """

    require: bool = True
    unit: Literal["example", "user", "island"] = "user"
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ConfigError(f"unit={self.unit!r}", where="Demand", remedy=f"use one of {', '.join(UNITS)}")
        require_parts(self, {}, optional={"budget": (Budget, "atoll.privacy.Budget(epsilon=4.0)")})

    @property
    def adversary(self) -> str:
        """From whom it protects: the budget's, or else the server, who sees most."""
        return "server" if self.budget is None else self.budget.adversary

    def terms(self) -> dict[str, Any]:
        """The budget's terms as plain values, as the ledger notes them; empty without a budget."""
        if self.budget is None:
            return {}
        names = ("epsilon", "delta", "method", "adversary", "neighbours")
        return {"unit": self.unit, **{name: getattr(self.budget, name) for name in names}}

    def measure_epsilon(self, loss: PrivacyLoss) -> float:
        """Epsilon of a loss, as the budget counts."""
        if self.budget is None:
            raise ConfigError("there is no budget", where="Demand", remedy="give Demand(budget=Budget(...))")
        return self.budget.measure_epsilon(at_unit(loss, self.unit))

    def settle(self, task: str, events: Sequence[Event]) -> None:
        """Keep a reply from leaving that is not protected.

        Raises:
            PolicyError: nothing protects it, or only smaller units, or it says so itself.
        """
        why = self.unprotected(events)
        if why:
            raise PolicyError(
                f"the reply of task {task} {why}, and this party demands differential privacy of unit {self.unit!r}",
                remedy=_remedy(self.unit),
            )

    def unprotected(self, events: Sequence[Event]) -> str:
        """Why these releases are not protected as demanded; empty if they are, or if nothing is demanded."""
        counted = [event for event in events if not event.free]
        if not self.require:
            return ""
        for event in counted:
            if in_the_clear(event, self.adversary):
                return f"has {getattr(event, 'what', '') or 'a release'} without noise"
            if isinstance(event, NonPrivate):
                continue  # those from whom this party protects do not see it
            if UNITS.index(event.unit) < UNITS.index(self.unit):
                return f"protects unit {event.unit!r} only"
        known = any(isinstance(event, Covered) for event in events)
        return "" if known or any(not isinstance(event, NonPrivate) for event in counted) else "leaves without noise"

    def refusal(self, title: str, most: Sequence[Event] | None) -> PolicyError | None:
        """Why a job may not begin, from what it releases of a party at most.

        Args:
            title: the job, as errors name it.
            most: its releases; ``None`` if nobody can say.
        """
        if most is None and (self.require or self.budget is not None):
            return PolicyError(
                f"{title} does not say what it releases of a party at most, and this party demands differential privacy of unit {self.unit!r}",
                remedy="run a job that says it, such as a training with noise; a program says it in its attribute `releases`",
            )
        why = self.unprotected(most or ())
        if most and why:
            return PolicyError(
                f"{title} {why}, and this party demands differential privacy of unit {self.unit!r}",
                remedy=_remedy(self.unit),
            )
        return None


def _remedy(unit: str) -> str:
    return f"use a mechanism whose noise protects one {unit} at the clients (privacy=..., or uplink: Clip, then GaussianNoise), evaluate at the server, or leave the party out"


# ---------------------------------------------------------------- the guard of a ledger


class LedgerGuard:
    """Guards a ledger by what its parties demand. What a ledger says was spent is all that it trusts.

    Args:
        ledger: the ledger; from now on an event that would exceed a budget is refused instead of recorded.
        demand: party -> what it demands now, or ``None``.
    """

    def __init__(self, ledger: Ledger, demand: Callable[[str], Demand | None]) -> None:
        self.ledger, self.demand = ledger, demand
        self.account = LedgerAccount(ledger).update()
        ledger.guard = self.check

    def admit(self, job: str, title: str, most: Mapping[str, Sequence[Event] | None]) -> None:
        """Admit a job, and set aside what it may release at most; it may be admitted again, with more or less.

        Args:
            job: its id in the ledger.
            title: its name, for people.
            most: party -> what the job releases of it at most; ``None`` if nobody can say.

        Raises:
            PolicyError: a party demands privacy that the job does not have, or the rest of a budget is too small for it.
        """
        groups: dict[tuple[tuple[Event, ...], str], list[str]] = {}
        for party, events in most.items():
            demand = self.demand(party)
            if demand is None:
                continue
            refused = demand.refusal(title, events)
            if refused is not None:
                raise PolicyError(refused.what, where=f"privacy of {party}", remedy=refused.remedy)
            groups.setdefault((tuple(events or ()), repr(demand.terms())), []).append(party)
        self.ledger.update()
        again = "" if job in self.account.update().closed else "admitted"
        try:
            for (releases, _), parties in groups.items():
                terms = {} if (demand := self.demand(parties[0])) is None else demand.terms()
                packed = [event.pack() for event in releases]
                self.ledger.append(Admitted(name=title, most=packed, budget=terms), parties, again, job=job)
        except PolicyError:
            self.close(job)
            raise

    def _require_room(self, job: str, event: Admitted, party: str) -> None:
        """Refuse a job for which the rest of a party's budget is too small."""
        demand = self.demand(party)
        if demand is None or demand.budget is None:
            return
        most = sum((loss_of(unpack_event(dict(one))) for one in event.most), PrivacyLoss())
        others = self.account.open(party, besides=job)
        own = worst(self.account.spent(party, job), most)
        whole, limit = demand.measure_epsilon(others + own), demand.budget.of(party)
        if whole <= limit * (1 + 1e-9):
            return
        before = demand.measure_epsilon(others)
        raise PolicyError(
            f"{event.name} may make the epsilon of {party} {whole:.4g}, and its budget is {limit:g} at delta={demand.budget.delta:g}: "
            f"{before:.4g} is spent or promised to other jobs, and this job alone costs {demand.measure_epsilon(own):.4g} "
            f"({demand.budget.terms(others + own)})",
            where=f"privacy of {party}",
            remedy="use more noise or fewer rounds, or ask the party for a larger budget: `atoll privacy ledger` shows it what is left",
        )

    def check(self, event: Event, parties: Sequence[str], job: str) -> None:
        """Refuse a release that would exceed a budget, before it is recorded.

        Raises:
            PolicyError: names the party and what is left.
        """
        self.account.update()
        if isinstance(event, Admitted):
            for party in parties:
                self._require_room(job, event, party)
        if event.free:
            return
        loss = loss_of(event)
        for party in parties:
            demand = self.demand(party)
            if demand is None or demand.budget is None:
                continue
            own = self.account.spent(party, job) + loss
            if job not in self.account.closed and _within(own, self.account.admitted.get(party, {}).get(job)):
                continue  # it was counted when the job was admitted
            whole, limit = demand.measure_epsilon(self.account.open(party, besides=job) + own), demand.budget.of(party)
            if whole > limit * (1 + 1e-9):
                raise PolicyError(
                    f"another release would make the epsilon of {party} {whole:.4g}, and its budget is {limit:g} at delta={demand.budget.delta:g}",
                    where=f"privacy of {party}",
                    remedy="end the job, use more noise or fewer releases, or ask the party for a larger budget",
                )

    def close(self, job: str) -> None:
        """Note that a job has ended for good; what it was admitted for and has not spent is free again."""
        self.account.update()
        if job not in self.account.closed and any(job in jobs for jobs in self.account.admitted.values()):
            self.ledger.append(Closed(), "*", job=job)


def _within(spent: PrivacyLoss, most: PrivacyLoss | None) -> bool:
    """Whether a job's releases are among those that it was admitted for."""
    allowed = dict(most.releases) if most is not None else {}
    return all(n <= allowed.get(event, 0) for event, n in spent.releases)


# ---------------------------------------------------------------- statements


@dataclass(frozen=True)
class Epsilons:
    """Epsilon by both accountants; infinite without a guarantee, ``None`` where the accountant knows none."""

    rdp: float | None
    pld: float | None

    @property
    def best(self) -> float:
        """The smaller of the two: both are upper bounds."""
        return min((value for value in (self.rdp, self.pld) if value is not None), default=math.inf)


@dataclass(frozen=True)
class StatementEntry:
    """What was spent of one unit of one party, against some adversaries.

    Attributes:
        party: whose data; ``"all"`` for the largest of all parties, which is what disjoint parties cost together.
        unit: what is protected.
        adversaries: from whom; those for whom the amount is the same share an entry.
        neighbours: which data sets are neighbours.
        delta: at which epsilon is counted.
        spent: by all jobs together.
        releases: how many.
        unprotected: what was released without differential privacy, by name.
        jobs: job -> what it spent alone.
        budget: the party's epsilon, if it counts by one.
        left: what of it is neither spent nor promised to jobs that run; ``None`` without a budget.
    """

    party: str
    unit: str
    adversaries: tuple[str, ...]
    neighbours: str
    delta: float
    spent: Epsilons
    releases: int
    unprotected: tuple[str, ...]
    jobs: Mapping[str, Epsilons]
    budget: float | None = None
    left: float | None = None

    def packed(self) -> dict[str, Any]:
        """The entry as plain values; infinity is the text ``"inf"``, as JSON has none."""
        found: dict[str, Any] = _finite(asdict(self))
        return found


@checked_call
def statement(
    account: LedgerAccount,
    delta: float = 1e-5,
    neighbours: str = "add-remove",
    *,
    unit: str | None = None,
    records: int = 1,
) -> list[StatementEntry]:
    """What each party of a ledger has spent.

    Args:
        account: the ledger's.
        delta: in (0, 1). A party with a budget is counted at the budget's.
        neighbours: ``"add-remove"`` or ``"replace-one"``.
        unit: only this unit; by default every unit that a release protects, and the one of the party's budget.
        records: how many records of one unit's kind belong together, such as the rows of one person: group privacy.

    Raises:
        ConfigError: a setting does not exist.
    """
    require_setting("server", neighbours, "statement")
    if not 0 < delta < 1 or records < 1 or unit not in (None, *UNITS):
        raise ConfigError(
            f"delta={delta}, records={records}, unit={unit!r}",
            where="statement",
            remedy=f"use delta in (0, 1), at least one record, and a unit of {', '.join(UNITS)}",
        )
    account.update()
    made: list[StatementEntry] = []
    for party in account.parties:
        terms = account.terms.get(party, {})
        units = {event.unit for event, _ in account.spent(party).releases} | {terms.get("unit", "user")}
        for one in UNITS if unit is None else (unit,):
            if one in units or unit is not None:
                made += _entries(account, party, one, terms, delta, neighbours, records)
    return made


def _entries(
    account: LedgerAccount, party: str, unit: str, terms: Mapping[str, Any], delta: float, neighbours: str, records: int
) -> list[StatementEntry]:
    delta, neighbours = float(terms.get("delta", delta)), str(terms.get("neighbours", neighbours))
    losses = {job: _of_group(at_unit(account.spent(party, job), unit), records) for job in account.jobs(party)}
    whole = sum(losses.values(), PrivacyLoss())
    groups: dict[Epsilons, list[str]] = {}
    for adversary in ADVERSARIES:
        groups.setdefault(_measure_spent(whole, delta, adversary, neighbours), []).append(adversary)
    made = []
    for spent, whom in groups.items():
        counts = terms if terms.get("unit") == unit and terms.get("adversary") in whom and records == 1 else {}
        made.append(
            StatementEntry(
                party, unit, tuple(whom), _meant(whole, whom, neighbours), delta, spent, sum(n for _, n in whole.releases),
                tuple(_list_unprotected(whole)),
                {job: _measure_spent(loss, delta, whom[0], neighbours) for job, loss in losses.items()},
                float(counts["epsilon"]) if counts else None, _compute_left(account, party, counts) if counts else None,
            )
        )  # fmt: skip
    return made


def _meant(loss: PrivacyLoss, whom: Sequence[str], neighbours: str) -> str:
    """The neighbours that an epsilon against these adversaries is about."""
    events = [event for event, _ in loss.releases]
    found = {neighbours_counted(events, adversary, neighbours) for adversary in whom}
    return found.pop() if len(found) == 1 else neighbours


def _compute_left(account: LedgerAccount, party: str, terms: Mapping[str, Any]) -> float:
    """What of a budget is neither spent nor promised."""
    loss = at_unit(account.open(party), str(terms["unit"]))
    taken = loss.epsilon(terms["delta"], terms["method"], terms["adversary"], terms["neighbours"])
    return max(0.0, float(terms["epsilon"]) - taken)


def _of_group(loss: PrivacyLoss, records: int) -> PrivacyLoss:
    if records == 1:
        return loss
    made = PrivacyLoss()
    for event, n in loss.releases:
        made = made + PrivacyLoss.of(event if isinstance(event, NonPrivate) else grouped(event, records)).times(n)
    return made


def _measure_spent(loss: PrivacyLoss, delta: float, adversary: str, neighbours: str) -> Epsilons:
    found: list[float | None] = []
    for method in ("rdp", "pld"):
        try:
            found.append(loss.epsilon(delta, method, adversary, neighbours))
        except (
            ConfigError
        ):  # noise on vectors of whole numbers, whose worst pair is not known; or losses that are too wide
            found.append(None)
    return Epsilons(*found)


def _list_unprotected(loss: PrivacyLoss) -> Sequence[str]:
    return [event.what or "a release" for event, _ in loss.releases if isinstance(event, NonPrivate)]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return "inf" if value == math.inf else value
