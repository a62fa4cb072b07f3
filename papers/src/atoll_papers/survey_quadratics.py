"""The survey's methods on ten quadratics that disagree: which of them reach the optimum, what gap the others keep, and how fast.

Source: "Advancements in Federated Learning: Models, Methods, and Privacy", a survey (2023), sections on first-order, second-order and ADMM
methods. It has no experiments; the reference numbers are those of an independent NumPy implementation of its formulas on the same problems.
"""

from __future__ import annotations

import time

from atoll.learn.catalogue import kinds, programs
from atoll.reproduce import Claim, Entry, keeping_nothing

from .survey.rate import Rate
from .survey.row import SurveyRow
from .survey.table import families, rates, unclaimed

__all__ = ["ENTRY"]


def _claim(family: str, row: SurveyRow) -> Claim:
    began = time.process_time()
    ours = row.run()
    note = f"{row.rounds} rounds, {time.process_time() - began:.1f} s; reference: {row.origin}"
    if len(row.seeds) > 1:
        note = f"geometric mean of {len(row.seeds)} seeds; {note}"
    shown = "diverges" if row.diverges and row.holds(ours) else float(f"{ours:.4g}")
    return Claim(f"{family.replace('_', ' ')}: {row.name}", row.stated(), shown, row.holds(ours), note)


def _rate(rate: Rate) -> Claim:
    found = rate.fit()
    note = f"{rate.source}; {rate.note}" + (f"; why not: {rate.but}" if rate.but else "")
    return Claim(rate.name, rate.stated(), round(found, 3), rate.holds(found), note, part="Rates")


def _complete() -> Claim:
    """Judge that every method of the catalogue is above, or no source gives it a rate."""
    claimed, without = {name for rate in rates() for name in rate.methods}, unclaimed()
    why = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in without.items())
    count = len({*kinds(), *programs()})
    covered = len(claimed | {name for names in without.values() for name in names})
    return Claim(
        "methods of the catalogue above, or without a rate", count, covered, covered == count, why, part="Rates"
    )


@keeping_nothing("survey-quadratics")
def _run(quick: bool) -> list[Claim]:
    claims = [_claim(family, row) for family, some in families().items() for row in some if row.quick or not quick]
    if not quick:
        claims += [*map(_rate, rates()), _complete()]
    return claims


ENTRY = Entry(
    name="survey-quadratics",
    title="The survey's methods on quadratics whose optimum is known: the gap that each leaves, and the rates that are claimed",
    source="Advancements in Federated Learning: Models, Methods, and Privacy (survey), Tables 4 to 6",
    run=_run,
)
