"""Vertical training: the trees of all columns in one place, whoever has which columns and rows in whatever order."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError
from atoll.core.message import Bits
from atoll.core.requests.cohort import Community
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import killed_and_resumed
from atoll.vertical import SecureBoost, Vertical
from atoll.vertical.job import _forms
from atoll.vertical.tables import PartyTable
from atoll.vertical.trees.joint import GuestTrees
from tests.support.vertical_toys import as_parties, draw, grown_alone

FEW = {"trees": 4, "depth": 3, "bins": 16, "security": "none"}


def train(parties, **settings):
    model = settings.pop("model", SecureBoost(**FEW))
    return atoll.simulate(Vertical(model=model, **settings), parties, engine="inline", progress=False)


def in_common_order(table, ids, result):
    """The drawn table's training rows in the common order, all of its rows in that order, and the columns in the owners' order."""
    place = {name: i for i, name in enumerate(ids.tolist())}
    told = result.predictions
    rows = np.array([place[name] for name in told["id"].tolist()])
    return rows, told["test"]


@pytest.mark.every(3)
@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_they_are_the_trees_of_all_columns_in_one_place(seed, hosts):
    table = draw(400 + seed, 900, holes=seed == 1)
    parties, ids = as_parties(table, hosts, seed)
    result = train(parties, task=table.task)
    rows, is_test = in_common_order(table, ids, result)
    pooled = type(table)(table.x[rows[~is_test]], table.y[rows[~is_test]], *list(vars(table).values())[2:])
    found = result.predictions["federated"]
    np.testing.assert_array_equal(found[~is_test], grown_alone(pooled, SecureBoost(**FEW)))
    assert 0.15 < is_test.mean() < 0.35
    assert result.rows["train"] == (~is_test).sum()
    measure = {"binary": "auc", "regression": "rmse", "multiclass": "accuracy"}[table.task]
    assert set(result.scores) == {f"test/alone/{measure}", f"test/federated/{measure}"}
    assert result.metrics[-1][f"test/federated/{measure}"] == result.scores[f"test/federated/{measure}"]


def test_shuffled_files_give_the_same_predictions_by_id():
    table = draw(403, 700)
    (one, ids), (other, _) = (as_parties(table, 2, seed) for seed in (0, 0))
    order = np.random.default_rng(9).permutation(len(ids))
    other["host-1"] = {name: values[order] for name, values in other["host-1"].items()}
    first, second = train(one), train(other)
    for name, values in first.predictions.items():
        np.testing.assert_array_equal(values, second.predictions[name])
    np.testing.assert_array_equal(first.predict(one), second.predict(other))


def test_rows_are_answered_in_the_order_asked_also_new_ones():
    table = draw(400, 700)
    parties, _ = as_parties(table)
    result = train(parties)
    told = dict(zip(result.predictions["id"].tolist(), result.predictions["federated"][:, 0], strict=True))
    asked = {**parties, "guest": {name: values[::-2] for name, values in parties["guest"].items() if name != "y"}}
    expected = [told[name] for name in asked["guest"]["id"].tolist()]
    np.testing.assert_array_equal(result.predict(asked), np.array(expected))


def test_rows_that_a_host_lacks_are_refused_by_name_or_get_the_guests_model():
    table = draw(400, 700)
    parties, _ = as_parties(table)
    result = train(parties)
    lost = parties["host-1"]["id"][:2].tolist()
    less = {**parties, "host-1": {name: values[2:] for name, values in parties["host-1"].items()}}
    with pytest.raises(DataError, match=r"2 of \d+ rows are not at 'host-1'") as found:
        result.predict(less)
    assert any(name in found.value.what for name in lost)
    given = dict(zip(parties["guest"]["id"].tolist(), result.predict(less, unknown="guest"), strict=True))
    told = result.predictions
    for name, alone, joint in zip(told["id"].tolist(), told["alone"][:, 0], told["federated"][:, 0], strict=True):
        assert given[name] == (alone if name in lost else joint)


def test_the_guest_may_have_no_column():
    table = draw(402, 700)
    parties, _ = as_parties(table)
    parties["guest"] = {name: parties["guest"][name] for name in ("id", "y")}
    result = train(parties)
    assert len(np.unique(result.predictions["alone"])) == 1
    assert result.scores["test/federated/auc"] > result.scores["test/alone/auc"] == 0.5


def test_ties_go_to_the_first_column_the_guests_first():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400).astype(np.float32)
    ids, y = np.arange(400), (x + 0.1 * rng.normal(size=400) > 0).astype(np.int64)
    with_copy = train({"bank": {"id": ids, "x": x, "y": y}, "shop": {"id": ids, "copy": x}})
    assert with_copy.replies["shop"]["half"]["part"]["feature"].size == 0
    twice = train({"bank": {"id": ids, "y": y}, "shop": {"id": ids, "x": x, "copy": x}})
    assert set(np.asarray(twice.replies["shop"]["half"]["part"]["feature"]).tolist()) == {0}
    assert twice.replies["shop"]["half"]["features"] == ["x", "copy"]  # the table's order, as in XGBoost
    np.testing.assert_array_equal(with_copy.predictions["federated"], twice.predictions["federated"])


@pytest.mark.parametrize("points", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_killed_and_resumed_it_is_the_same(tmp_path, points):
    table = draw(400, 400)
    parties, _ = as_parties(table)
    job = Vertical(model=SecureBoost(**{**FEW, "trees": 2}))

    def world(folder, resume):
        return World(Community(parties), Inline(), folder=folder, resume=resume)

    ready = job.prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks
    life = killed_and_resumed(world, program, tmp_path, points=points)
    assert life.result["guest"]["rows"]["aligned"] == len(table.x)


def refused(parties, match, **settings):
    with pytest.raises(AtollError, match=match):
        train(parties, **settings)


def toy(n=60, **bank):
    rng = np.random.default_rng(1)
    x, ids = rng.normal(size=n), np.arange(n)
    return {"bank": {"id": ids, "x": x, "y": (x > 0).astype(int), **bank}, "shop": {"id": ids, "z": rng.normal(size=n)}}


def test_bad_tables_are_refused():
    parties = toy()
    refused({**parties, "shop": {**parties["shop"], "y": np.zeros(60)}}, "the name of the guest's labels")
    refused(
        {**parties, "shop": {**parties["shop"], "id": np.arange(60) + 60}},
        r"0 shared rows.*the forms of the keys.*'99': 50",
    )
    refused({**parties, "shop": {"id": np.arange(60), "z": np.full(60, np.inf)}}, "column 'z' is infinite in row 0")
    refused({**parties, "shop": {"id": np.arange(60), "z": np.full(60, 1e300)}}, "column 'z' is infinite in row 0")
    refused({**parties, "shop": {"id": np.arange(60), "z": np.full(60, 1j)}}, "column 'z' holds complex128")
    refused({**parties, "shop": {"key": np.arange(60), "z": np.zeros(60)}}, "no column 'id'")
    # The guest is not first: what helps is to name it.
    refused({"shop": parties["shop"], "bank": parties["bank"]}, r"no column 'y'[\s\S]*guest=")
    refused(toy(y=np.ones(60)), "all 36 training rows have the same label")
    refused(toy(y=np.r_[np.nan, np.zeros(59)]), "the label of row 0 is missing")
    refused(toy(y=np.r_[1e20, np.zeros(59)]), "labels up to .* whose squares are beyond single precision", task="regression")  # fmt: skip
    refused(toy(y=np.r_[-1e300, np.zeros(59)]), "labels up to .* whose squares", task="regression")
    refused(toy(y=np.arange(60)), "60 different labels", task="binary")
    refused(toy(), "60 shared rows, fewer than min_aligned=61", min_aligned=61)
    refused({"bank": toy()["bank"]}, "among 1 parties")
    refused(toy(), "guest='shoe'", guest="shoe")
    refused({**parties, "shop": {**parties["shop"], "MRN": np.r_[7, 7:472:8]}}, "column 'MRN' looks like a key")
    refused({**parties, "shop": {**parties["shop"], "kg": np.resize(["60 kg", "61 kg"], 60)}}, "numbers with a unit")
    twice = {name: np.r_[values, values[:1]] for name, values in parties["shop"].items()}
    refused({**parties, "shop": twice}, "one in rows 0 and 60")
    assert train({**parties, "shop": twice}, repeats="first").rows["aligned"] == 60


@pytest.mark.parametrize(("labels", "task"), [([0, 1], "binary"), (["no", "yes"], "binary"), ([1, 2, 5], "multiclass"), (["a", "b", "c"], "multiclass"), ([1000001, 1000002], "binary"), ([0.1234567, 0.1234568], "binary"), ([0.5, 1.5, 2.25], "regression"), (list(range(30)), "regression")])  # fmt: skip
def test_the_task_follows_from_the_labels(labels, task):
    result = train(toy(y=np.resize(np.array(labels), 60)))
    assert result.task == task
    assert result.classes == (() if task == "regression" else tuple(map(str, labels)))


@pytest.mark.parametrize(
    "wrong",
    [{"trees": 0}, {"depth": 0}, {"rate": 0.0}, {"bins": 1}, {"bins": 257}, {"gamma": -1.0}, {"security": "magic"}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SecureBoost(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"test": 1.0}, {"task": "rank"}, {"min_aligned": 1}, {"repeats": "last"}, {"key": "hash"}]
)
def test_job_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Vertical(**wrong)


def test_explain_says_who_learns_what():
    told = Vertical(model=SecureBoost(security="none")).explain(Community(toy()))
    assert any(one.who == "shop" and "labels" in one.sees for one in told.exposures)
    assert any(one.who == "bank" and "sums of gradients" in one.sees for one in told.exposures)


@pytest.mark.parametrize(
    ("name", "alone", "federated"), [("motor", 0.8301, 0.1316), ("default_credit", 0.7324, 0.7784)]
)
def test_the_measures_of_fates_examples(name, alone, federated):
    """Golden numbers, which XGBoost gives too: seed 0, a quarter held out, 30 trees of depth 3, rate 0.3, 32 bins, rows in the order of u."""
    try:
        bank, shop = atoll.data.fate_vertical(name)
    except DataError:
        pytest.skip("no folder of data")
    result = train({"bank": bank, "shop": shop}, model=SecureBoost(trees=30, security="none"))
    assert [round(value, 4) for value in result.scores.values()] == [alone, federated]


def test_parties_train_on_the_rows_that_they_share():
    """As if the others were not there: keys as text, in any order, with blanks around them."""
    parties, ids = as_parties(draw(402, 700))
    apart = ids[-90:]
    less = {}
    for k, (name, columns) in enumerate(parties.items()):
        keep = ~np.isin(columns["id"], apart[k::2])
        less[name] = {key: values[keep] for key, values in columns.items()}
    less["guest"]["id"] = np.array([f" {one}" for one in less["guest"]["id"].tolist()])
    only = {}
    for name, columns in parties.items():
        keep = ~np.isin(columns["id"], apart)
        only[name] = {key: values[keep] for key, values in columns.items()}
    one, other = train(less), train(only)
    assert one.rows["aligned"] == len(ids) - 90
    np.testing.assert_array_equal(one.predictions["federated"], other.predictions["federated"])


def test_the_forms_of_keys_stay_at_their_party():
    """Between organisations an error of one party is told to the others."""
    table = PartyTable.of(toy()["bank"], "bank", key="id")
    shown = {remote: _forms(Vertical(), table, SimpleNamespace(remote=remote)) for remote in (True, False)}
    assert "'99': 50" in shown[False]
    assert "9" not in shown[True]


@pytest.mark.parametrize("splits", [1, 3])
def test_answers_for_other_splits_than_a_host_has_are_refused(splits):
    """With one too few, the next host's first answer would be taken for this one's last."""
    part = {"trees": GuestTrees(made={1: 2}).packed()}
    with pytest.raises(AtollError, match="no answers of 'shop' for 4 rows at 2 splits"):
        SecureBoost.read_answer(part, {"sides": Bits.pack(np.ones((4, splits), bool))}, 4, 1, "shop")
    assert SecureBoost.read_answer(part, {"sides": Bits.pack(np.ones((4, 2), bool))}, 4, 1, "shop").all()


def test_the_alignment_is_a_protocol():
    with pytest.raises(AtollError, match="align"):
        Vertical(align="oprf")
    told = Vertical().learns(["bank", "shop"])
    assert any("which of its own keys bank has too" in line for line in told["shop"])


def test_the_hosts_columns_have_the_order_of_the_hosts_that_you_name():
    rng = np.random.default_rng(0)
    x, ids = rng.normal(size=400).astype(np.float32), np.arange(400)
    y = (x + 0.1 * rng.normal(size=400) > 0).astype(np.int64)
    parties = {"bank": {"id": ids, "y": y}, "mall": {"id": ids, "copy": x}, "shop": {"id": ids, "x": x}}
    for hosts, owner in (((), "mall"), (("shop", "mall"), "shop")):
        result = train(parties, hosts=hosts)
        assert {name for name in ("mall", "shop") if result.replies[name]["half"]["part"]["feature"].size} == {owner}
    refused(parties, r"hosts=\['shop'\], and the parties beside 'bank' are", hosts=["shop"])
    refused(parties, r"hosts=\['shop', 'shop'\]", hosts=["shop", "shop"])


def test_rows_without_a_key_are_said_of_each_party():
    """Oracle: the keys that the test takes away."""
    parties, _ = as_parties(draw(402, 700))
    ids = parties["host-1"]["id"].astype(object)
    ids[[3, 8, 9]] = None
    rows = len(ids)
    result = train({**parties, "host-1": {**parties["host-1"], "id": ids}})
    assert [line for line in result.notices if "no key" in line] == [
        f"3 of {rows} rows of 'host-1' have no key in 'id': they match no row of another party"
    ]
    assert not [line for line in train(parties).notices if "no key" in line]
