"""Three queries of SMCQL over three hospitals, by each strategy that answers: equal to all rows in one place, and their bytes; and what slicing saves.

Source: the survey of federated computing (source 000, section 3.2 and Table 21) describes SMCQL (Bater et al. 2017, "SMCQL: Secure Querying for Federated Databases"): levels of columns, slicing, up to 1,000
rows of two owners. Its three queries are comorbidity, aspirin count and recurrent c. diff, on records of hospitals that cannot be had, so ours are drawn.

What differs: three parties compute on replicated shares where the paper has two on garbled circuits and ORAM; two hospitals garble here too, with sorting networks in place of ORAM, and three that trust nobody use Senate's way. There is no broker. A patient's number is public in the paper, which works slice by slice, and so does
`_by_patient` here; in the rest it is protected, and what a policy says of a key (``at_most``) bounds joins.
"""

from __future__ import annotations

import datetime
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from atoll.query import SqlConnection, connect
from atoll.reproduce import Claim, Entry, keeping_nothing

__all__ = ["ENTRY", "MOST", "STATEMENTS", "open_hospitals"]

MOST = 8
"""Rows of one patient in a table, of all hospitals."""
STATEMENTS = {
    "comorbidity": "SELECT diagnosis, count(*) AS n FROM diagnoses WHERE patient IN (SELECT patient FROM diagnoses WHERE diagnosis = 'c. diff') AND diagnosis <> 'c. diff' GROUP BY diagnosis ORDER BY n DESC, diagnosis LIMIT 10",
    "aspirin count": "SELECT count(DISTINCT d.patient) FROM diagnoses d JOIN medications m ON d.patient = m.patient WHERE d.diagnosis = 'heart disease' AND lower(m.medication) LIKE '%aspirin%' AND d.day <= m.day",
    "recurrent c. diff": "WITH rcd AS (SELECT patient, day, row_number() OVER (PARTITION BY patient ORDER BY day) AS r FROM diagnoses WHERE diagnosis = 'c. diff') SELECT DISTINCT a.patient FROM rcd a JOIN rcd b ON a.patient = b.patient AND b.r = a.r + 1 WHERE b.day - a.day >= 15 AND b.day - a.day <= 56",
}
"""The queries, as SMCQL's demonstration has them."""
_TOP = "SELECT patient, day FROM diagnoses ORDER BY day DESC, patient LIMIT 10"
_RANKED = "SELECT patient, day FROM diagnoses QUALIFY row_number() OVER (ORDER BY day DESC, patient) <= 10"
"""The same rows by a rank of all of them, which nobody can slice."""
_DIAGNOSES = ("c. diff", "heart disease", *(f"illness {k}" for k in range(18)))
_MEDICATIONS = ("Aspirin 100", "statin", "insulin", "baby aspirin", "heparin", "iron", "zinc", "codeine")
_ANSWERS, _OWNERS, _SLICES = "Each strategy that answers", "Owners alone", "Sliced and not"
_ALONE = 40
"""Rows of a table at each of the owners that compute by themselves. Circuits of 340 rows take gigabytes, as senate's among all strategies."""


