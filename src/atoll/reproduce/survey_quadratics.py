"""The survey's methods on ten quadratics that disagree: which of them reach the optimum, and what gap the others keep.

Source: "Advancements in Federated Learning: Models, Methods, and Privacy", a survey (2023), sections on first-order, second-order and ADMM
methods. It has no experiments; the reference numbers are those of an independent NumPy implementation of its formulas on the same problems.
"""

from __future__ import annotations

import time

from .entry import Claim, Entry, Lab, NotKept
from .survey.row import Row
from .survey.table import families

__all__ = ["ENTRY"]


def _claim(family: str, row: Row) -> Claim:
    began = time.perf_counter()
    ours = row.run()
    seconds = time.perf_counter() - began
    note = f"{row.rounds} rounds, {seconds:.1f} s; reference: {row.origin}"
    if len(row.seeds) > 1:
        note = f"geometric mean of {len(row.seeds)} seeds; {note}"
    shown = "diverges" if row.diverges and row.holds(ours) else float(f"{ours:.4g}")
    return Claim(f"{family.replace('_', ' ')}: {row.name}", row.stated(), shown, row.holds(ours), note)


def _run(lab: Lab, quick: bool) -> list[Claim]:
    if lab.kept:
        raise NotKept("survey-quadratics")
    claims = []
    for family, rows in families().items():
        for row in rows:
            if quick and not row.quick:
                continue
            began = time.perf_counter()
            claims.append(_claim(family, row))
            lab.seconds += time.perf_counter() - began
    return claims


ENTRY = Entry(
    name="survey-quadratics",
    title="The survey's methods on quadratics whose optimum is known: the gap that each leaves",
    source="Advancements in Federated Learning: Models, Methods, and Privacy (survey), Tables 4 to 6",
    run=_run,
)
