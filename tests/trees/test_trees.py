"""Trees of a federation: those of all rows, XGBoost's own with one party, killed and resumed, with parties lost, masked."""

from __future__ import annotations

import json

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.reducers import SecureAggregation, TwoServers
from atoll.secure import FixedPoint
from atoll.testing import Timetable
from atoll.trees import Trees, model_file
from atoll.trees.tree import auc

xgboost = pytest.importorskip("xgboost")
RNG = np.random.default_rng(7)
X = RNG.normal(size=(600, 5)).astype(np.float32)
X[:, 3] = np.round(X[:, 3])
SIGNAL = X[:, 0] + X[:, 1] * X[:, 2]
BINARY = (SIGNAL + 0.3 * RNG.normal(size=600) > 0).astype(np.int64)
LABELS = {"binary": BINARY, "classes": np.digitize(SIGNAL, [-0.5, 0.5]), "numbers": SIGNAL.astype(np.float64)}
NAMES = {"binary": "binary:logistic", "classes": "multi:softprob", "numbers": "reg:squarederror"}


def islands(kind="binary", parties=3, test=None):
    data = Dataset({"x": X, "y": LABELS[kind]})
    rows = np.array_split(np.random.default_rng(parties).permutation(len(X)), [10, 250][: parties - 1])
    return Islands.from_datasets({f"site-{i}": data.take(part) for i, part in enumerate(rows)}, test=test)


def grow(data=None, **settings):
    engine = settings.pop("engine", "inline")
    more = {name: settings.pop(name) for name in ("folder", "resume", "devices", "seed") if name in settings}
    data = islands() if data is None else data
    return atoll.simulate(
        Trees(**{"rounds": 4, "max_depth": 3, **settings}), data, engine=engine, progress=False, **more
    )


