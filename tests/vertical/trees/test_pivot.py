"""Hidden trees are the plain ones to the bit, and what travels says nothing of labels and splits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, MessageError
from atoll.core.message import Bits, encode
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.engines import Inline
from atoll.secure.encrypted import KeyOwner, Paillier
from atoll.testing.crash import Killed, live
from atoll.trees.tree import score
from atoll.vertical import Pivot, SecureBoost, Vertical, VerticalPrediction, train_pooled
from atoll.vertical.model import GuestRows
from atoll.vertical.trees import pivot
from atoll.vertical.trees.columns import OwnedColumns
from atoll.vertical.trees.hidden import SplitChoices, TreePlan, add_by_bin
from atoll.vertical.trees.numbers import PlainNumbers, run_plain
from atoll.vertical.trees.parties import SealedWords
from tests.support.alignment import recorded
from tests.support.vertical_toys import as_parties, draw

pytest.importorskip("gmpy2")
pytest.importorskip("rbcl")
SHORT = Paillier(key_bits=256, insecure=True)
BINARY, REGRESSION, MULTICLASS = 402, 400, 401


def train(parties, **settings):
    more = {name: settings.pop(name) for name in ("secret_seed", "results") if name in settings}
    if settings.get("sums") == "paillier":
        settings["cipher"] = SHORT
    job = Vertical(model=Pivot(**{"trees": 1, "depth": 2, "bins": 4, **settings}))
    return job, atoll.simulate(job, parties, engine="inline", progress=False, **more)


CASES = [
    (BINARY, 1, "boosting", "enhanced"),
    (MULTICLASS, 1, "forest", "basic"),
    *[
        pytest.param(*case, marks=pytest.mark.slow)
        for case in [
            (REGRESSION, 2, "boosting", "basic"),
            (BINARY, 2, "boosting", "basic"),
            (MULTICLASS, 2, "boosting", "enhanced"),
            (REGRESSION, 2, "forest", "enhanced"),
            (BINARY, 3, "tree", "enhanced"),
            (REGRESSION, 1, "tree", "basic"),
        ]
    ],
]


@pytest.mark.parametrize(("seed", "hosts", "learner", "security"), CASES)
def test_hidden_trees_are_the_plain_ones(seed, hosts, learner, security):
    parties, _ = as_parties(draw(seed, 260, holes=hosts == 1), hosts=hosts)
    trees = 2 if learner == "boosting" and seed != MULTICLASS else 1
    sums = "paillier" if hosts % 2 else "product"  # others of these tests have products with one host
    job, found = train(parties, learner=learner, security=security, trees=trees, sums=sums)
    told = found.predictions
    np.testing.assert_array_equal(told["federated"], train_pooled(job, parties, found.outcome))
    assert len(np.unique(told["federated"][:, 0])) > 2
    order = {key: row for row, key in enumerate(told["id"].tolist())}
    at = [order[key] for key in parties["guest"]["id"].tolist()]
    again = found.predict(parties)
    np.testing.assert_array_equal(again, told["federated"][at].reshape(again.shape))


def test_a_saved_model_answers_in_the_order_asked(tmp_path):
    parties, _ = as_parties(draw(BINARY, 260, holes=True))
    _, found = train(parties, results=tmp_path, security="enhanced")
    asked = {**parties, "guest": {name: values[::-2] for name, values in parties["guest"].items() if name != "y"}}
    run = atoll.simulate(VerticalPrediction(), asked, engine="inline", results=tmp_path, progress=False)
    told = dict(zip(found.predictions["id"].tolist(), found.predictions["federated"][:, 0], strict=True))
    assert run.outcome.ids == tuple(asked["guest"]["id"].tolist())
    np.testing.assert_array_equal(run.outcome.predictions, [told[key] for key in run.outcome.ids])


# The learner, in plain.


@pytest.mark.parametrize("seed", [REGRESSION, BINARY])
def test_a_tree_is_scikit_learns(seed):
    """Rows of one bin are one value to both. Gains are cut to some 20 bits, so that nearly equal splits may be taken for each other."""
    sklearn = pytest.importorskip("sklearn.tree")
    table, bins = draw(seed, 1500), 32
    rng = np.random.default_rng(seed)
    x = rng.normal(size=table.x.shape).astype(np.float32)
    y = table.y if seed == REGRESSION else (x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=len(x)) > 0).astype(np.int64)
    y = (y + 100 * x[:, 0]) if seed == REGRESSION else y
    rows = GuestRows(x, table.objective.targets(y), table.objective)
    model = Pivot(learner="tree", depth=4, bins=bins)
    mine = table.objective.predict(model.margins(model.train_pooled(rows), x, []))[:, 0]
    kind = sklearn.DecisionTreeRegressor(max_depth=4, random_state=0)
    own = OwnedColumns(x, bins)
    theirs = kind.fit(own.bins, y).predict(own.bins)
    assert np.mean(np.abs(mine - theirs) < 1e-3 * np.std(y)) > 0.9
    assert np.mean((mine - y) ** 2) == pytest.approx(np.mean((theirs - y) ** 2), rel=0.01)


@pytest.mark.parametrize("seed", [BINARY, REGRESSION, MULTICLASS])
def test_boosting_is_as_good_as_xgboosts(seed):
    table = draw(seed, 2000)
    found = []
    for model in (Pivot(trees=20), SecureBoost(trees=20, security="none")):
        margins = model.margins(model.train_pooled(table.rows()), table.x, [])
        name, value = score(table.objective, table.rows().targets, table.objective.predict(margins))
        found.append(value)
    bound = {"auc": 0.01, "accuracy": 0.02, "rmse": 0.05 * found[1]}[name]
    assert abs(found[0] - found[1]) <= bound


def test_more_rows_a_child_and_weights_of_a_forest():
    table = draw(BINARY, 800)
    model = Pivot(learner="tree", depth=3, min_rows=60)
    part = model.train_pooled(table.rows())
    margins = model.margins(part, table.x, [])
    assert np.unique(margins, return_counts=True)[1].min() >= 60
    assert len(np.unique(margins)) > 2
    parts = [Pivot(learner="forest", trees=4, seed=seed).train_pooled(table.rows()) for seed in (1, 1, 2)]
    assert encode(parts[0]) == encode(parts[1]) != encode(parts[2])


@pytest.mark.parametrize("bits", [1, 7, 19])
def test_leaves_are_divided_to_the_last_digits(bits):
    rng = np.random.default_rng(bits)
    count = rng.integers(0, 1 << bits, 300)
    slopes = (rng.uniform(-1, 1, 300) * count * 2**20).astype(np.int64)
    for room, steepness, reg_lambda in ((0, 1.0, 0.0), (3, 1.0, 1.0), (0, 0.25, 3.5)):
        plan = TreePlan(2, (1 << bits) - 1, 1, room, 0.3, steepness, reg_lambda)
        found = run_plain(plan.value_leaves(PlainNumbers(), np.stack([count, slopes], axis=1)))[:, 0]
        below = np.maximum(steepness * count + reg_lambda, 1e-9)
        np.testing.assert_allclose(found, -0.3 * slopes / below, rtol=2e-5, atol=8)


# What travels.


def test_what_is_said_follows_from_shapes_alone_and_is_uniform(monkeypatch):
    parties, _ = as_parties(draw(BINARY, 230))
    other = {**parties, "guest": {**parties["guest"], "y": np.random.default_rng(1).permutation(parties["guest"]["y"])}}
    said = []
    for data in (parties, other):
        with recorded(monkeypatch) as heard:
            train(data, security="enhanced", secret_seed=5)
        said.append([(*one[:3], one[3].shape, one[3].dtype.str) for one in heard if one[2] != "alignment"])
        words = [one[3].view(np.uint8).ravel() for one in heard if one[3].dtype == np.uint64]
    assert said[0] == said[1]
    raw = np.concatenate(words)
    assert len(raw) > 100_000
    assert stats.chisquare(np.bincount(raw, minlength=256)).pvalue > 1e-4


def test_sums_by_bin_are_the_plain_ones_and_masks_hide_them():
    rng, secret = np.random.default_rng(0), Secret(seed=1)
    x = np.where(rng.random((60, 3)) < 0.2, np.nan, rng.normal(size=(60, 3))).astype(np.float32)
    columns, owner = OwnedColumns(x, 6), KeyOwner(SHORT, secret)
    words = rng.integers(0, 2**64, (60, 5), dtype=np.uint64)
    codec = SealedWords(SHORT, 60)
    assert codec.per == 2
    places = np.arange(3 * columns.width)
    sums, masks = codec.add_up(owner.public, codec.seal(owner, words), columns, places, 5, secret)
    found = codec.open(owner, sums, (3, columns.width, 5), places)
    np.testing.assert_array_equal(found - masks, add_by_bin(columns.bins, words, columns.width))
    assert (found != add_by_bin(columns.bins, words, columns.width)).all()
    with pytest.raises(MessageError, match="in place of"):
        codec.open(owner, [each[:-1] for each in sums], (3, columns.width, 5), places)
    with pytest.raises(MessageError, match="parts of 60 rows"):
        codec.add_up(owner.public, [each[1:] for each in codec.seal(owner, words)], columns, places, 5, secret)


def test_killed_between_two_trees_and_resumed_the_second_is_the_same(monkeypatch, tmp_path):
    """Transfers begin anew after a death: what was said before is not said again under the same masks."""
    parties, _ = as_parties(draw(BINARY, 220))
    ready = Vertical(model=Pivot(trees=2, depth=1, bins=3)).prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks
    with recorded(monkeypatch) as heard:
        whole = live(World(Community(parties), Inline(), folder=tmp_path / "whole"), program)
    last, said = int(0.8 * len(heard)), []

    def die(source, channel, message):
        said.append(channel)
        if len(said) == last:
            raise Killed("in the second tree")
        return message

    with recorded(monkeypatch, die), pytest.raises(Killed, match="in the second tree"):
        live(World(Community(parties), Inline(), folder=tmp_path / "killed"), program)
    with recorded(monkeypatch) as after:
        again = live(World(Community(parties), Inline(), folder=tmp_path / "killed", resume=True), program)
    assert len(after) < 0.8 * len(heard)
    assert encode(again.result["guest"]["half"]["part"]) == encode(whole.result["guest"]["half"]["part"])


# What is refused.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learner": "bush"}, "learner='bush'"),
        ({"security": "none"}, "security='none'"),
        ({"trees": 0}, "trees=0"),
        ({"depth": 11}, "depth=11"),
        ({"rate": 0}, "rate=0"),
        ({"bins": 1}, "bins=1"),
        ({"reg_lambda": np.inf}, "reg_lambda=inf"),
        ({"min_rows": 0}, "min_rows=0"),
        ({"column_share": 1.1}, "column_share=1.1"),
        ({"sums": "magic"}, "sums='magic'"),
        ({"cipher": SHORT}, "cipher with sums='product'"),
    ],
)
def test_settings_are_refused(settings, words):
    with pytest.raises((ConfigError, CompositionError), match=words):
        Pivot(**settings)


def test_sums_that_may_overflow_are_refused():
    with pytest.raises(DataError, match=r"may overflow words of 64 bits.*at most 524288"):
        TreePlan(3, 1 << 19, 1, 3)
    TreePlan(3, (1 << 19) - 1, 1, 3)
    with pytest.raises(ConfigError, match="may overflow a modulus of 128"):
        SealedWords(Paillier(key_bits=128, insecure=True), 1 << 24)


@pytest.mark.parametrize(
    "message",
    [
        None,
        {"counts": np.array([3])},
        {"counts": np.array([3, 2]), "holes": np.array([True])},
        {"counts": np.array([300]), "holes": np.array([True])},
        {"counts": np.array([-1]), "holes": np.array([True])},
        {"counts": np.array([1.5]), "holes": np.array([True])},
    ],
)
def test_made_up_columns_are_refused(message):
    with pytest.raises(AtollError, match="no numbers of cuts"):
        pivot._read_shape(message)


def test_answers_for_other_rows_are_refused():
    with pytest.raises(MessageError, match="no answers of 'shop' for 3 rows"):
        Pivot.read_answer({}, {"sides": Bits.pack(np.zeros((2, 1), np.bool_))}, 3, 1, "shop")


def test_of_a_column_with_holes_rows_go_either_way():
    made = SplitChoices.of([([2], [True]), ([1], [False])])
    assert list(zip(made.owner, made.cut, made.with_missing, strict=True)) == [
        (0, 0, False), (0, 0, True), (0, 1, False), (0, 1, True), (0, 2, False), (1, 0, False),
    ]  # fmt: skip
