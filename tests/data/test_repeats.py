"""Rows that stand twice among clients and test rows are said, and rows that are alike by chance are not. The oracle is `pandas.merge` on all columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll.data import Dataset, Islands, from_csv_files, from_csv_folder, from_dataframes
from atoll.data.repeats import name_repeated_rows
from atoll.fitting import GLM, Fit
from atoll.secure.psi import Alignment, Ecdh
from atoll.statistics import Statistics
from atoll.trees import Trees


def table(rows: int, seed: int) -> pd.DataFrame:
    r = np.random.default_rng(seed)
    made = pd.DataFrame({"age": r.normal(50, 9, rows), "visits": r.integers(0, 9, rows), "ward": r.choice(list("ab"), rows)})  # fmt: skip
    return made.assign(y=(made.age > 50).astype(int))


def merged(one: pd.DataFrame, other: pd.DataFrame) -> int:
    return len(one.merge(other.drop_duplicates(), how="inner"))


NORTH, SOUTH, EAST = table(40, 0), table(40, 1), table(25, 2)
COPY = NORTH.sample(frac=1, random_state=0)[NORTH.columns[::-1]]
TWICE = (
    "clients 'north' and 'copy' have the same 40 rows, and each row counts twice: is one table given under two names?"
)
FRAMES = {"north": NORTH, "south": SOUTH, "copy": COPY}


def _said(result: Any) -> list[str]:
    return [line for line in result.notices if "rows" in line and ("twice" in line or "equal rows" in line)]


def _run(job: Any, data: Any) -> list[str]:
    return _said(atoll.simulate(job, data, engine="inline", progress=False))


TRAINING = atoll.Training(model=atoll.models.linear(3, 2), algorithm=atoll.FedAvg(lr=1e-3), rounds=1)
JOBS = {
    "training": TRAINING,
    "statistics": Statistics(),
    "fit": Fit(model=GLM(alpha=1.0), label="y", columns=["age", "visits"]),
    "trees": Trees(rounds=1),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_table_given_under_two_names_is_said_by_every_kind_of_job(job: str) -> None:
    assert merged(NORTH, COPY) == 40
    assert merged(NORTH, SOUTH) == 0
    assert _run(JOBS[job], FRAMES) == [TWICE]
    assert _run(JOBS[job], {"north": NORTH, "south": SOUTH}) == []


READERS: dict[str, Callable[[Path], Any]] = {
    "from_csv_files": lambda d: from_csv_files([d / f"{name}.csv" for name in FRAMES], target="y"),
    "from_csv_folder": lambda d: from_csv_folder(d, target="y"),
    "from_dataframes": lambda _: from_dataframes(FRAMES, target="y"),
    "columns": lambda _: from_dataframes(FRAMES, target="y").subset(["copy", "south", "north"]),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_leads_to_it(reader: str, tmp_path: Path) -> None:
    for name, frame in FRAMES.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    (line,) = name_repeated_rows(READERS[reader](tmp_path))
    assert sorted(line.split("'")[1:4:2]) == ["copy", "north"]
    assert "same 40 rows" in line


def test_a_client_whose_rows_another_has_too_is_said() -> None:
    part = NORTH.head(15)
    assert merged(part, NORTH) == 15
    (line,) = name_repeated_rows(from_dataframes({"north": NORTH, "part": part, "south": SOUTH}, target="y"))
    assert line == "all of the 15 rows of client 'part' are also rows of 'north', and count twice"
    most = pd.concat([NORTH.head(19), EAST.head(1)])
    (line,) = name_repeated_rows(from_dataframes({"most": most, "north": NORTH}, target="y"))
    assert line.startswith("19 of the 20 rows of client 'most'")
    half = pd.concat([NORTH.head(10), EAST.head(10)])
    assert name_repeated_rows(from_dataframes({"half": half, "north": NORTH}, target="y")) == []


def test_test_rows_that_clients_train_on_are_said() -> None:
    clients = {"north": NORTH, "south": SOUTH}
    (line,) = name_repeated_rows(from_dataframes(clients, target="y", test=SOUTH))
    assert line.startswith("40 of 40 test rows equal rows of the training")
    (line,) = name_repeated_rows(from_dataframes(clients, target="y", test={"north": EAST, "south": SOUTH.head(12)}))
    assert line.startswith("12 of 12 rows held out by 'south' equal")
    assert name_repeated_rows(from_dataframes(clients, target="y", test=EAST)) == []
    assert name_repeated_rows(from_dataframes(clients, target="y", test=0.3)) == []


def test_a_copy_is_found_behind_the_rows_that_clients_hold_out() -> None:
    lines = name_repeated_rows(from_dataframes(FRAMES, target="y", test=0.25))
    assert lines[0] == TWICE


def test_rows_alike_by_chance_are_not_said() -> None:
    """Two clients with all combinations of few values have equal rows without being copies."""
    r = np.random.default_rng(3)
    coarse = {n: pd.DataFrame({"a": r.integers(0, 2, m), "b": r.integers(0, 2, m), "y": r.integers(0, 2, m)}) for n, m in (("x", 30), ("z", 60))}  # fmt: skip
    assert merged(coarse["x"], coarse["z"]) == 30
    assert name_repeated_rows(from_dataframes(coarse, target="y")) == []
    assert name_repeated_rows(from_dataframes({n: f.head(1) for n, f in FRAMES.items()}, target="y")) == []


def test_values_decide_and_not_how_they_are_written() -> None:
    """0 and -0, a missing value and another, whole numbers and fractions of the same value are one; columns that change places are not."""
    x = np.array([[-0.0, 1.0], [np.nan, 2.0], *[[k, k + 0.5] for k in range(9)]])
    same = {"a": x, "b": np.where(x == 0, 0.0, x)}
    assert np.array_equal(same["a"], same["b"], equal_nan=True)

    def islands(**values: Any) -> Islands:
        return Islands.from_datasets({n: Dataset({"x": v}, missing_features=True) for n, v in values.items()})

    assert len(name_repeated_rows(islands(**same))) == 1
    assert name_repeated_rows(islands(a=x, b=x[:, ::-1])) == []


def test_parties_that_match_keys_may_have_the_same_rows() -> None:
    keys = pd.DataFrame({"id": [f"p{k}" for k in range(12)]})
    assert _run(Alignment(protocol=Ecdh()), {"a": keys, "b": keys.copy()}) == []


def test_rows_of_one_data_set_are_not_looked_at() -> None:
    """A partition gives each row to one client; rows that are alike there are alike in the data."""
    rows = Dataset({"x": np.repeat(np.arange(40.0), 2)[:, None], "y": np.zeros(80, np.int64)})
    assert name_repeated_rows(Islands.from_owner(rows, np.tile([0, 1], 40), 2)) == []


def test_a_file_joined_to_itself_is_said_and_single_equal_rows_are_not() -> None:
    joined = {"north": pd.concat([NORTH, COPY]).sample(frac=1, random_state=1), "south": SOUTH}
    said = "each of the 40 different rows of client 'north' stands 2 times, and counts as often: was a file joined to itself?"
    assert merged(joined["north"], NORTH) == 80  # each row of the file is there twice
    assert name_repeated_rows(from_dataframes(joined, target="y")) == [said]
    assert said in name_repeated_rows(from_dataframes(joined, target="y", test=0.25))
    assert name_repeated_rows(from_dataframes({"north": joined["north"]}, target="y")) == [said]
    some = pd.concat([NORTH, NORTH.head(30)])
    assert name_repeated_rows(from_dataframes({"north": some, "south": SOUTH}, target="y")) == []
    few = pd.concat([NORTH.head(9)] * 2)
    assert name_repeated_rows(from_dataframes({"north": few, "south": SOUTH}, target="y")) == []
