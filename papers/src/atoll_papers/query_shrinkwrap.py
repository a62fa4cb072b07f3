"""Sizes with noise in place of padding: what Shrinkwrap saves of SMCQL's bytes, for budgets and ways to divide them.

Source: the survey of federated computing (source 000, section 3.5 and Table 21) describes Shrinkwrap (Bater et al. 2018, "Shrinkwrap: Efficient SQL Query Processing in Differentially Private Data Federations"): rows
that do not count are dropped from tables on the way, whose sizes have noise. The paper's budgets are for one row, as ours are where nothing else is said. Its data cannot be had; ours are those of `query-smcql`.

What differs: shares at three parties in place of garbled circuits with ORAM; each of three sites adds noise that suffices alone, where the paper draws one noise inside the computation; so ours is three times as large. Seconds
and bytes are therefore beside our own plan without cuts, and not beside the paper's.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from atoll.query import SqlConnection
from atoll.query.strategies.shrinkwrap import padding_shift
from atoll.reproduce import Claim, Entry, keeping_nothing

from .query_smcql import MOST, STATEMENTS, open_hospitals

__all__ = ["ENTRY"]

_NOISE, _SWEEP, _SPLITS = "The noise", "Budgets, divided as the expected work is least", "Ways to divide a budget"
_DELTA = 1e-4


def _noise() -> list[Claim]:
    """The printed law, and what a shift that is not whole would make of it."""
    rate, x = 0.5, np.arange(-5000, 5001)
    exact = 1 - math.log((math.exp(rate) + 1) * _DELTA) / rate
    shift = padding_shift(rate, _DELTA, 1)
    mass = [float((math.expm1(rate) / (math.exp(rate) + 1) * np.exp(-rate * np.abs(x - at))).sum()) for at in (shift, exact)]  # fmt: skip
    below = float((math.expm1(rate) / (math.exp(rate) + 1) * np.exp(-rate * np.abs(x[x <= 0] - shift))).sum())
    return [
        Claim("the shift for epsilon 0.5, delta 1e-4, one row", 17.47, f"{exact:.2f}, used as {shift}", round(exact, 2) == 17.47 and shift == 18, "rounded up", _NOISE, basis="derived"),
        Claim("the law has mass 1", 1.0, f"{mass[0]:.3f}", abs(mass[0] - 1) < 1e-9, f"with a shift that is not whole, {mass[1]:.3f}", _NOISE, basis="derived"),
        Claim("a size is not padded with probability delta at most", _DELTA, f"{below:.1e}", below <= _DELTA, "no more than delta", _NOISE, basis="derived"),
    ]  # fmt: skip


def _ask(db: SqlConnection, text: str, epsilon: float, split: str = "optimal") -> Any:
    found = db.sql(text, strategy=f"shrinkwrap:split={split}", epsilon=epsilon, delta=_DELTA, analyst="anna")
    return found, db.check(found)


def _told(found: Any, plain: Any) -> str:
    sizes = ", ".join(f"{one['before']:,} to {one['after']:,}" for one in found.privacy["sizes"]) or "no table cut"
    return f"{found.bytes / plain.bytes:.2f} ({sizes})"


def _swept(folder: Path, rows: int, names: tuple[str, ...], epsilons: tuple[float, ...]) -> list[Claim]:
    made, equal, off, saved, worst, most = [], [], [0.0], [], [], []
    for name in names:
        text, parts = STATEMENTS[name], []
        with open_hospitals(folder, rows) as db:
            plain = db.sql(text, strategy="smcql")
            for epsilon in epsilons:
                found, same = _ask(db, text, epsilon)
                equal.append(same is True)
                off.append(abs(found.predicted / found.bytes - 1))
                parts.append(found.bytes / plain.bytes)
                made.append(Claim.figure(f"{name}, epsilon {epsilon:g}: part of the bytes without cuts", _told(found, plain), f"{plain.bytes / 1e6:.1f} MB without; tables before and after a cut", _SWEEP))  # fmt: skip
            for split in ("uniform", "eager"):
                found, same = _ask(db, text, epsilons[-1], split)
                equal.append(same is True)
                made.append(Claim.figure(f"{name}, {split}: part of the bytes without cuts", _told(found, plain), f"epsilon {epsilons[-1]:g}", _SPLITS))  # fmt: skip
                most.append((name, split, parts[-1], found.bytes / plain.bytes))
        falls = all(b <= a * 1.03 for a, b in itertools.pairwise(parts))
        made.append(Claim(f"{name}: a larger budget sends no more", "falls with epsilon", " ".join(f"{one:.2f}" for one in parts), falls, f"epsilon {', '.join(f'{one:g}' for one in epsilons)}; up to 3 %, since noise and sorts are drawn", _SWEEP))  # fmt: skip
        saved.append(1 / min(parts))
        worst.append(max(parts))
    wins = [name for name, split, best, other in most if best > 1.05 * other]
    shown = "; ".join(f"{name}, {split}: {best:.2f} to {other:.2f}" for name, split, best, other in most)
    made += [
        Claim("answers are those of all rows in one place", "exact", "equal" if all(equal) else "unequal", all(equal), f"DuckDB on the union, every budget and split; 3 hospitals, {rows} rows a table each", _SWEEP),
        Claim("cutting saves a factor", "up to 35", f"up to {max(saved):.1f}", max(saved) > 1.2, "at least 1.2. The paper's factor is of seconds against ORAM with all padding, on data of other sizes", _SWEEP),
        Claim("no budget sends more than 5 % above what is sent without cuts", None, f"{max(worst):.2f} at worst", max(worst) < 1.05, "where no cut pays, none is made", _SWEEP),
        Claim("bytes are predicted to 10 %", None, f"{max(off):.1%}", max(off) < 0.1, "largest error", _SWEEP),
        Claim("dividing by expected work sends no more than uniformly or eagerly", "optimal is best", shown, not wins, f"to 5 %, at epsilon {epsilons[-1]:g}", _SPLITS),
    ]  # fmt: skip
    return sorted(made, key=lambda claim: claim.part == _SPLITS)


def _by_patient(folder: Path, rows: int) -> list[Claim]:
    text = STATEMENTS["aspirin count"]
    with open_hospitals(folder, rows, unit="patient") as db:
        plain = db.sql(text, strategy="smcql")
        found, same = _ask(db, text, 8.0)
    return [Claim.figure("aspirin count, all rows of a patient hidden, epsilon 8: part of the bytes without cuts", _told(found, plain), f"{'equal' if same else 'unequal'}; a patient has up to {MOST} rows in a table, so that noise is {MOST} times as large", _SWEEP)]  # fmt: skip


@keeping_nothing("query-shrinkwrap")
def _run(quick: bool) -> list[Claim]:
    with tempfile.TemporaryDirectory(prefix="atoll-shrinkwrap-") as folder:
        if quick:
            return [*_noise(), *_swept(Path(folder), 60, ("aspirin count",), (1.0, 8.0))]
        return [
            *_noise(),
            *_by_patient(Path(folder), 250),
            *_swept(Path(folder), 250, tuple(STATEMENTS), (0.1, 0.5, 2.0, 8.0)),
        ]


ENTRY = Entry(
    name="query-shrinkwrap",
    title="Tables cut to sizes with noise: what Shrinkwrap saves, by budget and split",
    source="the survey of federated computing, section 3.5: Shrinkwrap, Bater et al. 2018",
    run=_run,
    needs="the extra sql",
    data=(),
    quick_data=(),
)
