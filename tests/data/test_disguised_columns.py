"""Columns that are no features and no numbers: dates, keys, and numbers in another notation. One rule for every reader and job."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll.core.errors import DataError
from atoll.data import DataTable, from_csv_files, from_dataframes, read_csv
from atoll.fitting import GLM, Fit
from atoll.statistics import Statistics

ROWS = 40
DAYS = pd.date_range("2026-01-01", periods=ROWS)


def frame(**more: Any) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    return pd.DataFrame({"age": draw.normal(60, 9, ROWS), **more, "died": draw.integers(0, 2, ROWS)})


def fitted(table: Any, **more: Any) -> Any:
    return atoll.simulate(Fit(model=GLM(alpha=1.0), label="died", **more), {"north": table}, engine="inline", progress=False)  # fmt: skip


USES: dict[str, Callable[[Path], Any]] = {
    "fit": lambda file: fitted(DataTable.read(file)),
    "files": lambda file: from_csv_files([file], target="died"),
    "frames": lambda file: from_dataframes({"north": _frame_of(file)}, target="died"),
}


def _frame_of(file: Path) -> pd.DataFrame:
    return pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file)


MOMENTS = {
    "ISO text": DAYS.strftime("%Y-%m-%d"), "with time": DAYS.strftime("%Y-%m-%dT07:30"), "German": DAYS.strftime("%d.%m.%Y"), "NumPy's": DAYS,
    "days": [day.date() for day in DAYS], "of a zone": DAYS.tz_localize("Europe/Oslo"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MOMENTS)
def test_dates_are_no_features_anywhere(tmp_path: Path, kind: str) -> None:
    table = frame(admitted=MOMENTS[kind])
    file = tmp_path / ("rows.csv" if isinstance(MOMENTS[kind], pd.Index) and table.admitted.dtype.kind in "OTU" else "rows.parquet")  # fmt: skip
    if file.suffix == ".csv":
        table.to_csv(file, index=False)
    else:
        table.to_parquet(file, index=False)
    for use in USES.values():
        with pytest.raises(DataError, match=r"column 'admitted' has dates or times, such as «.*days since a day"):
            use(file)
    # The remedies: other columns, or a number.
    assert fitted(DataTable.read(file), columns=["age"]).outcome.layout.features == ("age",)
    assert len(from_csv_files([file], target="died", drop=["admitted"]).about.features) == 1
    with pytest.raises(DataError, match="has dates or times"):  # also where somebody chose it
        fitted(DataTable.read(file), columns=["admitted"])


def test_dates_are_the_same_moments_in_text_and_in_parquet(tmp_path: Path) -> None:
    frame(admitted=DAYS.strftime("%Y-%m-%d")).to_csv(tmp_path / "a.csv", index=False)
    frame(admitted=[None, *DAYS.date[1:]]).to_parquet(tmp_path / "b.parquet")
    tables = {name: DataTable.read(tmp_path / name) for name in ("a.csv", "b.parquet")}
    told = atoll.simulate(Statistics(columns=["admitted"]), tables, engine="inline", progress=False).outcome
    first, last = (pd.Timestamp(day).timestamp() for day in ("2026-01-01", "2026-02-09"))
    assert (told.whole["admitted"].min, told.whole["admitted"].max) == (first, last)
    assert (told.sites["b.parquet"]["admitted"].missing, told.sites["a.csv"]["admitted"].count) == (1, ROWS)


KEYS = {
    "patient_id": np.arange(5000, 5000 + ROWS), "row": np.arange(ROWS), "name": [f"person {k}" for k in range(ROWS)],
    "case_key": [None, *range(7000, 7000 + 3 * ROWS - 3, 3)],
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_no_features_unless_somebody_chooses_them(tmp_path: Path, name: str) -> None:
    frame(**{name: KEYS[name]}).to_csv(tmp_path / "rows.csv", index=False)
    for use, job in USES.items():
        if name == "case_key" and use != "fit":  # a missing value is refused first
            continue
        with pytest.raises(DataError, match=rf"column '{name}' (looks like a key|numbers the rows|has another text)"):
            job(tmp_path / "rows.csv")
    if name == "patient_id":
        assert fitted(DataTable.read(tmp_path / "rows.csv"), columns=["age", name]).outcome.layout.features == (
            "age",
            name,
        )
        assert from_csv_files([tmp_path / "rows.csv"], target="died", drop=[name]).about.features == ("age",)


def european(value: float) -> str:
    return f"{value:,.2f}".replace(",", "_").replace(".", ",").replace("_", ".")


NUMBERS = {  # how they are written, the decimal sign that is given, and what is said
    "points": ([f"{1000 + 37 * k:,}".replace(",", ".") for k in range(ROWS)], ",", "a point, as text, such as «1.000» at row 2"),
    "points and commas": ([european(1000.5 + 37 * k) for k in range(ROWS)], ",", "a point between thousands, such as «1.000,50» at row 2"),
    "commas": ([f"{1000 + 37 * k:,}" for k in range(ROWS)], ".", "a comma, such as «1,000» at row 2"),
    "decimal commas": ([f"{k},5" for k in range(ROWS)], ".", "a comma, such as «0,5» at row 2"),
    "percent": ([f"{k}%" for k in range(ROWS)], ".", "a percent sign, such as «0%» at row 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_in_another_notation_are_neither_other_numbers_nor_categories(tmp_path: Path, case: str) -> None:
    written, decimal, said = NUMBERS[case]
    rows = frame(cost=written)
    form = {"delimiter": ";", "decimal": decimal}
    rows.assign(age=rows.age.round(1).astype(str).str.replace(".", decimal)).to_csv(tmp_path / "rows.csv", sep=";", index=False)  # fmt: skip
    table = DataTable.read(tmp_path / "rows.csv", **form)
    assert table["age"].dtype.kind == "f"
    jobs: list[Callable[[], Any]] = [
        lambda: fitted(table),
        lambda: from_csv_files([tmp_path / "rows.csv"], target="died", **form),
        lambda: read_csv(tmp_path / "rows.csv", target="died", features=["age", "cost"], **form),
        lambda: atoll.simulate(Statistics(), {"north": table}, engine="inline", progress=False),
    ]
    for job in jobs:
        with pytest.raises(DataError, match=f"column 'cost' has numbers with {said}"):
            job()


def test_a_decimal_comma_reads_what_has_no_point(tmp_path: Path) -> None:
    """A column that nobody uses does not matter, and three decimals behind a comma are decimals."""
    (tmp_path / "rows.csv").write_text("a;b;c\n1,125;1.000;1000\n2;2.000;2000\n")
    table = DataTable.read(tmp_path / "rows.csv", delimiter=";", decimal=",")
    assert (table["a"].tolist(), table["b"].tolist(), table["c"].tolist()) == (
        [1.125, 2.0],
        ["1.000", "2.000"],
        [1000, 2000],
    )


def test_a_line_of_totals_is_named(tmp_path: Path) -> None:
    rows = frame().astype({"age": object})
    pd.concat([rows, pd.DataFrame({"age": ["Total"], "died": [20]})]).to_csv(tmp_path / "rows.csv", index=False)
    for use in ("fit", "files"):
        with pytest.raises(DataError, match=rf"column 'age' has numbers, but «Total» at row {ROWS + 2}.*totals"):
            USES[use](tmp_path / "rows.csv")


def test_decimals_of_parquet_and_frames_are_numbers(tmp_path: Path) -> None:
    exact = frame().assign(age=[Decimal("59.25"), None, *[Decimal(k) for k in range(ROWS - 2)]])
    exact.to_parquet(tmp_path / "rows.parquet")
    for table in (DataTable.read(tmp_path / "rows.parquet"), DataTable.of(exact)):
        assert (table["age"][0], table["age"].dtype) == (59.25, np.float64)
        assert table.missing("age").tolist() == [False, True, *[False] * (ROWS - 2)]
    moments = pd.DataFrame({"at": [datetime.datetime(2026, 1, 1, 7, 30)] * 2})
    assert DataTable.of(moments.astype(object))["at"].dtype.kind == "M"
    zone = DataTable.of(pd.DataFrame({"at": pd.to_datetime(["2026-01-01 01:00"]).tz_localize("Europe/Oslo")}))
    assert zone["at"].astype("datetime64[m]").tolist() == [datetime.datetime(2026, 1, 1, 0, 0)]
