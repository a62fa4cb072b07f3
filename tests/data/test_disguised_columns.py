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
from atoll.data.readers.table import require_no_key
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
    # One repeated value changes nothing, whatever the name's style.
    **{name: [7000, *range(7000, 7000 + 3 * ROWS - 3, 3)] for name in ("PatientID", "MRN", "case_no", "pid", "Pat-Nr.", "Fallnummer", "patient", "subjectid")},
    "note": ["same", "same", *(f"text {k}" for k in range(ROWS - 2))],
    "patient id": [7000 + 11 * (k // 2) for k in range(2 * 20)],  # each came twice
}  # fmt: skip


def test_amounts_and_codes_are_no_keys() -> None:
    draw = np.random.default_rng(1)
    columns = {"number": draw.integers(0, 30, 90), "ward_id": draw.integers(0, 6, 90), "pain_index": draw.integers(0, 101, 90), "cost": draw.permutation(90) * 7, "Fall": draw.permutation(90), "patients": draw.permutation(90) + 50, "resident": draw.permutation(90), "year": np.arange(1930, 2020)}  # fmt: skip
    for name, values in columns.items():
        require_no_key(values, name, "table", "leave it out")


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_no_features_unless_somebody_chooses_them(tmp_path: Path, name: str) -> None:
    frame(**{name: KEYS[name]}).to_csv(tmp_path / "rows.csv", index=False)
    for use, job in USES.items():
        if name == "case_key" and use != "fit":  # a missing value is refused first
            continue
        with pytest.raises(DataError, match=rf"column '{name}' (looks like a key|numbers the rows|has another text)"):  # fmt: skip
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
    "blanks": ([f"{900 + 37 * k:,}".replace(",", " ") for k in range(ROWS)], ".", "a blank between thousands, such as «1 011» at row 5"),
    "hard blanks": ([f"{900 + 37 * k:,}".replace(",", "\u202f") for k in range(ROWS)], ",", "a blank between thousands, such as «1.*011» at row 5"),
    "apostrophes": ([f"{1000 + 37 * k:,}.50".replace(",", "'") for k in range(ROWS)], ".", "an apostrophe between thousands, such as «1'000.50» at row 2"),
    "underlines": ([f"{1000 + 37 * k:_}" for k in range(ROWS)], ".", "an underline between thousands, such as «1_000» at row 2"),
    "currency": ([f"€ {1000 + 37 * k:,}" for k in range(ROWS)], ".", "a unit or a currency, such as «€ 1,000» at row 2"),
    "currency behind": ([f"{k},50 CHF" for k in range(ROWS)], ",", "a unit or a currency, such as «0,50 CHF» at row 2"),
    "unit": ([f"{50 + k} kg" if k % 2 else str(50 + k) for k in range(ROWS)], ".", "a unit or a currency, such as «51 kg» at row 3"),
    "units": ([f"{k}.5 mg/dL" if k % 2 else f"{k} mmol/l" for k in range(ROWS)], ".", "a unit or a currency, such as «0 mmol/l» at row 2"),
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


@pytest.mark.parametrize("codes", [["2a", "3a", "2b"], ["grade 1", "grade 2"], ["T1", "T2"], ["1c", "2c"], ["I10", "E11"], ["60m", "55f"], ["a_1", "a_2"]])  # fmt: skip
def test_codes_are_no_amounts(codes: list[str]) -> None:
    table = DataTable({"stage": np.resize(codes, ROWS)})
    told = atoll.simulate(Statistics(), {"north": table}, engine="inline", progress=False).outcome
    assert sorted(told.whole["stage"].values) == sorted(codes)


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


SMOKERS = {"Parquet": bool, "Python": str, "R": lambda one: str(one).upper(), "JSON": lambda one: str(one).lower(), "numbers": int}  # fmt: skip


@pytest.mark.parametrize("written", SMOKERS)
def test_truth_values_have_one_coding_however_a_site_writes_them(tmp_path: Path, written: str) -> None:
    draw = np.random.default_rng(3)
    tables = [frame(smoker=draw.random(ROWS) < 0.4).assign(died=draw.integers(0, 2, ROWS)) for _ in "ab"]
    files = [tmp_path / "a.parquet", tmp_path / "b.csv"]
    tables[0].to_parquet(files[0])
    tables[1].assign(smoker=tables[1].smoker.map(SMOKERS[written])).to_csv(files[1], index=False)
    read = {file.name: DataTable.read(file) for file in files}
    whole = pd.concat(tables)
    stats = atoll.simulate(Statistics(columns=["age"], by=["smoker"], where=[["smoker", "in", [0, 1]]]), read, engine="inline", progress=False)  # fmt: skip
    if written != "numbers":
        assert {label: one["age"].count for label, one in stats.outcome.groups["smoker"].items()} == whole.smoker.map(str).value_counts().to_dict()  # fmt: skip
        some = atoll.simulate(Statistics(columns=["age"], where=[["smoker", "==", "true"]]), read, engine="inline", progress=False)  # fmt: skip
        assert some.outcome.whole["age"].mean == pytest.approx(whole[whole.smoker].age.mean(), rel=1e-12)
    told = atoll.simulate(Statistics(columns=["smoker"]), read, engine="inline", progress=False).outcome
    assert told.whole["smoker"].mean == whole.smoker.mean()
    job = Fit(model=GLM(alpha=1.0), label="died", columns=["age", "smoker"])
    plain = {str(k): table.assign(smoker=table.smoker.astype(float)) for k, table in enumerate(tables)}
    found, right = (atoll.simulate(job, data, engine="inline", progress=False).outcome for data in (read, plain))
    np.testing.assert_array_equal(found["coef"], right["coef"])
    assert found.table_model().predict_proba(files[1]).shape == (ROWS, 2)  # the words that the file has
    grown = from_csv_files(files, target="died")
    rows = np.concatenate([grown.shard(k)["x"][:, grown.about.features.index("smoker")] for k in (0, 1)])
    np.testing.assert_array_equal(rows, whole.smoker.astype(float))


DATES = {
    "no such day": ([*DAYS.strftime("%Y-%m-%d")[:-1], "2026-02-30"], "«2026-02-30» at row 41"),
    "two notations": ([*DAYS.strftime("%Y-%m-%d")[:20], *DAYS.strftime("%d.%m.%Y")[20:]], "«21.01.2026» at row 22"),
    "German": ([*DAYS.strftime("%d.%m.%Y")], "«01.01.2026» at row 2"), "a word": ([*DAYS.strftime("%Y-%m-%d")[:-1], "unknown"], "«unknown» at row 41"),
}  # fmt: skip


@pytest.mark.parametrize("case", DATES)
def test_statistics_name_the_value_that_is_no_date(tmp_path: Path, case: str) -> None:
    written, said = DATES[case]
    frame(admitted=written).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataError, match=f"column 'admitted' .*{said}"):
        atoll.simulate(Statistics(), {"north": DataTable.read(tmp_path / "rows.csv")}, engine="inline", progress=False)


