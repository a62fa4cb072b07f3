"""Columns have names: tables of one data set are matched by them, whatever their order."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.errors import DataError
from atoll.data import (
    Dataset,
    DataTable,
    Islands,
    concatenate,
    from_csv_files,
    from_csv_folder,
    from_dataframes,
    read_csv,
)
from atoll.data.units import name_other_units, name_units_of_test, require_one_unit
from atoll.fitting import GLM, Fit
from atoll.statistics import Statistics
from atoll.trees import Trees

NORTH = {"bmi": [20.5, 21.5, 22.5], "age": [60, 61, 62], "smoker": ["ex", "never", "ex"], "y": ["no", "yes", "no"]}
SOUTH = {"bmi": [24.5, 25.5], "age": [70, 71], "smoker": ["former", "never"], "y": ["yes", "no"]}


def write(path, table, order=None):
    columns = list(order or table)
    lines = [",".join(columns), *(",".join(str(table[c][i]) for c in columns) for i in range(len(table["y"])))]
    path.write_text("\n".join(lines))
    return path


def rows_by_name(islands, client):
    """The oracle: each row as the file has it, text by name."""
    shard, about = islands.shard(client), islands.about
    found = {
        name: [about.categories[name][int(v)] for v in column] if name in about.categories else column.tolist()
        for name, column in zip(about.features, shard["x"].T, strict=True)
    }
    return found | {"y": [about.labels[code] for code in shard["y"]]}


READERS = {
    "from_csv_folder": lambda d: from_csv_folder(d, target="y"),
    "from_csv_files": lambda d: from_csv_files([d / "north.csv", d / "south.csv"], target="y"),
    "from_datasets": lambda d: Islands.from_datasets(
        {n: read_csv(d / f"{n}.csv", target="y") for n in ("north", "south")}
    ),
}


@pytest.mark.parametrize("reader", READERS)
@given(st.permutations(list(NORTH)), st.permutations(list(NORTH)))
def test_rows_are_those_of_the_files_whatever_the_order_of_columns(tmp_path_factory, reader, mine, other):
    folder = tmp_path_factory.mktemp("tables")
    write(folder / "north.csv", NORTH, mine)
    write(folder / "south.csv", SOUTH, other)
    islands = READERS[reader](folder)
    assert rows_by_name(islands, "north") == NORTH
    assert rows_by_name(islands, "south") == SOUTH


def test_test_rows_are_matched_by_name_and_in_the_clients_codes(tmp_path):
    train = read_csv(write(tmp_path / "north.csv", NORTH), target="y")
    turned = {"y": ["no", "yes"], "smoker": ["never", "never"], "age": [80, 81], "bmi": [30.5, 31.5]}
    held = read_csv(write(tmp_path / "held.csv", turned), target="y")
    rows = [[30.5, 80, 1], [31.5, 81, 1]]
    assert train.with_test(held).test["x"].tolist() == rows
    assert Islands.from_datasets([train], test=held).test["x"].tolist() == rows
    assert atoll.data.iid(train, parties=2, seed=0).with_test(held).test["x"].tolist() == rows
    assert atoll.data.iid(train, parties=2, seed=0).with_public(held).public["x"].tolist() == rows
    unknown = read_csv(write(tmp_path / "held.csv", turned | {"smoker": ["pipe", "pipe"]}), target="y")
    with pytest.raises(DataError, match=r"column 'smoker' has .*which the other rows lack.*held"):
        train.with_test(unknown)


def test_extra_columns_are_left_out_if_the_job_names_what_it_uses(tmp_path):
    write(tmp_path / "north.csv", NORTH)
    write(tmp_path / "south.csv", SOUTH | {"phone": [1, 2]})
    with pytest.raises(DataError, match=r"column 'phone' is in no other table.*south\.csv.*drop=\['phone'\]"):
        from_csv_folder(tmp_path, target="y")
    used = ["bmi", "smoker"]
    islands = from_csv_folder(tmp_path, target="y", features=used)
    assert islands.about.features == tuple(used)
    assert rows_by_name(islands, "south") == {name: SOUTH[name] for name in [*used, "y"]}
    write(tmp_path / "north.csv", NORTH | {"phone": ["a", "b", "c"]})
    assert from_csv_folder(tmp_path, target="y", drop=["phone"]).about.features == ("bmi", "age", "smoker")


def test_a_misspelt_column_is_named_with_file_folder_and_nearest_name(tmp_path):
    write(tmp_path / "north.csv", NORTH)
    write(tmp_path / "south.csv", {("bmi_" if name == "bmi" else name): values for name, values in SOUTH.items()})
    with pytest.raises(DataError, match=rf"no column 'bmi'\. Did you mean 'bmi_'\? \(in {tmp_path}/south\.csv\)"):
        from_csv_folder(tmp_path, target="y")
    with pytest.raises(DataError, match=r"no column 'bmi'\. Did you mean 'bmi_'\? \(in data set 'south'\)"):
        READERS["from_datasets"](tmp_path)
    parts = [DataTable.read(tmp_path / f"{name}.csv") for name in ("north", "south")]
    with pytest.raises(DataError, match=r"no column 'bmi'\. Did you mean 'bmi_'\? \(in table 'south\.csv'\)"):
        DataTable.stacked(parts)


def test_a_column_is_text_everywhere_or_nowhere(tmp_path):
    write(tmp_path / "north.csv", NORTH)
    write(tmp_path / "south.csv", SOUTH | {"smoker": [0, 1]})
    with pytest.raises(DataError, match=r"column 'smoker' holds text, such as «ex», and numbers in .*south\.csv"):
        from_csv_folder(tmp_path, target="y")
    with pytest.raises(DataError, match=r"column 'smoker' holds numbers, and text in the other tables"):
        READERS["from_datasets"](tmp_path)


def test_an_empty_column_has_no_kind(tmp_path):
    write(tmp_path / "north.csv", NORTH)
    write(tmp_path / "south.csv", SOUTH | {"smoker": ["", ""]})
    parts = {n: read_csv(tmp_path / f"{n}.csv", target="y", missing_features=True) for n in ("north", "south")}
    for islands in (from_csv_folder(tmp_path, target="y", missing_features=True), Islands.from_datasets(parts)):
        assert np.isnan(islands.shard("south")["x"][:, 2]).all()
        assert islands.about.categories == {"smoker": ("ex", "never")}


def test_an_order_that_all_tables_share_stays_and_features_without_names_have_one(tmp_path):
    write(tmp_path / "north.csv", NORTH)
    write(tmp_path / "south.csv", SOUTH)
    assert from_csv_folder(tmp_path, target="y").about.features == ("bmi", "age", "smoker")
    named = [Dataset({"x": np.eye(2), "y": [0, 1]}, features=order) for order in (("a", "b"), ("b", "a"))]
    assert concatenate(named)["x"].tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]
    with pytest.raises(DataError, match="the features have no names, so their order is unknown"):
        concatenate([*named, Dataset({"x": np.eye(2), "y": [0, 1]})])


def test_tables_stack_by_name():
    parts = [DataTable({"b": [1.0], "a": ["x"]}), DataTable({"a": ["y"], "b": [2.0]})]
    whole = DataTable.stacked(parts)
    assert {name: whole[name].tolist() for name in whole.columns} == {"a": ["x", "y"], "b": [1.0, 2.0]}
    assert whole.columns == DataTable.stacked(parts[::-1]).columns == ("a", "b")


UNITS = {
    "training": lambda: atoll.Training(model=atoll.models.linear(2, 2), algorithm=atoll.FedAvg(lr=1e-9), rounds=1),
    "trees": lambda: Trees(rounds=1),
    "fit": lambda: Fit(model=GLM(alpha=1.0), label="y"),
    "statistics": Statistics,
}


def measured(age: str, factor: float, rows: int = 24) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {age: rng.normal(60, 9, rows) * factor, "dose": rng.normal(0, 1, rows), "y": np.arange(rows) % 2}


@pytest.mark.parametrize("job", UNITS)
def test_a_column_whose_name_has_another_unit_is_refused_with_both_names(job: str) -> None:
    tables = {"north": measured("age [years]", 1), "south": measured("Age[months]", 12)}
    with pytest.raises(
        DataError, match=r"column '.ge ?\[\w+\]' is in another unit than column '.ge ?\[\w+\]'"
    ) as refused:
        atoll.simulate(UNITS[job](), tables, engine="inline", progress=False)
    assert "call it" in str(refused.value.remedy)
    assert atoll.simulate(UNITS[job](), dict.fromkeys(tables, tables["north"]), engine="inline", progress=False)


def test_test_rows_and_tables_that_are_stacked_have_one_unit() -> None:
    columns = measured("age (kg)", 1), measured("age (g)", 1000)
    words = "column 'age \\(g\\)' is in another unit than column 'age \\(kg\\)'"
    with pytest.raises(DataError, match=words):
        DataTable.stacked([DataTable(one, name="t") for one in (columns[0], columns[0], columns[1])])
    frames = {name: pd.DataFrame(columns[0]) for name in "ab"}
    with pytest.raises(DataError, match=words):
        from_dataframes(frames, target="y", test=pd.DataFrame(columns[1]))
    # Both units in both tables are two columns.
    require_one_unit(["age [y]", "age [m]"], ["age [m]", "age [y]"], "a", "b")
    require_one_unit(["age [y]"], ["dose [m]", "age"], "a", "b")


@pytest.mark.parametrize("job", UNITS)
def test_a_client_whose_numbers_are_a_thousand_times_larger_is_named_in_the_result(job: str) -> None:
    def notices(data: object) -> list[str]:
        told = atoll.simulate(UNITS[job](), data, engine="inline", progress=False).notices
        return [line for line in told if "another unit" in line]

    tables = {name: measured("age", 1) for name in ("north", "south", "west")}
    assert notices(tables) == []
    assert notices(tables | {"west": measured("age", 1.4)}) == []
    (months,) = notices(tables | {"west": measured("age", 12)})
    assert months.startswith("column 'age' of client 'west' lies around 7")
    assert notices(tables | {"west": measured("age", 1000)}) == [
        "column 'age' of client 'west' is about 10^3 times larger than the median of the clients': is it in another unit?"
    ]
    few = {name: measured("age", factor, 8) for name, factor in (("north", 1), ("south", 1000))}
    assert notices(few) == []  # eight values may lie anywhere


@given(st.sampled_from([365, 24, 12, 88.4, 2.2, 1 / 7.5]), st.integers(0, 50), st.booleans())
def test_test_rows_in_another_unit_are_named_whatever_the_factor(factor: float, seed: int, wrong: bool) -> None:
    rng = np.random.default_rng(seed)
    sites = {name: {"age": rng.normal(60 + shift, 9, 40), "sex": rng.integers(0, 2, 40)} for name, shift in (("a", 0), ("b", 8))}  # fmt: skip
    sites["a"]["age"][0] = 99_999.0 if wrong else 60.0  # one wrong value hides nothing
    rows = rng.normal(64, 9, 30)
    assert name_units_of_test(sites, {"age": rows, "sex": np.ones(30)}) == []
    (told,) = name_units_of_test(sites, {"age": rows * factor, "sex": np.ones(30)})
    assert "'age'" in told
    assert "another unit" in told


def test_test_rows_with_another_unit_are_named_by_trees_in_features_and_in_the_target() -> None:
    def rows(factor: float, stay: float) -> Dataset:
        one = measured("age", factor)
        return Dataset({"x": one["age"][:, None], "y": one["age"] / 9 * stay}, task="regression", features=["age"])

    def notices(test: Dataset) -> list[str]:
        return name_other_units(Islands.from_datasets([rows(1, 1), rows(1, 1)], test=test))

    assert notices(rows(1, 1)) == []
    assert [line[:12] for line in notices(rows(365, 24))] == ["column 'age'", "the target o"]


@pytest.mark.parametrize(
    ("sign", "said"), [(-99.0, True), (999.0, True), (-9.0, True), (99.0, False), (-98.0, False), (9999.0, True)]
)
def test_numbers_that_may_say_that_a_value_is_missing_are_named(sign: float, said: bool) -> None:
    tables = {name: measured("age", 1) for name in ("north", "south")}
    tables["south"]["age"][[3, 7]] = sign
    notices = atoll.simulate(Statistics(), tables, engine="inline", progress=False).notices
    told = [line for line in notices if "says that a value is missing" in line]
    assert told == ([f"column 'age' has {sign:g} in 2 rows of client 'south', unlike all other values: if it says that a value is missing, leave these cells empty"] if said else [])  # fmt: skip


def test_several_codes_of_missing_values_do_not_hide_each_other_nor_is_one_row_too_few() -> None:
    def said(**cells: float) -> list[str]:
        table = measured("age", 1)
        table["age"][: len(cells)] = list(cells.values())
        told = atoll.simulate(Statistics(), {"north": table}, engine="inline", progress=False).notices
        return [line.partition(" of client")[0] for line in told if "says that a value is missing" in line]

    assert said(a=-99, b=-99, c=999) == ["column 'age' has -99 in 2 rows", "column 'age' has 999 in 1 row"]
    assert said(a=-99, b=-99, c=-88, d=-88) == ["column 'age' has -99 in 2 rows", "column 'age' has -88 in 2 rows"]
    assert said(a=-99) == said(a=99.0, b=99.0, c=88.0) == []  # people of 99 years are alive


def test_the_only_numbers_below_0_may_say_that_a_value_is_missing_however_wide_the_column_is() -> None:
    def said(sign: float, low: float, times: int = 3) -> bool:
        rows = np.r_[[sign] * times, np.linspace(low, 900, 60).round(1)]
        told = atoll.simulate(Statistics(), {"north": {"crp": rows}}, engine="inline", progress=False).notices
        return any(f"'crp' has {sign:g} in {times} rows" in line for line in told)

    assert all(said(sign, 5) for sign in (-99, -9, -1))
    assert said(-99, 0)
    assert not said(-1, 0)  # a step of a scale
    assert not said(-99, -20)
    assert not said(-99, 5, times=1)


def test_a_code_of_missing_values_in_the_target_of_a_regression_is_named() -> None:
    frames = {
        name: pd.DataFrame(measured("age", 1)).assign(stay=np.arange(24) % 9 + 0.5) for name in ("north", "south")
    }
    frames["south"].loc[[3, 8], "stay"] = 999
    islands = from_dataframes(frames, target="stay")
    told = atoll.simulate(UNITS["trees"](), islands, engine="inline", progress=False).notices
    (line,) = [line for line in told if "says that a value is missing" in line]
    assert line.startswith("the target has 999 in 2 rows of client 'south'")


def test_words_as_the_target_of_a_regression_are_refused_in_several_tables_as_in_one() -> None:
    frames = {name: pd.DataFrame(measured("age", 1)).assign(sex=["f", "m"] * 12) for name in ("north", "south")}
    with pytest.raises(DataError, match="column 'sex', the target of a regression, has text such as"):
        from_dataframes(frames, target="sex", task="regression")


def test_rows_without_a_label_are_said_by_a_training_too() -> None:
    rows = {name: pd.DataFrame({"x": np.arange(12.0), "y": np.arange(12) % 2}) for name in ("north", "south")}
    rows["south"] = rows["south"].assign(y=lambda t: t.y.where(t.index > 2))
    test = rows["north"].assign(y=lambda t: t.y.where(t.index > 3))
    islands = from_dataframes(rows, target="y", test=test)
    training = atoll.Training(model=atoll.models.Linear(1, 2), rounds=1)
    told = atoll.simulate(training, islands, engine="inline", progress=False).notices
    assert "rows without a label are not trained on: 3 of 12 at south" in told
    assert "4 of 12 test rows have no label, and no measure counts them" in told


def test_rows_of_one_table_have_one_unit() -> None:
    columns = measured("age", 1, 60)
    whole = Dataset(
        {"x": np.stack([columns["age"] * np.repeat([1, 5000], 30), columns["dose"]], 1), "y": columns["y"]},
        features=["age", "dose"],
    )
    halves = whole.take(slice(0, 30)), whole.take(slice(30, 60))
    assert name_other_units(Islands.from_owner(whole, np.repeat([0, 1], 30), 2)) == []
    assert len(name_other_units(Islands.from_datasets(halves))) == 1
    assert "'test'" in name_other_units(Islands.from_datasets(halves[:1], test=halves[1]))[0]


def test_whole_numbers_that_may_number_the_rows_are_named_in_the_result() -> None:
    rng = np.random.default_rng(2)

    def notices(numbers: object, dtype: type = np.float32) -> list[str]:
        sites = [
            Dataset({"x": np.stack([part, rng.normal(size=30)], 1).astype(dtype), "y": np.arange(30) % 2}, features=("num", "age"))
            for part in np.split(np.asarray(numbers), 3)
        ]  # fmt: skip
        return [line for line in name_other_units(Islands.from_datasets(sites)) if "names rows" in line]

    ids = rng.choice(np.arange(100_000, 1_000_000), 90, replace=False)
    assert notices(ids) == [
        "column 'num' has another whole number of 6 digits in nearly every row: if it names rows, leave it out, drop=['num'] (--drop num)"
    ]
    assert notices(ids.astype(np.float64) * 1000 + 7, np.float64) != []  # nine digits
    assert notices(np.round(rng.lognormal(10.5, 0.6, 90), -2)) == []  # incomes repeat, and some have a digit more
    assert notices(rng.integers(0, 9999, 90)) == []
    assert notices(ids + 0.5) == []
    assert notices(np.repeat(ids[:30], 3)) == []
