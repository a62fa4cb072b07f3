"""Rows that a fit or trees leave out, and rows that have none of a column's values, are said in the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll.fitting import GLM, Cox, Fit, KMeans
from atoll.report import write_report
from atoll.runtime.worker.cards import DataCard, RemoteIslands
from atoll.trees import Trees


def ward(seed: int, rows: int = 60) -> pd.DataFrame:
    r = np.random.default_rng(seed)
    made = pd.DataFrame(
        {"age": r.normal(size=rows), "ward": r.choice(["a", "b"], rows), "y": r.choice(["no", "yes"], rows)}
    )
    made["time"], made["event"] = r.exponential(9, rows).round(2), r.integers(0, 2, rows).astype(float)
    made.loc[:4, "y"] = ""
    made.loc[10:12, "ward"] = "" if seed else made.ward[9]
    made.loc[20:20, "time"] = np.nan
    return made


TABLES = {"north": ward(0), "south": ward(1)}
COLUMNS = {"columns": ["age", "ward"]}


def notices(job: Any, data: Any = TABLES) -> list[str]:
    return list(atoll.simulate(job, data, engine="inline", progress=False).notices)


def test_a_fit_says_which_rows_it_left_out_and_which_have_no_value() -> None:
    bare = "3 of 120 rows have none of the values of ward: all of its columns are 0 there"
    lost = "10 of 120 rows were left out: y is missing there, or has a value that was not agreed on"
    assert notices(Fit(model=GLM(alpha=1.0), label="y", **COLUMNS)) == [lost, bare]
    assert notices(Fit(model=KMeans(clusters=2), **COLUMNS)) == [bare]
    assert notices(Fit(model=KMeans(clusters=2), columns=["age"])) == []
    (told,) = notices(Fit(model=Cox(), columns=["age"]))
    assert told.startswith("2 of 120 rows were left out: time or event is missing there")


@pytest.mark.slow
def test_the_report_says_so_too(tmp_path: Path) -> None:
    result = atoll.simulate(
        Fit(model=KMeans(clusters=2), **COLUMNS), TABLES, engine="inline", progress=False, folder=tmp_path / "run"
    )
    for source in (result, tmp_path / "run"):
        page = write_report(source, tmp_path / "report.html").read_text(encoding="utf-8")
        assert "What to know of this result" in page
        assert f"<li>{result.notices[0]}</li>" in page


def test_trees_say_how_many_rows_have_no_label() -> None:
    data = atoll.data.from_dataframes(TABLES, target="y", features=["age"])
    assert notices(Trees(rounds=1), data) == ["10 of 120 rows were left out: they have no label"]
    whole = {name: table[table.y != ""] for name, table in TABLES.items()}
    assert notices(Trees(rounds=1), atoll.data.from_dataframes(whole, target="y", features=["age"])) == []


@pytest.mark.parametrize(("quorum", "said"), [(None, ["10 of 120 rows were left out"]), (1, [])])
def test_between_sites_the_counts_of_rows_tell(quorum: int | None, said: list[str]) -> None:
    """A party that a quorum let go is no missing label."""
    job = Fit(model=GLM(alpha=1.0), label="y", quorum=quorum, **COLUMNS)
    value = atoll.simulate(job, TABLES, engine="inline", progress=False).outcome
    card = DataCard("unlabelled", {})
    prepared = job.prepare(RemoteIslands(["north", "south"], [60, 60], card))
    prepared.outcome(value)
    assert [line.partition(":")[0] for line in prepared.notices([])] == said


def test_what_a_fit_notes_of_its_numbers_is_among_the_notices_of_its_result() -> None:
    """The oracle of the rank is `numpy.linalg.matrix_rank` of the centred columns; the classes are separated by ``odd`` as they are made."""
    draw = np.random.default_rng(0)
    age, died = draw.normal(60, 9, 60).round(1), np.tile([0, 1], 30)
    doubled = pd.DataFrame({"age": age, "again": age, "y": draw.integers(0, 2, 60)})
    assert np.linalg.matrix_rank(doubled[["age", "again"]] - doubled[["age", "again"]].mean()) == 1
    odd = pd.DataFrame({"age": age, "odd": died, "y": died})
    for table, said in ((doubled, "age, again depend on each other"), (odd, "separates the rows")):
        halves = {"north": table[:40], "south": table[40:]}
        result = atoll.simulate(Fit(model=GLM(alpha=0.0), label="y"), halves, engine="inline", progress=False)
        assert sum(said in notice for notice in result.notices) == 1
        assert said in str(result)


def test_new_rows_without_a_column_are_told_what_the_model_was_trained_on() -> None:
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"age": draw.normal(60, 9, 60), "dose": draw.normal(size=60), "y": np.tile([0, 1], 30)})
    model = atoll.simulate(Fit(model=GLM(alpha=1.0), label="y"), {"a": table[:40], "b": table[40:]}, engine="inline", progress=False).outcome  # fmt: skip
    for verb in (model.predict, model.predict_proba):
        with pytest.raises(atoll.AtollError, match=r"no column 'age'. Did you mean 'AGE'\?") as refused:
            verb(table.rename(columns={"age": "AGE"}))
        assert "trained on age, dose" in refused.value.remedy