def test_a_value_below_the_limit_of_detection_is_named_by_statistics_too() -> None:
    table = DataTable({"lab": ["<0.1", *(f"{k / 10}" for k in range(ROWS - 1))]}, row_offset=2)
    with pytest.raises(DataError, match=r"column 'lab' has numbers, but «<0\.1» at row 2"):
        atoll.simulate(Statistics(), {"north": table}, engine="inline", progress=False)
    listed = Statistics(categories={"lab": ["<0.1", "0.5"]})
    assert atoll.simulate(listed, {"north": table}, engine="inline", progress=False).outcome.whole["lab"].count == ROWS


def test_weeks_begin_on_mondays_and_moments_in_utc_may_end_with_a_z() -> None:
    days = pd.date_range("1999-12-20", periods=800, freq="53h")
    table = {"age": np.arange(800.0), "admitted": np.array(days.strftime("%Y-%m-%dT%H:%M:%SZ"), dtype=np.str_)}
    told = atoll.simulate(Statistics(columns=["age"], over="admitted", period="week"), {"a": DataTable(table)}, engine="inline", progress=False)  # fmt: skip
    found = {week: one["age"].count for week, one in told.outcome.groups["admitted"].items()}
    mondays = (days.normalize() - pd.to_timedelta(days.day_of_week, unit="D")).strftime("%Y-%m-%d")
    assert found == mondays.value_counts().to_dict()
    assert np.datetime64("2026-11-23", "D").item().isoweekday() == 1


def test_a_condition_on_a_column_that_one_site_did_not_fill_is_met_by_none_of_its_rows() -> None:
    tables = {"north": DataTable({"age": [50.0, 70.0]}), "south": DataTable({"age": ["", ""]})}
    told = atoll.simulate(Statistics(where=[["age", ">", 60.0]]), tables, engine="inline", progress=False)
    assert told.outcome.whole["age"].count == 1


def test_a_column_of_a_file_that_nobody_reads_does_not_block_the_others(tmp_path: Path) -> None:
    table = frame(visit=[datetime.time(8, 30)] * ROWS, codes=[["a"]] * ROWS)
    table.to_parquet(tmp_path / "rows.parquet")
    read = DataTable.read(tmp_path / "rows.parquet").named("north")
    told = atoll.simulate(Statistics(columns=["age"]), {"north": read}, engine="inline", progress=False).outcome
    assert told.whole["age"].mean == pytest.approx(table.age.mean(), rel=1e-12)
    two = {"north": read, "south": DataTable.read(tmp_path / "rows.parquet").named("south")}
    told = atoll.simulate(Statistics(columns=["age"]), two, engine="inline", progress=False)
    assert told.outcome.whole["age"].mean == pytest.approx(table.age.mean(), rel=1e-12)
    assert any("the same" in line for line in told.notices)
    assert fitted(read, columns=["age"]).outcome.layout.features == ("age",)
    assert read.without(["visit", "codes"]).columns == ("age", "died")
    for use in (lambda: atoll.simulate(Statistics(), {"north": read}, engine="inline", progress=False), lambda: read["visit"]):  # fmt: skip
        with pytest.raises(DataError, match=r"column 'visit' holds objects \(time\).*leave the column out"):
            use()


