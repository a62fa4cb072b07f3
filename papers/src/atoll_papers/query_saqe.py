"""Answers with noise on samples: what noise a sample needs, how far answers err, and the smallest sample that an error needs.

Source: the survey of federated computing (source 000, section 3.3 and Table 21) describes SAQE (Bater et al. 2020, "SAQE: Practical Privacy-Preserving Approximate Query Processing for Data Federations"): uniform, stratified and
distinct samples, noise that hides the cardinality and perturbs the answer, a planner that balances both errors, two owners of up to 500,000 rows. Its data of hospitals cannot be had, so ours are drawn.

What differs: owners sample their own rows and add up noised sums, where the paper samples obliviously in a garbled circuit; so a sample here saves noise that nobody could use otherwise, and no secure computation. Each of the
sites adds noise that suffices alone, so the noise of two is larger by the square root of two.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from atoll.query import SqlConnection, connect
from atoll.query.sampling import count_error, find_rate, sample_epsilon
from atoll.reproduce import Claim, Entry, keeping_nothing

__all__ = ["ENTRY"]

_LAW, _ERRORS, _SAMPLERS, _WANTED, _SIZE = (
    "Noise on a sample",
    "Errors of samples",
    "Samplers",
    "A wanted error",
    "As many rows as the paper's",
)
_POLICY = {
    "policy": {"privacy": {"people": {"anna": {"epsilon": 1e6, "delta": 0.5}}}},
    "tables": {"visits": {"columns": {"ward": "public", "doctor": {"level": "private", "join": "local"}, "cost": {"level": "private", "release": "noise", "range": [0, 100]}}}},
}  # fmt: skip
_WARDS = 20


def _draw(rows: int, site: int) -> tuple[Any, Any, Any]:
    """Ward, cost and doctor of the rows of one site; wards are of very different sizes."""
    rng, odds = np.random.default_rng(site), 0.7 ** np.arange(_WARDS)
    ward = rng.choice(_WARDS, rows, p=odds / odds.sum())
    return ward, np.clip(rng.gamma(3, 10, rows), 0, 100), rng.integers(0, rows // 5, rows) * 2 + site


def _open(folder: Path, rows: int) -> SqlConnection:
    """SQL over two sites of so many rows each."""
    import duckdb

    silos = {}
    for site in range(2):
        ward, cost, doctor = _draw(rows, site)
        path = folder / f"{rows}-{site}.duckdb"
        with duckdb.connect(str(path)) as db:
            db.execute("CREATE TABLE visits AS SELECT 'w' || unnest($1) AS ward, unnest($2) AS cost, unnest($3) AS doctor", [ward.tolist(), cost.tolist(), doctor.tolist()])  # fmt: skip
        silos[f"s{site}"] = str(path)
    return connect(silos=silos, policy=_POLICY)


def _law() -> list[Claim]:
    error = count_error(10_000, 0.1, 0.5)
    noise = [rate * sample_epsilon(0.5, rate) for rate in (1.0, 0.3, 0.1, 0.01)]
    rate = find_rate(lambda q: count_error(10_000, q, 0.5), 2 * count_error(10_000, 1.0, 0.05))
    return [
        Claim("epsilon of noise on a sample of a tenth, for 0.5", 2.0132, f"{sample_epsilon(0.5, 0.1):.4f}", round(sample_epsilon(0.5, 0.1), 4) == 2.0132, "ln(1 + (e^epsilon - 1) / q)", _LAW, basis="derived"),
        Claim("standard deviation of a count of 10,000 from it", 300.06, f"{error:.2f}", round(error, 2) == 300.06, "sqrt(N (1 - q) / q + v / q^2)", _LAW, basis="derived"),
        Claim("after scaling up, a smaller sample has more noise, and never less", "sampling amplifies privacy", ", ".join(f"{one:.3f}" for one in noise), noise == sorted(noise, reverse=True), "q epsilon_s at q 1, 0.3, 0.1, 0.01: the epsilon that scaled noise is worth. So a sample saves work, and no error", _LAW, basis="derived"),
        Claim.figure("smallest sample of 10,000 rows whose error at epsilon 0.5 is twice that of all rows at 0.05", f"{rate:.2f}" if rate else "none", "where noise rules, few rows do as well as all", _LAW),
    ]  # fmt: skip


def _errors(db: SqlConnection, rows: int, runs: int) -> list[Claim]:
    made, text = [], "SELECT count(*) AS n, avg(cost) AS mean FROM visits"
    n, mean = 2 * rows, float(np.mean([_draw(rows, site)[1].mean() for site in range(2)]))
    worst, inside = 0.0, []
    for rate in (1.0, 0.3, 0.1, 0.03):
        found = [db.sql(text, strategy=f"saqe:sample={rate},edition={k}", epsilon=1.0, analyst="anna") for k in range(runs)]  # fmt: skip
        off = np.array([[row[0] - n, row[1] - mean] for (row,) in (one.rows for one in found)])
        inside += [low <= true <= high for one in found for name, true in (("n", n), ("mean", mean)) for low, high in one.approximate["intervals"][name]]  # fmt: skip
        rms = float(np.sqrt((off[:, 0] ** 2).mean()))
        predicted = math.sqrt(2 * rows * (1 - rate) / rate + found[0].privacy["noise_std"]["COUNT(*)"] ** 2)
        worst = max(worst, abs(rms / predicted - 1))
        made.append(Claim.figure(f"error of a count and of an average, a sample of {rate:g}", f"{rms:.0f}, and {np.sqrt((off[:, 1] ** 2).mean()):.2f}", f"root of the mean square of {runs} samples, epsilon 1; {2 * rows:,} rows, average {mean:.1f}", _ERRORS))  # fmt: skip
    made.append(Claim("errors are those of the formula", "sqrt(N (1 - q) / q + v / q^2)", f"off by {worst:.0%} at most", worst < 4 / math.sqrt(2 * runs), f"within four standard deviations of {runs} samples, at every rate", _ERRORS))  # fmt: skip
    part = float(np.mean(inside))
    made.append(Claim("intervals hold the true number", "95 %", f"{part:.1%}", part >= 0.92, f"at least 92 % of {len(inside)} intervals", _ERRORS))  # fmt: skip
    return made


def _samplers(db: SqlConnection, rows: int, runs: int) -> list[Claim]:
    text = "SELECT ward, count(*) AS n FROM visits GROUP BY ward ORDER BY ward"
    drawn = [_draw(rows, site) for site in range(2)]
    true = {f"w{ward}": int(n) for ward, n in enumerate(np.bincount(np.concatenate([one[0] for one in drawn])))}
    errors: dict[str, list[float]] = {"uniform": [], "stratified": []}
    for k in range(runs):
        for sampler, some in errors.items():
            found = db.sql(text, strategy=f"saqe:sample=0.1,sampler={sampler},edition={k}", epsilon=20.0, analyst="anna")  # fmt: skip
            some.append(float(np.mean([abs(n / true[ward] - 1) for ward, n in found.rows])))
    means = {name: float(np.mean(one)) for name, one in errors.items()}
    text = "SELECT count(DISTINCT doctor) AS d FROM visits"
    doctors = sum(len(np.unique(one[2])) for one in drawn)
    found = db.sql(text, strategy="saqe:sample=0.2,sampler=distinct", epsilon=2.0, analyst="anna", confidence=0.99)
    ((low, high),) = found.approximate["intervals"]["d"]
    return [
        Claim("stratified samples keep small groups", "for groups of different sizes", f"{means['stratified']:.1%}, and {means['uniform']:.1%} uniform", means["stratified"] < means["uniform"] / 2, f"mean error of {_WARDS} groups, of which each is 0.7 times as large as the one before; a sample of a tenth, epsilon 20; at most half", _SAMPLERS),
        Claim("distinct samples count different values", "for COUNT(DISTINCT)", f"{found.rows[0][0]:,} of {doctors:,}", low <= doctors <= high, f"a fifth of the values, each with all its rows; within the interval of 99 %, {low:,.0f} to {high:,.0f}", _SAMPLERS),
    ]  # fmt: skip


def _wanted(db: SqlConnection, rows: int, runs: int) -> list[Claim]:
    text, met, rates = "SELECT count(*) AS n, avg(cost) AS mean FROM visits", [], []
    n, mean = 2 * rows, float(np.mean([_draw(rows, site)[1].mean() for site in range(2)]))
    for k in range(runs):
        found = db.sql(text, strategy=f"saqe:edition=wanted{k}", epsilon=2.0, analyst="anna", error=0.05)
        met.append(abs(found.rows[0][0] / n - 1) <= 0.05 and abs(found.rows[0][1] / mean - 1) <= 0.05)
        rates.append(found.approximate["rate"])
    return [
        Claim("an error of 5 % is met", "at confidence 95 %", f"{np.mean(met):.0%} of answers", float(np.mean(met)) >= 0.9, f"count and average together; at least 90 % of {runs}, epsilon 2", _WANTED),
        Claim("the sample is smaller than all rows", "the planner balances noise and sample", f"{np.mean(rates):.1%} of {2 * rows:,} rows", float(np.mean(rates)) < 0.5, "less than half; a pilot for a tenth of epsilon chooses it", _WANTED),
    ]  # fmt: skip


@keeping_nothing("query-saqe")
def _run(quick: bool) -> list[Claim]:
    rows, runs = (5_000, 12) if quick else (25_000, 40)
    with tempfile.TemporaryDirectory(prefix="atoll-saqe-") as folder:
        with _open(Path(folder), rows) as db:
            made = [*_law(), *_errors(db, rows, runs), *_samplers(db, rows, max(2, runs // 8)), *_wanted(db, rows, max(4, runs // 4))]  # fmt: skip
        if not quick:
            with _open(Path(folder), 250_000) as db:
                start = time.perf_counter()
                found = db.sql("SELECT count(*) AS n FROM visits", strategy="saqe:sample=0.01", epsilon=1.0, analyst="anna")  # fmt: skip
                seconds = time.perf_counter() - start
            near = abs(found.rows[0][0] / 500_000 - 1) < 0.05
            made += [
                Claim("two owners of 500,000 rows in all are answered", "500,000 rows (Table 21)", f"{found.rows[0][0]:,} of 500,000", near, "a sample of 0.01; off by at most 5 %", _SIZE),
                Claim.figure("seconds of the statement, tables opened", round(seconds, 1), "both owners in one process", _SIZE),
            ]  # fmt: skip
    return made


ENTRY = Entry(
    name="query-saqe",
    title="Answers with noise on samples: SAQE's noise, samplers and planner",
    source="the survey of federated computing, section 3.3: SAQE, Bater et al. 2020",
    run=_run,
    needs="the extra sql",
    data=(),
    quick_data=(),
)
