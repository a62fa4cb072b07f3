"""The learner of vertical trees against XGBoost, on drawn tables, and against the trees of all parties' rows."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.data import Dataset, Islands
from atoll.trees import Trees
from atoll.trees.histogram import Growth, TreeLimits
from atoll.vertical import SecureBoost
from tests.support.vertical_toys import Drawn, draw, grown_alone, grown_by_xgboost, largest_difference

pytest.importorskip("xgboost")


def check(seed, most, holes):
    table = draw(seed, most, holes)
    model = table.boost()
    found = largest_difference(table, grown_alone(table, model), grown_by_xgboost(table, model))
    assert found <= (5e-6 if holes else 3e-6), (seed, table.task, found)


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(100, 106))
def test_predictions_are_xgboosts(seed):
    check(seed, 1500, holes=seed % 2 == 1)


@pytest.mark.slow  # the quicker sibling above has smaller tables
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(200, 237))
def test_predictions_are_xgboosts_on_larger_tables(seed, holes):
    check(seed, 12_000, holes)


def test_trees_are_those_of_the_room_of_trees():
    """Values that all have a bin, so that both rooms have the same cuts: the same features and thresholds, tree by tree."""
    rng = np.random.default_rng(3)
    x = np.clip(np.round(2 * rng.normal(size=(700, 5))), -3, 3).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=700) > 0).astype(np.int64)
    table = Drawn(x, y, "binary", 8, 3, 256)
    job = Trees(rounds=8, max_depth=3)
    pooled = atoll.simulate(
        job, Islands.from_datasets({"all": Dataset({"x": x, "y": y})}), engine="inline", progress=False
    )
    np.testing.assert_allclose(grown_alone(table, table.boost())[:, 0], pooled.outcome.predict(x), atol=1e-6)


@pytest.mark.every(2)
@pytest.mark.parametrize("settings", [{"gamma": 2.0}, {"min_child_weight": 20.0}, {"reg_lambda": 0.0}, {"rate": 1.0}])
def test_each_setting_is_xgboosts(settings):
    table = draw(302, 1500)
    model = table.boost(**{"trees": 6, **settings})
    assert largest_difference(table, grown_alone(table, model), grown_by_xgboost(table, model)) <= 3e-6
    plain = table.boost(trees=6)
    assert largest_difference(table, grown_alone(table, model), grown_alone(table, plain)) > 1e-3


def split_of(sums, **settings):
    """The column and the direction that a root is split by, from sums ``(columns, 3, 2)``: two bins, and the rows without the value."""
    limits = TreeLimits(
        **{"eta": 0.3, "max_depth": 1, "reg_lambda": 1.0, "gamma": 0.0, "min_child_weight": 0.0, **settings}
    )
    growth = Growth(limits, [np.zeros(1, np.float32)] * len(sums), 0, missing=True)
    growth.take(np.array([sums], np.float64))
    return growth.feature[0], growth.cut[0]


@pytest.mark.parametrize(("single", "column"), [(True, 0), (False, 1)])
def test_gains_that_are_equal_in_single_precision_are_a_tie(single, column):
    """As in XGBoost: the first column counts, though the second is better by a billionth."""
    sums = [[[8, 10], [-8, 10], [0, 0]], [[8 + 1e-9, 10], [-8 - 1e-9, 10], [0, 0]]]
    assert split_of(sums, single=single)[0] == column


@pytest.mark.parametrize(("single", "cut"), [(True, 1), (False, 0)])
def test_a_row_without_the_value_counts_however_light_it_is(single, cut):
    """Sums are exact there, so that a rest is no rounding error. Here the light row is best alone at one side."""
    sums = [[[1, 5], [-1, 5], [5, 5e-7]]]
    assert split_of(sums, single=single) == (0, cut)


def test_columns_that_say_nothing_change_nothing():
    table = draw(301, 1500)
    empty = np.full((len(table.x), 1), np.nan, np.float32)
    more = Drawn(np.hstack([table.x, 7 + 0 * empty, empty, table.x[:, :1]]), *list(vars(table).values())[1:])
    assert np.isnan(more.x[:, -2]).all()
    model = SecureBoost(trees=5, depth=3)
    np.testing.assert_array_equal(grown_alone(more, model), grown_alone(table, model))
    assert largest_difference(more, grown_alone(more, model), grown_by_xgboost(more, model)) <= 3e-6
