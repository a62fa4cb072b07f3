"""Labels as data: missing ones in every reader, `unlabel`, and who has which."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra import tree as T
from atoll.core.errors import DataError
from atoll.data import Dataset, Islands, label_map, unlabel
from atoll.data.corruption import Mislabel
from atoll.data.missing import labelled_rows

PLACES = ("rows", "parties", "server", "classes", "none")


def islands(rows: int = 120, classes: int = 4, parties: int = 6, seed: int = 0) -> Islands:
    rng = np.random.default_rng(seed)
    x = np.arange(rows, dtype=np.float32)[:, None]
    data = Dataset({"x": x, "y": rng.integers(0, classes, rows)}, classes=classes, task="classification")
    return atoll.data.dirichlet(data, parties=parties, alpha=1.0, seed=seed)


def pairs(found: Islands) -> dict[float, int]:
    """The label of each row that has one, by the row's own feature."""
    parts = [*found, *found.others.values()]
    return {
        float(x): int(y)
        for part in parts
        for x, y, there in zip(part["x"][:, 0], part["y"], labelled_rows(part), strict=True)
        if there
    }


@settings(deadline=None, max_examples=40)
@given(at=st.sampled_from(PLACES), keep=st.integers(1, 30), seed=st.integers(0, 9), parties=st.integers(1, 8))
def test_labels_stay_where_asked_and_are_nowhere_else(at: str, keep: int, seed: int, parties: int) -> None:
    whole = islands(parties=parties, seed=seed)
    keep = min(keep, parties) if at == "parties" else min(keep, 4) if at == "classes" else keep
    few = unlabel(whole, keep=keep, at=at, seed=seed)  # type: ignore[arg-type]
    truth, left = pairs(whole), pairs(few)
    assert left.items() <= truth.items()
    rows = {float(x) for part in [*few, *few.others.values()] for x in part["x"][:, 0]}
    assert rows == set(truth)  # no row is lost
    found, names = label_map(few), [pool.name for pool in label_map(few)]
    if at == "rows":
        assert len(left) == keep
        assert not few.others
    elif at == "parties":
        states = [pool.state for pool in found]
        assert states.count("all") == keep
        assert states.count("none") == parties - keep
    elif at == "classes":
        assert all(len(pool.classes) == min(keep, len(np.unique(whole[i].y))) for i, pool in enumerate(found))
    else:
        helper = "labels" if at == "server" else "probe"
        assert len(few.others[helper]) == keep == len(left)
        assert not any(labelled_rows(shard).any() for shard in few)
        assert helper in names
        assert (few.sizes > 0).all()
    if at in ("rows", "server") and keep >= 4:
        assert not found.unknown
        assert max(np.bincount(list(left.values()))) - min(np.bincount(list(left.values()))) <= 1
    assert pairs(unlabel(whole, keep=keep, at=at, seed=seed)) == left  # type: ignore[arg-type]


@settings(deadline=None, max_examples=15)
@given(at=st.sampled_from(PLACES), seed=st.integers(0, 5), corrupted=st.booleans())
def test_what_was_removed_cannot_be_read_back(at: str, seed: int, corrupted: bool) -> None:
    """Other truth under the mask gives the same bits everywhere, whatever holds the rows."""
    whole = islands(seed=seed)
    if corrupted:
        whole = atoll.data.corrupt(whole, {"noise": 0.5}, seed=seed)
    few = unlabel(whole, keep=2 if at in ("parties", "classes") else 8, at=at, seed=seed)  # type: ignore[arg-type]
    for shard in few:
        for there, y in ((labelled_rows(shard), shard.y), (labelled_rows(shard), shard.dataset().y)):
            assert not y[~there].any()
    pool = few._supply.sample()
    assert not pool.y[~np.asarray(pool["labelled"])].any()
    assert few.subset([0, 1]).pooled().y.tolist() == [*few[0].y.tolist(), *few[1].y.tolist()]


def test_a_subset_and_people_made_on_demand_keep_their_names() -> None:
    crowd = atoll.data.synthetic(1, 1, parties=9, seed=0).subset([7, 2, 4])
    few = unlabel(crowd, keep=10, at="rows", seed=3)
    assert list(few.names) == list(crowd.names) == ["client-7", "client-2", "client-4"]
    assert sum(int(labelled_rows(shard).sum()) for shard in few) == 10
    for before, after in zip(crowd, few, strict=True):
        np.testing.assert_array_equal(before.x, after.x)
        there = labelled_rows(after)
        np.testing.assert_array_equal(before.y[there], after.y[there])