def _draw(rows: int, seed: int) -> list[tuple[list[str], list[str]]]:
    """Lines of both tables at three hospitals. A patient has up to eight rows in each, of different days, in any of the hospitals."""
    rng, start = np.random.default_rng(seed), datetime.date(2024, 1, 1)
    slots = np.repeat(np.arange(rows * 3 // 2), MOST)
    made: list[tuple[list[str], list[str]]] = []
    taken = [rng.permutation(slots)[: 3 * rows].reshape(3, rows) for _ in range(2)]
    days = [rng.permutation(3 * rows).reshape(3, rows) * 300 // (3 * rows) for _ in range(2)]
    for site in range(3):
        lines = []
        for k, (names, odds) in enumerate(((_DIAGNOSES, [0.1, 0.1, *[0.8 / 18] * 18]), (_MEDICATIONS, [0.1, 0.3, *[0.1] * 6]))):  # fmt: skip
            drawn = rng.choice(len(names), rows, p=odds)
            lines.append([f"{patient},{names[name]},{start + datetime.timedelta(int(day))}" for patient, name, day in zip(taken[k][site], drawn, days[k][site], strict=True)])  # fmt: skip
        made.append((lines[0], lines[1]))
    return made


def open_hospitals(
    folder: Path,
    rows: int,
    *,
    unit: str = "",
    bounded: bool = True,
    seed: int = 5,
    hospitals: int = 3,
    level: str = "protected",
) -> SqlConnection:
    """SQL over three hospitals of so many rows a table, with a budget for ``anna`` that is as good as endless.

    Args:
        folder: holds their files.
        rows: rows of each table at each hospital.
        unit: the column of units; empty for rows.
        bounded: whether the policy says how many rows a patient has.
        seed: draws them.
        hospitals: how many of the three take part.
        level: of a patient's number.
    """
    silos = {}
    for site, (diagnoses, medications) in enumerate(_draw(rows, seed)[:hospitals]):
        place = folder / f"hospital{site}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "diagnoses.csv").write_text("\n".join(["patient,diagnosis,day", *diagnoses]) + "\n")
        (place / "medications.csv").write_text("\n".join(["patient,medication,day", *medications]) + "\n")
        silos[f"hospital{site}"] = str(place)
    patient: dict[str, Any] = {"level": level, **({"at_most": MOST} if bounded else {})}
    table = {"unit": unit} if unit else {}
    policy = {
        "policy": {"min_count": 1, "enclave": {"simulated": True}, "privacy": {"people": {"anna": {"epsilon": 1e6, "delta": 0.5}}}},
        "tables": {
            "diagnoses": {**table, "columns": {"patient": patient, "diagnosis": "protected", "day": "protected"}},
            "medications": {**table, "columns": {"patient": patient, "medication": "protected", "day": "protected"}},
        },
    }  # fmt: skip
    return connect(silos=silos, policy=policy)


def _answered(folder: Path, rows: int) -> list[Claim]:
    made, fewest = [], sys.maxsize
    for name, text in STATEMENTS.items():
        with open_hospitals(folder, rows) as db:
            tried = db.try_strategies(text, check=True, epsilon=2.0, delta=1e-4, analyst="anna")
        answered = {one: row for one, row in tried.items() if row["answered"]}
        fewest = min(fewest, len(answered))
        wrong = [one for one, row in answered.items() if row["equal"] is False]
        good = not wrong and answered.get("smcql", {}).get("equal") is True
        made.append(Claim(f"{name}: answers are those of all rows in one place", "exact", f"{', '.join(answered)}: {'equal' if good else f'unequal: {wrong}'}", good, f"DuckDB on the union; 3 hospitals, {rows} rows a table each; every strategy is asked, shrinkwrap with epsilon 2, opaque in a simulated enclave", _ANSWERS))  # fmt: skip
        made += [Claim.figure(f"{name}, {one}: MB", round(row["bytes"] / 1e6, 2), "of all parties, each byte between sites counts up and down", _ANSWERS) for one, row in answered.items()]  # fmt: skip
    made.append(Claim("five strategies or more answer each of the three", "5", f"{fewest} at least", fewest >= 5, f"3 hospitals, {rows} rows a table each", _ANSWERS))  # fmt: skip
    made.append(Claim("three owners of 1,000 rows in all are answered", "two owners, 1,000 rows (Table 21)", f"three owners, {3 * rows:,} rows a table", 3 * rows >= 1000 or None, "Table 21 gives what the paper's experiments had; the quick form has fewer rows", _ANSWERS))  # fmt: skip
    return made


def _alone(folder: Path) -> list[Claim]:
    """The same by owners without three parties: two by a garbled circuit, three of whom two may cheat."""
    made = []
    for hospitals, strategy, who in ((2, "smcql:mode=garbled", "two owners, garbled"), (3, "senate", "three owners, senate")):  # fmt: skip
        with open_hospitals(folder / strategy, _ALONE, hospitals=hospitals) as db:
            for name, text in STATEMENTS.items():
                found = db.sql(text, strategy=strategy)
                equal = db.check(found)
                made.append(Claim(f"{name}, {who}: the answer is that of all rows in one place", "exact", f"{'equal' if equal else 'unequal'}, {found.bytes / 1e6:.0f} MB", equal is True, f"{_ALONE} rows a table each; predicted to {max(0.001, abs(found.predicted / found.bytes - 1)):.1%}", _OWNERS))  # fmt: skip
    return made


def _sliced(folder: Path, rows: int) -> list[Claim]:
    with open_hospitals(folder, rows) as db:
        sliced, whole = db.sql(_TOP, strategy="smcql"), db.sql(_RANKED, strategy="smcql")
    same = sorted(sliced.rows) == sorted(whole.rows)
    found = [
        Claim("the first ten rows are the same, sliced or not", "equal", "equal" if same else "unequal", same, "sorted at each owner first, and by a rank of all rows under shares", _SLICES),
        Claim("slicing: owners sort in plaintext first, so that m k rows are sorted under shares in place of all", "m k rows", f"{sliced.bytes / 1e6:.2f} MB, and {whole.bytes / 1e6:.2f} MB unsliced", sliced.bytes < whole.bytes / 2, f"3 owners, k 10, {rows} rows each; at most half of the bytes", _SLICES),
    ]  # fmt: skip
    text = STATEMENTS["recurrent c. diff"]
    spent = []
    for bounded in (True, False):
        with open_hospitals(folder, min(rows, 40), bounded=bounded) as db:
            result = db.sql(text, strategy="smcql")
            spent.append((db.check(result), result.bytes))
    both = all(equal for equal, _ in spent)
    return [*found, Claim(f"a key of at most {MOST} rows keeps the join of recurrent c. diff small", "slices by patient", f"{spent[0][1] / 1e6:.1f} MB, and {spent[1][1] / 1e6:.1f} MB without", both and spent[0][1] < spent[1][1] / 2, f"3 owners, {min(rows, 40)} rows each; equal answers, at most half of the bytes. The paper joins within slices of public patient numbers", _SLICES)]  # fmt: skip


def _by_patient(folder: Path, rows: int) -> list[Claim]:
    """The paper's own setting: a patient's number is public, and the plan is sliced by it. Three parties have no other bound of joins; two garble, whose circuit would else hold all pairs of rows."""
    made = []
    three = (3, False, "", "", "no bound of a key; both equal to DuckDB on the union; sites name patients and their rows, and compute alone whom no other site has")  # fmt: skip
    two = (2, True, "mode=garbled,", ", two owners, garbled", f"at most {MOST} rows of a patient; both equal to DuckDB on the union")  # fmt: skip
    for hospitals, bounded, mode, who, note in (three, two):
        with open_hospitals(folder / str(hospitals), rows, bounded=bounded, level="public", hospitals=hospitals) as db:
            for name, text in STATEMENTS.items():
                sliced, whole = (db.sql(text, strategy=f"smcql:{mode}slices={way}") for way in ("public", "none"))
                equal = all(db.check(one) for one in (sliced, whole))
                made.append(Claim(f"{name}, public patients{who}: slices give the same answer for fewer bytes", "sliced by patient", f"{sliced.bytes / 1e6:.1f} MB, and {whole.bytes / 1e6:.1f} MB unsliced", equal is True and sliced.bytes < whole.bytes, f"{hospitals} owners, {rows} rows a table each, {note}", _SLICES))  # fmt: skip
    return made


@keeping_nothing("query-smcql")
def _run(quick: bool) -> list[Claim]:
    rows = 40 if quick else 340
    with tempfile.TemporaryDirectory(prefix="atoll-smcql-") as folder:
        return [
            *_answered(Path(folder), rows),
            *_alone(Path(folder)),
            *_sliced(Path(folder), rows),
            *_by_patient(Path(folder) / "public", min(rows, 40)),
        ]


ENTRY = Entry(
    name="query-smcql",
    title="Queries over hospitals that share no rows: SMCQL's three, by each strategy",
    source="the survey of federated computing, section 3.2: SMCQL, Bater et al. 2017",
    run=_run,
    needs="the extra sql",
    data=(),
    quick_data=(),
)