@pytest.mark.parametrize("use", ["fit", "files"])
def test_whole_numbers_that_begin_with_zeros_are_no_amounts_and_keep_them_as_categories(
    tmp_path: Path, use: str
) -> None:
    file = tmp_path / "rows.csv"
    frame(town=np.resize(["01067", "10115", "80331"], ROWS)).to_csv(file, index=False)
    with pytest.raises(
        DataError, match=r"column 'town' has whole numbers that begin with 0, such as .*01067.* at row 2"
    ):
        USES[use](file)
    towns = {"town": ["01067", "10115", "80331"]}
    assert dict(from_csv_files([file], target="died", categories=towns).about.categories) == {"town": tuple(towns["town"])}  # fmt: skip
    assert "town=10115" in fitted(DataTable.read(file), categories=towns).outcome.features
    # A statistic counts them, as it counts words; zeros, fractions and one-digit numbers stay numbers.
    counts = atoll.simulate(
        Statistics(columns=["town"]), {"north": DataTable.read(file)}, engine="inline", progress=False
    )
    assert "01067" in str(counts.outcome)
    frame(dose=np.resize(["0", "0.5", "10"], ROWS), grade=np.resize(["0", "1"], ROWS)).to_csv(file, index=False)
    assert USES[use](file)


@pytest.mark.parametrize("use", USES)
def test_days_written_as_numbers_are_no_feature_that_nobody_chose(tmp_path: Path, use: str) -> None:
    file = tmp_path / "rows.csv"
    days = frame(admitted=DAYS.strftime("%Y%m%d").astype(int))
    days.assign(admitted=days.admitted.sample(frac=1, random_state=0).to_numpy()).to_csv(file, index=False)
    with pytest.raises(DataError, match=r"column 'admitted' has dates as numbers, such as .*2026\d{4}") as refused:
        USES[use](file)
    assert "drop=['admitted']" in str(refused.value.remedy)
    assert fitted(DataTable.read(file), columns=["age", "admitted"])  # chosen
    frame(code=np.arange(ROWS) % 7 * 2 + 20261400).to_csv(file, index=False)  # there is no month 13
    assert USES[use](file)


def test_an_infinite_value_is_named_by_its_column_and_line(tmp_path: Path) -> None:
    frame(dose=np.r_[[0.5, np.inf], np.full(ROWS - 2, 1.5)]).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataError, match="column 'dose' has inf at row 3"):
        from_csv_files([tmp_path / "rows.csv"], target="died")


def test_a_number_that_no_sum_of_squares_holds_is_named_by_its_column(tmp_path: Path) -> None:
    """A matrix product overflowed with NumPy's warning, and trees ended with an IndexError."""
    for dose, left in (([1e300], 39), ([1e300] * ROWS, 0)):
        frame(dose=np.r_[dose, np.full(left, 1.5)]).to_csv(tmp_path / "rows.csv", index=False)
        with pytest.raises(DataError, match=r"column 'dose' has 1e\+300, which is beyond single precision"):
            from_csv_files([tmp_path / "rows.csv"], target="died")
        with pytest.raises(DataError, match=r"column 'dose' has 1e\+300, whose square is no number"):
            fitted(DataTable.read(tmp_path / "rows.csv"))


def test_amounts_in_tenths_are_no_classes(tmp_path: Path) -> None:
    """Enough of them repeat to look like classes: one linear model was fitted for each of a hundred."""
    table = frame(bmi=np.arange(ROWS) % 9 / 10 + 20)
    with pytest.raises(DataError, match=r"the label 'bmi' has numbers with fractions, such as '20\.1'") as refused:
        atoll.simulate(Fit(model=GLM(), label="bmi", columns=["age"]), {"north": table}, engine="inline")
    assert "Ridge" in str(refused.value.remedy)
    whole = Fit(model=GLM(alpha=1.0), label="died")
    assert atoll.simulate(whole, {"north": frame().astype(float)}, engine="inline").outcome.layout.classes == ("0", "1")


def test_a_word_among_the_numbers_of_a_label_is_no_further_class_of_a_fit_as_of_a_reader(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    table = frame()
    table.assign(died=table.died.astype(str).where(table.index % 7 > 0, "unknown")).to_csv(file, index=False)
    for use in (USES["fit"], USES["files"]):
        with pytest.raises(DataError, match=r"column 'died' has numbers, but .*unknown"):
            use(file)
    assert (
        fitted(DataTable.read(file), categories={"died": ["0", "1", "unknown"]}).outcome.layout.classes[2] == "unknown"
    )


@pytest.mark.parametrize("target", [0, 2, [2], np.int64(0)])
def test_a_column_that_a_frame_calls_by_a_number_is_named_by_a_text(target: Any) -> None:
    """0 was no target: the rows had no labels, and nothing said so."""
    numbered = frame(dose=np.resize([0.5, 1.5], ROWS)).set_axis([0, 1, 2], axis=1)
    with pytest.raises(DataError, match="is no name of a column") as refused:
        from_dataframes({"north": numbered}, target=target)
    assert "is '" in str(refused.value.remedy)
    assert from_dataframes({"north": numbered}, target="2").classes == 2