def test_removing_twice_leaves_rows_at_a_few_parties() -> None:
    few = unlabel(unlabel(islands(), keep=2, at="parties"), keep=10, at="rows")
    assert sorted(pool.labelled for pool in label_map(few)) == [0, 0, 0, 0, 5, 5]
    with pytest.raises(DataError, match="a helper party already has the labels: labels"):
        unlabel(unlabel(islands(), keep=3, at="server"), keep=2, at="rows")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "keep=0 leaves no label anywhere.*keep at least one"),
        ({"keep": 500}, "keep=500, but there are 120 rows with a label"),
        ({"keep": 7, "at": "parties"}, "keep=7, but there are 6 clients"),
        ({"keep": 119, "at": "server"}, "keep=119, but only 114 labelled rows can leave"),
        ({"keep": 1.5}, "keep=1.5.*a share between 0 and 1"),
        ({"keep": 0.5, "at": "classes"}, "keep=0.5"),
        ({"keep": 1, "at": "nowhere"}, "at='nowhere'"),
    ],
)
def test_what_cannot_be_kept_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(Exception, match=message):
        unlabel(islands(), **options)  # type: ignore[arg-type]


def test_nothing_to_learn_from_is_refused_with_party_and_remedy() -> None:
    none = unlabel(islands(parties=2), at="none")
    with pytest.raises(
        DataError, match=r"SemiFL needs labels, and no party has any: client-0, client-1.*label a few rows at"
    ):
        atoll.data.require_labels(none, "SemiFL")
    two = unlabel(islands(), keep=2, at="server", seed=0)
    with pytest.raises(DataError, match=r"cannot learn classes without a label: \d, \d \(labels are at labels\)"):
        atoll.data.require_labels(two, "SemiFL")
    assert atoll.data.require_labels(two, "SemiFL", every_class=False).labelled == 2
    with pytest.raises(DataError, match=r"DS-FL needs rows that every party may see.*with_public"):
        atoll.data.require_public(two, "DS-FL")
    public = Dataset({"x": np.zeros((3, 1), np.float32), "y": [0, 1, 2]}, classes=4)
    assert len(atoll.data.require_public(islands().with_public(public), "DS-FL")) == 3


def test_the_map_says_who_has_what() -> None:
    few = unlabel(islands(parties=3), keep=2, at="server", seed=0).with_test(None)
    found = label_map(few)
    assert [(pool.place, pool.state) for pool in found] == [("client", "none")] * 3 + [("helper", "all")]
    assert len(found.unknown) == 2
    assert str(found).splitlines()[-1].split() == ["nobody", *", ".join(found.unknown).split()]
    assert "labelled rows" in few.describe().table()
    crowd = label_map(islands(parties=30)).table(most=5)
    assert "25 more" in crowd


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_a_training_ignores_clients_without_labels_and_helpers(engine: str) -> None:
    data = atoll.data.iid(atoll.data.iris(), parties=3, seed=0)
    few = unlabel(data, keep=1, at="parties", seed=0)
    at = next(i for i, pool in enumerate(label_map(few)) if pool.labelled)
    job = atoll.Training(model=atoll.models.linear(4, 3), selection=atoll.Everyone(), rounds=2)
    params = atoll.simulate(job, few, engine=engine).params
    assert all(np.isfinite(leaf).all() for leaf in T.leaves(params))
    assert few.names[at] in few.names


def test_classes_divide_rows_only_if_all_are_known() -> None:
    data = Dataset({"x": np.zeros((4, 1)), "y": [0, 1, -1, 1]}, missing=-1, name="scans")
    with pytest.raises(DataError, match=r"dirichlet.* needs the class of each row, and 1 labels are missing.*unlabel"):
        atoll.data.dirichlet(data, parties=2, alpha=1.0)
    assert len(atoll.data.iid(data, parties=2)) == 2


def test_wrong_labels_are_of_the_next_class_or_of_any_and_missing_ones_stay_missing() -> None:
    whole = islands(rows=400)
    few = unlabel(whole, keep=200, at="rows", seed=0)
    for kind in ("symmetric", "pairs"):
        wrong = atoll.data.corrupt(few, {Mislabel(0.4, kind=kind): 1.0}, seed=1)
        before, after = few.pooled(), wrong.pooled()
        np.testing.assert_array_equal(before["labelled"], after["labelled"])
        changed = before.y != after.y
        assert not changed[~before["labelled"]].any()
        each = [round(0.4 * int(labelled_rows(shard).sum())) for shard in few]
        assert int(changed.sum()) == sum(each)
        steps = np.unique((after.y - before.y)[changed] % 4).tolist()
        assert steps == ([1] if kind == "pairs" else [1, 2, 3])
    varied = atoll.data.corrupt(whole, {Mislabel((0.0, 1.0)): 1.0}, seed=1)
    rates = [float((a.y != b.y).mean()) for a, b in zip(whole, varied, strict=True)]
    assert max(rates) - min(rates) > 0.2
    with pytest.raises(DataError, match=r"fraction=\(0\.5, 0\.2\)"):
        atoll.data.corrupt(whole, {Mislabel((0.5, 0.2)): 1.0})
    with pytest.raises(DataError, match="kind='next'"):
        atoll.data.corrupt(whole, {Mislabel(kind="next"): 1.0})  # type: ignore[arg-type]