@pytest.mark.parametrize("kind", LABELS)
def test_together_they_are_the_trees_of_all_rows(kind):
    one, many = (grow(islands(kind, parties)).outcome for parties in (1, 3))
    assert many.objective.name == NAMES[kind]
    assert len(many.trees) == 4 * many.objective.outputs
    for mine, pooled in zip(many.trees, one.trees, strict=True):
        np.testing.assert_array_equal(mine.feature, pooled.feature)
        np.testing.assert_array_equal(mine.threshold, pooled.threshold)
        np.testing.assert_allclose(mine.value, pooled.value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", LABELS)
def test_where_bins_are_xgboosts_so_are_the_trees(kind):
    x = np.clip(np.round(2 * X), -3, 3)  # every value has a bin of its own, here and there
    parts = {f"site-{i}": Dataset({"x": x[i::3], "y": LABELS[kind][i::3]}) for i in range(3)}
    found = grow(Islands.from_datasets(parts), rounds=8).outcome
    more = {"num_class": 3} if kind == "classes" else {}
    settings = {"objective": NAMES[kind], "tree_method": "hist", "max_depth": 3, **more}
    theirs = xgboost.train(settings, xgboost.DMatrix(x, LABELS[kind]), 8).predict(xgboost.DMatrix(x))
    np.testing.assert_allclose(found.predict(x), theirs, atol=2e-4)


@pytest.mark.parametrize("scheme", ["histogram", "bagging"])
@pytest.mark.parametrize("kind", LABELS)
def test_xgboost_reads_the_file_and_predicts_the_same(kind, scheme):
    found = grow(islands(kind), scheme=scheme).outcome
    booster = xgboost.Booster()
    booster.load_model(bytearray(model_file(found)))
    rows = xgboost.DMatrix(X, feature_names=list(found.features))
    np.testing.assert_allclose(booster.predict(rows), found.predict(X), rtol=1e-5, atol=1e-6)
    assert booster.num_boosted_rounds() == 4


@pytest.mark.parametrize("kind", LABELS)
def test_bagging_with_one_site_is_ordinary_boosting_to_the_bit(kind):
    found = grow(islands(kind, 1), scheme="bagging", rounds=6).outcome
    # The sites' rows in one place, in their order.
    x, y = islands(kind, 1).shard(0)["x"], islands(kind, 1).shard(0)["y"]
    settings = {"objective": NAMES[kind], "tree_method": "hist", "max_depth": 3, "base_score": found.base_score}
    if kind == "classes":
        settings |= {"num_class": 3, "base_score": 0.0}
        start = np.tile(found.base.astype(np.float32), (len(x), 1))
    else:
        start = None
    rows = xgboost.DMatrix(x, y, base_margin=start)
    ordinary = xgboost.train(settings, rows, 6)
    trees = [json.loads(tree) for tree in ordinary.get_dump(dump_format="json")]
    assert len(trees) == len(found.trees)
    theirs = [leaf for tree in trees for leaf in sorted(leaves(tree))]
    ours = [float(v) for tree in found.trees for v in sorted(tree.value[tree.feature < 0].tolist())]
    np.testing.assert_array_equal(np.float32(theirs), np.float32(ours))
    if start is None:
        booster = xgboost.Booster()
        booster.load_model(bytearray(model_file(found)))
        named = xgboost.DMatrix(x, feature_names=list(found.features))
        np.testing.assert_array_equal(booster.predict(named), ordinary.predict(xgboost.DMatrix(x)))


def leaves(node):
    if "leaf" in node:
        return [node["leaf"]]
    return [leaf for child in node["children"] for leaf in leaves(child)]


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("share", ["examples", "equal"])
def test_a_round_adds_each_partys_tree_by_its_share(share, rounds):
    """The oracle is XGBoost on each site's rows: it goes on from the trees of all sites, which are added by their shares."""
    found = grow(scheme="bagging", share=share, rounds=rounds).outcome
    data = islands()
    sizes = np.asarray(data.sizes, float)
    shares = sizes / sizes.sum() if share == "examples" else np.full(3, 1 / 3)
    settings = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 3}
    tables = [X, *(np.asarray(data.shard(i).x) for i in range(3))]
    expected, *margins = (np.full(len(x), found.base[0], np.float64) for x in tables)
    for _ in range(rounds):
        grown = [
            xgboost.train(settings, xgboost.DMatrix(x, data.shard(i).y, base_margin=margins[i]), 1)
            for i, x in enumerate(tables[1:])
        ]
        for x, made in zip(tables, (expected, *margins), strict=True):
            rows = xgboost.DMatrix(x, base_margin=np.zeros(len(x)))
            made += sum(part * one.predict(rows, output_margin=True) for part, one in zip(shares, grown, strict=True))
    np.testing.assert_allclose(found.margins(X)[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_forest_takes_one_round_and_averages():
    result = grow(scheme="forest", trees=20, max_depth=4, seed=3)
    assert len(result.outcome.trees) == 60
    assert len(result.metrics) == 1
    assert auc(BINARY, result.outcome.predict(X)) > 0.9
    one, other = (t.value[:3].tolist() for t in result.outcome.trees[:2])
    assert one != other  # each on a sample of its own
    again = grow(scheme="forest", trees=20, max_depth=4, seed=3).outcome
    np.testing.assert_array_equal(again.predict(X), result.outcome.predict(X))


@pytest.mark.parametrize("scheme", ["histogram", "bagging"])
@pytest.mark.parametrize("engine", ["batched", pytest.param("processes", marks=pytest.mark.slow)])
def test_every_engine_grows_the_same(engine, scheme):
    np.testing.assert_array_equal(
        grow(engine=engine, scheme=scheme).outcome.margins(X), grow(scheme=scheme).outcome.margins(X)
    )


@pytest.mark.parametrize("scheme", ["histogram", "bagging"])
def test_stopped_and_resumed_they_are_the_same(scheme, tmp_path):
    test = Dataset({"x": X[:50], "y": BINARY[:50]})
    grow(islands(test=test), scheme=scheme, rounds=2, folder=tmp_path / "run")
    again = grow(islands(test=test), scheme=scheme, rounds=5, folder=tmp_path / "run", resume=True)
    whole = grow(islands(test=test), scheme=scheme, rounds=5)
    np.testing.assert_array_equal(again.outcome.margins(X), whole.outcome.margins(X))
    assert [row["test/auc"] for row in again.metrics] == [row["test/auc"] for row in whole.metrics]
    assert whole.metrics[-1]["test/auc"] == auc(BINARY[:50], whole.outcome.predict(X[:50]))
    kept = json.loads((tmp_path / "run" / "model.json").read_bytes())
    assert len(kept["learner"]["gradient_booster"]["model"]["trees"]) == len(whole.outcome.trees)


def test_a_party_that_is_lost_within_a_tree_has_no_part_in_it():
    # The second level of the first tree loses site-2: the tree is begun again without it, and it is back in the next.
    lost = Timetable({}, lost={"add_gradients/@0/0/1": ["site-2"]})
    result = grow(rounds=2, devices=lost)
    assert [row["parties"] for row in result.metrics] == [2, 3]
    two = islands().subset([0, 1])
    first, pooled = result.outcome.trees[0], grow(two, rounds=1).outcome
    np.testing.assert_array_equal(first.feature[first.feature >= 0][:1], pooled.trees[0].feature[:1])
    # Cuts and first guess are of all three; the sums are of the 250 rows of two.
    p = result.outcome.base_score
    assert first.hessian[0] == pytest.approx(250 * p * (1 - p), rel=1e-5)


def test_a_party_that_is_lost_while_it_sends_values_makes_bins_less_even_no_more():
    settings = {
        "rounds": 1,
        "max_bin": 4,
        "exact_cuts": True,
    }  # a queue of 4 bins holds fewer values than these rows have
    whole = grow(**settings).outcome
    found = grow(**settings, devices=Timetable({}, lost={"send_blocks": ["site-1"]})).outcome
    one, other = ({(f, t) for tree in made.trees for f, t in zip(tree.feature.tolist(), tree.threshold.tolist(), strict=True) if f >= 0} for made in (whole, found))  # fmt: skip
    assert one != other
    assert np.corrcoef(whole.predict(X), found.predict(X))[0, 1] > 0.5
    with pytest.raises(AtollError, match=r"0 of 1"):
        grow(**settings, devices=Timetable({}, lost={"send_blocks": ["site-1"]}), least=3)


def test_with_too_few_parties_there_are_no_trees():
    lost = Timetable({}, lost={"add_gradients": ["site-0", "site-1"]})
    with pytest.raises(AtollError, match="1 of 3"):
        grow(rounds=2, devices=lost, least=2)


def test_masked_sums_grow_the_same_trees():
    masked = SecureAggregation(codec=FixedPoint(value_bits=40, weight_bits=0, value_range=1024.0))
    plain, hidden = grow(rounds=2).outcome, grow(rounds=2, reducer=masked).outcome
    np.testing.assert_allclose(hidden.margins(X), plain.margins(X), atol=1e-4)


def test_two_servers_grow_the_same_trees():
    """The second server takes part by itself."""
    servers = TwoServers(codec=FixedPoint(value_bits=40, weight_bits=0, value_range=1024.0))
    plain, hidden = grow(rounds=1).outcome, grow(rounds=1, reducer=servers).outcome
    np.testing.assert_allclose(hidden.margins(X), plain.margins(X), atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"eta": 1.5}, "eta=1.5"),
        ({"max_bin": 300}, "max_bin=300"),
        ({"max_depth": 0}, "max_depth=0"),
        ({"scheme": "boost"}, "scheme='boost'"),
        ({"subsample": 0.0, "scheme": "bagging"}, "subsample=0.0"),
        ({"share": "all", "scheme": "bagging"}, "share='all'"),
        ({"least": 0}, "least=0"),
        ({"trees": 0, "scheme": "bagging"}, "trees=0"),
    ],
)
def test_settings_out_of_range_are_named(settings, words):
    with pytest.raises(ConfigError, match=words):
        Trees(**settings)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(CompositionError, match=r"subsample=0\.5 with scheme='histogram'"):
        Trees(subsample=0.5)
    with pytest.raises(CompositionError, match="adds single trees, which SecureAggregation does not show"):
        Trees(scheme="bagging", reducer=SecureAggregation())


