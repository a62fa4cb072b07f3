"""Statements: what a ledger says that each party has spent, of which unit, against whom, and what is left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import NonPrivate

from ..accountant import PrivacyLoss
from ..composition import grouped
from ..sampling import ADVERSARIES, neighbours_counted, require_setting
from .account import LedgerAccount
from .demand import UNITS, at_unit

__all__ = ["Epsilons", "StatementEntry", "statement"]


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
        groups.setdefault(_spent(whole, delta, adversary, neighbours), []).append(adversary)
    made = []
    for spent, whom in groups.items():
        counts = terms if terms.get("unit") == unit and terms.get("adversary") in whom and records == 1 else {}
        made.append(
            StatementEntry(
                party, unit, tuple(whom), _meant(whole, whom, neighbours), delta, spent, sum(n for _, n in whole.releases),
                tuple(_unprotected(whole)),
                {job: _spent(loss, delta, whom[0], neighbours) for job, loss in losses.items()},
                float(counts["epsilon"]) if counts else None, _left(account, party, counts) if counts else None,
            )
        )  # fmt: skip
    return made


def _meant(loss: PrivacyLoss, whom: Sequence[str], neighbours: str) -> str:
    """The neighbours that an epsilon against these adversaries is about."""
    events = [event for event, _ in loss.releases]
    found = {neighbours_counted(events, adversary, neighbours) for adversary in whom}
    return found.pop() if len(found) == 1 else neighbours


def _left(account: LedgerAccount, party: str, terms: Mapping[str, Any]) -> float:
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


def _spent(loss: PrivacyLoss, delta: float, adversary: str, neighbours: str) -> Epsilons:
    found: list[float | None] = []
    for method in ("rdp", "pld"):
        try:
            found.append(loss.epsilon(delta, method, adversary, neighbours))
        except (
            ConfigError
        ):  # noise on vectors of whole numbers, whose worst pair is not known; or losses that are too wide
            found.append(None)
    return Epsilons(*found)


def _unprotected(loss: PrivacyLoss) -> Sequence[str]:
    return [event.what or "a release" for event, _ in loss.releases if isinstance(event, NonPrivate)]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return "inf" if value == math.inf else value
