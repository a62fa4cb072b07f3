"""The survey's methods on ten quadratics that disagree: which of them reach the optimum, what gap the others keep, and how fast.

Source: "Advancements in Federated Learning: Models, Methods, and Privacy", a survey (2023), sections on first-order, second-order and ADMM
methods. It has no experiments; the reference numbers are those of an independent NumPy implementation of its formulas on the same problems.
"""

from __future__ import annotations

import importlib
import pkgutil
import time

from atoll.learn.catalogue import kinds, programs
from atoll.reproduce import Claim, Entry, keeping_nothing

from .row import Rate, SurveyRow

__all__ = ["ENTRY", "families", "rates", "rows", "unclaimed"]


# ------------------------------------------------------------------ all rows, family by family, and all claimed rates

_OTHERS = {"quadratics", "rates", "row"}


def families() -> dict[str, tuple[SurveyRow, ...]]:
    """Return the rows of each module of this package that defines ``ROWS``, by the module's name."""
    package = importlib.import_module("atoll_papers.survey")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _OTHERS)
    modules = {name: importlib.import_module(f"atoll_papers.survey.{name}") for name in names}
    return {name: tuple(module.ROWS) for name, module in modules.items() if hasattr(module, "ROWS")}


def rows() -> tuple[SurveyRow, ...]:
    """Return all rows."""
    return tuple(row for some in families().values() for row in some)


def rates() -> tuple[Rate, ...]:
    """Return all claimed rates."""
    from .rates import NOISE_RATES, RATES

    return RATES + NOISE_RATES


def unclaimed() -> dict[str, tuple[str, ...]]:
    """Return why no rate is claimed -> names of methods in the catalogue."""
    from .rates import UNCLAIMED

    return UNCLAIMED


# ------------------------------------------------------------------ the entry


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
