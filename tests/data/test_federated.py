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
