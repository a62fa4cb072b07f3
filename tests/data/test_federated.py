"""What may stand for a federated data set, and what is refused with the way to divide it."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.errors import DataError
from atoll.core.requests.cohort import Community
from atoll.data import Dataset, Islands, iid
from atoll.data.federated import as_population

PARTS = {str(k): Dataset({"x": np.eye(4) + k, "y": [0, 1, 1, 0]}, name=f"part {k}") for k in range(3)}


@atoll.task
def rows(island, message):
    return {"rows": atoll.Sum(np.float64(len(island.data)))}


async def count(fed):
    total = await fed.sum(fed.parties, rows)
    return [party.name for party in fed.parties], float(total["rows"])


def test_a_list_or_dict_of_data_sets_is_one_client_each():
    job = atoll.Training(model=atoll.models.linear(4, 2), algorithm=atoll.FedAvg(lr=0.1), rounds=2)
    asked = atoll.simulate(job, Islands.from_datasets(PARTS), engine="inline")
    for given in (PARTS, {int(name): part for name, part in PARTS.items()}):
        made = atoll.simulate(job, given, engine="inline")
        assert list(made.data.names) == ["0", "1", "2"]
        assert all(np.array_equal(made.params[name], asked.params[name]) for name in asked.params)
    assert list(atoll.simulate(job, list(PARTS.values()), engine="inline").data.names) == [
        "client-0",
        "client-1",
        "client-2",
    ]
    assert atoll.simulate(count, PARTS)[1] == 12


def test_a_program_takes_data_of_its_own_kind_by_name():
    assert atoll.simulate(count, {"a": [1, 2], "b": range(3)}) == (["a", "b"], 5.0)
    assert atoll.simulate(count, {"a": PARTS["1"], "b": range(3)}) == (["a", "b"], 7.0)
    with pytest.raises(DataError, match="a dict of Dataset, int is not a federated data set"):
        as_population({"a": PARTS["1"], "b": 3}, one_form=True)
    same = Community({"a": [1]})
    assert as_population(same) is same
    halves = iid(PARTS["0"], parties=2, seed=0)
    assert as_population(halves) is halves


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (PARTS["1"], r"'part 1' is one data set.*in islands.*divide it: atoll\.data\.iid\(data, parties=10, seed=0\)"),
        ([], "a list is not a federated data set"),
        ({}, "a dict is not a federated data set"),
        ([PARTS["1"], np.eye(2)], "a list of Dataset, ndarray is not a federated"),
        ((np.eye(2), np.ones(2)), "a tuple of ndarray is not a federated.*one a client"),
        (np.eye(2), "a ndarray is not a federated"),
        (None, "a NoneType is not a federated"),
    ],
)
def test_what_says_not_who_has_what_is_refused(given, match):
    with pytest.raises(DataError, match=match):
        atoll.simulate(count, given)


def frames():
    """Two clients' tables: other orders of columns, other texts, whole numbers at one and fractions at the other."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    a = pd.DataFrame(
        {
            "age": rng.integers(0, 9, 12),
            "dose": rng.normal(size=12),
            "smoker": ["never", "former"] * 6,
            "y": ["no", "yes"] * 6,
        }
    )
    b = pd.DataFrame(
        {"y": ["yes", "no"] * 5, "smoker": ["ex", "never"] * 5, "dose": rng.normal(size=10), "age": rng.normal(size=10)}
    )
    return {"north": a, "south": b}


TRAINING = atoll.Training(model=atoll.models.linear(3, 2), algorithm=atoll.FedAvg(lr=0.1), rounds=2)


def weights(given):
    return atoll.simulate(TRAINING, given, engine="inline", progress=False).params["weight"]


def test_data_frames_and_dicts_of_columns_are_read_as_one_federation():
    tables = frames()
    wanted = weights(atoll.data.from_dataframes(tables, target="y"))
    np.testing.assert_array_equal(weights(tables), wanted)
    np.testing.assert_array_equal(weights({name: table[table.columns[::-1]] for name, table in tables.items()}), wanted)
    columns = {name: {column: table[column].to_numpy() for column in table} for name, table in tables.items()}
    np.testing.assert_array_equal(weights(columns), wanted)
    with pytest.raises(
        DataError,
        match=r"the table of 'south' has no column 'y'.*Did you mean 'yy'.*from_dataframes\(frames, target=\.\.\.\)",
    ):
        weights({**tables, "south": tables["south"].rename(columns={"y": "yy"})})
    with pytest.raises(DataError, match=r"no column 'dose'.*Did you mean 'doze'"):
        weights({**tables, "south": tables["south"].rename(columns={"dose": "doze"})})


def arrays(rows, seed):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(rows, 3)), "y": np.arange(rows) % 2}


def test_arrays_are_read_as_an_archive_is():
    """``x`` and ``y`` of each client, with ``x_test`` and ``y_test`` for the server; or of all, with their owners in ``party``."""
    a, b, t = arrays(8, 0), arrays(6, 1), arrays(5, 2)
    wanted = weights({"a": Dataset(a, classes=2), "b": Dataset(b, classes=2)})
    np.testing.assert_array_equal(weights({"a": a, "b": b}), wanted)
    lists = {name: {column: values.tolist() for column, values in one.items()} for name, one in (("a", a), ("b", b))}
    np.testing.assert_array_equal(weights(lists), wanted)
    held = {"x_test": t["x"], "y_test": t["y"]}
    whole = {column: np.concatenate([a[column], b[column]]) for column in a}
    for given in ({"a": {**a, **held}, "b": b}, {**whole, **held, "party": np.array(["a"] * 8 + ["b"] * 6)}):
        made = atoll.simulate(TRAINING, given, engine="inline", progress=False)
        np.testing.assert_allclose(made.params["weight"], wanted)
        assert len(made.data.test) == 5
        assert "test/loss" in made.metrics[-1]
    with pytest.raises(
        DataError,
        match=r"a dict of the arrays x, y is one data set, not divided among clients.*add an array 'party' of owners",
    ):
        weights(whole)


@pytest.mark.parametrize("whose", [tuple, list])
def test_arrays_without_names_are_refused_with_the_way_to_name_them(whose):
    x, y = np.ones((6, 2)), np.arange(6) % 2
    job = atoll.Training(model=atoll.models.linear(2, 2), rounds=1)
    for other in ({"x": x, "y": y}, whose((x, y))):
        with pytest.raises(
            DataError, match=f"the data of 'north' are a {whose.__name__} of 2.*{{'x': features, 'y': labels}}"
        ):
            atoll.simulate(job, {"north": whose((x, y)), "south": other}, progress=False)
