"""The guard of a ledger: it admits jobs within the parties' budgets, and refuses a release that would exceed one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from atoll.core.errors import PolicyError
from atoll.core.event import Admitted, Closed, Event, Ledger, unpack_event

from ..accountant import PrivacyLoss
from .account import LedgerAccount, loss_of, worst
from .demand import Demand

__all__ = ["LedgerGuard"]


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
                packed = [event.packed() for event in releases]
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
        whole, limit = demand.counted(others + own), demand.budget.of(party)
        if whole <= limit * (1 + 1e-9):
            return
        before = demand.counted(others)
        raise PolicyError(
            f"{event.name} may make the epsilon of {party} {whole:.4g}, and its budget is {limit:g} at delta={demand.budget.delta:g}: "
            f"{before:.4g} is spent or promised to other jobs, and this job alone costs {demand.counted(own):.4g} "
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
            whole, limit = demand.counted(self.account.open(party, besides=job) + own), demand.budget.of(party)
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
