"""One table cut for several parties: put together again by id, it is the table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.errors import DataError
from atoll.data import Dataset, transfer, vertical

NAMES = ("a", "b", "c", "d", "e")


def table(rows, seed=0, **more):
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=rows) if rows < 3 else np.concatenate([np.arange(3), rng.integers(3, size=rows - 3)])
    return Dataset({"x": rng.normal(size=(rows, 5)), "y": y, **more}, classes=3, features=NAMES, name="toy")


@given(
    rows=st.integers(20, 80), shared=st.floats(0, 1), parties=st.sampled_from([2, 3, {"p": ["e", "a"], "q": [1], "r": ["b", 2]}]), seed=st.integers(0, 99)
)  # fmt: skip
def test_the_parts_are_the_table(rows, shared, parties, seed):
    whole = table(rows, seed, id=np.random.default_rng(seed).permutation(rows) + 1000)
    place = {one: i for i, one in enumerate(whole["id"].tolist())}
    parts = vertical(whole, parties=parties, shared=shared, seed=seed)
    held = np.zeros(rows, dtype=int)
    for name, part in parts.items():
        at = [place[one] for one in part["id"].tolist()]
        held[at] += 1
        for k, feature in enumerate(part.about.features):
            np.testing.assert_array_equal(part.x[:, k], whole.x[at, NAMES.index(feature)])
        assert ("y" in part) == (name == next(iter(parts)))
        if "y" in part:
            np.testing.assert_array_equal(part.y, whole.y[at])
            assert (part.task, part.classes) == ("classification", 3)
    assert (held == len(parts)).sum() == round(shared * rows)
    assert set(held.tolist()) <= {1, len(parts)}
    alone = [len(part) - round(shared * rows) for part in parts.values()]
    assert max(alone) - min(alone) <= 1
    again = vertical(whole, parties=parties, shared=shared, seed=seed)
    assert all(np.array_equal(again[name]["id"], part["id"]) for name, part in parts.items())


def test_orders_and_ids_say_nothing_of_the_rows():
    parts = vertical(table(300), seed=1)
    assert list(parts) == ["guest", "host"]
    assert sorted(parts["guest"]["id"].tolist()) == sorted(parts["host"]["id"].tolist()) == list(range(300))
    for part in parts.values():
        assert abs(np.corrcoef(part["id"], np.arange(300))[0, 1]) < 0.2
    assert abs(np.corrcoef(parts["guest"]["id"], parts["host"]["id"])[0, 1]) < 0.2
    assert not np.array_equal(vertical(table(300), seed=2)["guest"]["id"], parts["guest"]["id"])


def test_parties_labels_and_other_columns_are_where_you_say():
    whole = table(40, writer=np.arange(40), id=np.array([f"u{i}" for i in range(40)]))
    parts = vertical(whole, parties=4, labels=["host-1", "host-3"])
    assert list(parts) == ["guest", "host-1", "host-2", "host-3"]
    assert [part.about.features for part in parts.values()] == [("a", "b"), ("c",), ("d",), ("e",)]
    assert ["y" in part for part in parts.values()] == [False, True, False, True]
    assert ["writer" in part for part in parts.values()] == [True, False, False, False]
    assert parts["host-2"]["id"][0].startswith("u")
    assert parts["host-2"].task == "unlabelled"
    assert parts["host-2"].name == "toy (host-2)"


def test_transfer_cuts_labels_too():
    whole = table(100)
    parts = transfer(whole, parties={"source": ["a", "b"], "target": ["c"]}, overlap=0.2, labelled={"source": 1, "target": 0.25})  # fmt: skip
    source, target = parts.values()
    assert (len(source), len(target)) == (60, 60)
    assert len(set(source["id"].tolist()) & set(target["id"].tolist())) == 20
    assert "labelled" not in source
    assert target["labelled"].sum() == 15
    assert not target.y[~target["labelled"]].any()  # a hidden label is nowhere
    bare = transfer(whole)
    assert ["y" in part for part in bare.values()] == [True, False]
    assert transfer(whole, labelled=0.5)["guest"]["labelled"].sum() == round(0.5 * len(bare["guest"]))


def test_labels_that_were_missing_stay_missing():
    labelled = np.arange(50) % 2 == 0
    whole = table(50, labelled=labelled, id=np.arange(50))
    part = transfer(whole, overlap=1.0, labelled=0.5)["guest"]
    assert not part["labelled"][~labelled[part["id"]]].any()
    np.testing.assert_array_equal(vertical(whole)["guest"]["labelled"], labelled[vertical(whole)["guest"]["id"]])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: vertical(table(9), parties=1), "parties=1 of 5 features.*2 to 5"),
        (lambda: vertical(table(9), parties=6), "parties=6"),
        (lambda: vertical(table(9), parties={"p": ["a"]}), "1 party"),
        (lambda: vertical(table(9), parties={"p": ["a"], "q": ["bb"]}), "no feature 'bb'. Did you mean 'b'"),
        (lambda: vertical(table(9), parties={"p": ["a"], "q": [5]}), "no feature 5"),
        (lambda: vertical(table(9), parties={"p": ["a"], "q": ["b", 1]}), "each of its features once"),
        (lambda: vertical(table(9), parties={"p": ["a"], "q": []}), "party 'q'"),
        (lambda: vertical(table(9), shared=1.5), "share of 1.5"),
        (lambda: vertical(table(9), labels=["hots"]), "labels of 'hots'. Did you mean 'host'"),
        (lambda: vertical(table(9, id=np.zeros(9))), "1 ids stand in several rows"),
        (lambda: vertical(table(1), shared=0.0), "'host' has no row"),
        (lambda: vertical(table(9).with_test(table(3))), "test rows.*load it with test=0"),
        (lambda: vertical(Dataset({"y": [0, 1]})), "no table of features"),
        (lambda: transfer(table(9), labelled=2.0), "labelled=2.0 of 'guest'"),
        (lambda: transfer(table(9), labelled={"gast": 1.0}), "labelled=1.0 of 'gast'. Did you mean 'guest'"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(make, named):
    with pytest.raises(DataError, match=named):
        make()


def test_a_bundled_table_is_cut_as_it_is():
    parts = vertical(atoll.data.breast_cancer(test=0), shared=0.8)
    assert sum(len(part.about.features) for part in parts.values()) == 30
    assert parts["guest"].about.labels == atoll.data.breast_cancer().about.labels