def test_data_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="objective='reg:squarederror', but the labels are"):
        grow(objective="reg:squarederror")
    with pytest.raises(ConfigError, match="objective='rank:ndcg'"):
        grow(objective="rank:ndcg")
    images = Islands.from_datasets({"one": Dataset({"x": np.zeros((4, 2, 2)), "y": [0, 1, 0, 1]})})
    with pytest.raises(DataError, match="are not columns of numbers"):
        grow(images)
    alike = Islands.from_datasets({"one": Dataset({"x": X[:9], "y": np.ones(9, int)}, classes=2)})
    with pytest.raises(DataError, match="no party has a row of class 0"):
        grow(alike)
    with pytest.raises(DataError, match="for trees over 5 features"):
        grow().outcome.predict(X[:, :3])


def test_importance_adds_up_and_finds_the_features_that_matter():
    found = grow(rounds=6).outcome.importance()
    assert sum(found.values()) == pytest.approx(1)
    assert set(sorted(found, key=found.__getitem__)[-3:]) == {"x0", "x1", "x2"}


@pytest.mark.parametrize("seed", [0, 1])
def test_the_area_is_scikit_learns(seed):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    y, predicted = rng.integers(0, 2, 200), rng.integers(0, 20, 200) / 20
    assert auc(y, predicted) == pytest.approx(metrics.roc_auc_score(y, predicted), abs=1e-12)


@pytest.mark.parametrize("scheme", ["bagging", "forest", "lightgbm"])
def test_no_order_of_columns_and_clients_changes_trees_of_sampled_columns(scheme):
    if scheme == "lightgbm":
        pytest.importorskip("lightgbm")
    names, made = ("age", "weight", "f10", "f2", "dose"), []
    for order, turn in (([0, 1, 2, 3, 4], 1), ([3, 1, 4, 0, 2], -1)):
        placed = tuple(names[k] for k in order)
        parts = {f"site-{i}": Dataset({"x": X[i::3][:, order], "y": BINARY[i::3]}, features=placed) for i in range(3)}
        data = Islands.from_datasets(dict([*parts.items()][::turn]))
        found = grow(data, scheme=scheme, columns=0.4, rounds=2).outcome
        assert found.features == placed
        made.append((found.predict(X[:, order]), {tree.feature[0] for tree in found.trees}, found.importance()))
    np.testing.assert_allclose(made[1][0], made[0][0], rtol=1e-5)
    assert made[0][2] == pytest.approx(made[1][2], rel=1e-5)
    assert len(made[0][1]) > 1  # roots split by several columns: they are sampled
