"""Audits by canaries: the lower bound of every mechanism stays below its claim, and five broken mechanisms are caught.

The method is that of Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (2023): coins decide which canaries are in a run, the auditor guesses them from
what is released, and the number of right guesses bounds epsilon from below with confidence 95 %. The runs are real trainings on the digits; the claims are
those of their ledgers. An honest mechanism would be refuted wrongly in at most 5 % of the runs.
"""

from __future__ import annotations

import time

from atoll.reproduce import Claim, Entry, keeping_nothing

from .private.audits import AuditCase, audits

__all__ = ["ENTRY"]

_GOLDEN = ((180, 200, 1.799), (75, 100, 0.702))


def _golden() -> list[Claim]:
    from atoll.privacy import lower_bound

    return [
        Claim(
            f"{right} of {guesses} right guesses prove an epsilon of {paper} at 95 %",
            paper,
            round(lower_bound(right, guesses), 4),
            abs(lower_bound(right, guesses) - paper) < 5e-4,
            "delta 0",
            basis="derived",
        )
        for right, guesses, paper in _GOLDEN
    ]


def _judged(case: AuditCase, canaries: int) -> Claim:
    began = time.perf_counter()
    found = case.run(canaries)
    shown = f"at least {found.lower:.3g}, claimed {found.claimed:.3g}"
    note = f"{case.note}; {found.right} of {found.guesses} guesses about {found.canaries} {found.unit}s, {found.neighbours}, adversary {found.adversary}; {time.perf_counter() - began:.0f} s"
    if case.broken:
        return Claim(f"{case.name}: the audit refutes it", None, shown, found.refuted, note, part="Broken on purpose")
    return Claim(f"{case.name}: the audit does not refute it", None, shown, not found.refuted, note, part="Mechanisms")


@keeping_nothing("privacy-audit")
def _run(quick: bool) -> list[Claim]:
    return [*_golden(), *(_judged(case, 600 if quick else 1000) for case in audits() if case.quick or not quick)]


ENTRY = Entry(
    name="privacy-audit",
    title="Audits by canaries: mechanisms that hold, and five that are broken on purpose",
    source="Steinke, Nasr, Jagielski. Privacy Auditing with One (1) Training Run. NeurIPS 2023",
    run=_run,
)
