"""Linear models over columns that lie apart: scikit-learn's optima of all columns in one place, under every protocol."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError, MessageError
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import killed_and_resumed
from atoll.trees.objectives import LOGISTIC, POISSON, SOFTMAX, SQUARED, TreeLoss
from atoll.vertical import Vertical, VerticalLinear
from atoll.vertical.job import train_pooled
from atoll.vertical.linear.families import LinearLoss, family_objective
from atoll.vertical.model import ColumnScales, GuestRows
from tests.support.sessions_by_hand import hold
from tests.support.vertical_toys import as_parties, draw

TASKS = {"binary": "logistic", "multiclass": "multinomial", "regression": "least-squares"}


def train(parties, model=None, **more):
    job = Vertical(model=model or VerticalLinear(security="none"), **more)
    return job, atoll.simulate(job, parties, engine="inline", progress=False)


def joined(parties, result):
    """All columns of the shared rows in the common order, scaled on the training rows as each owner does."""
    told, columns = result.predictions, []
    for table in parties.values():
        place = {str(key): i for i, key in enumerate(table["id"].tolist())}
        rows = [place[key] for key in told["id"].tolist()]
        columns += [np.asarray(v, np.float64)[rows] for name, v in table.items() if name not in ("id", "y")]
    x, train_rows = np.stack(columns, axis=1), ~told["test"]
    return ColumnScales.of(x[train_rows]).apply(x), told["y"], train_rows


def found_by_sklearn(x, y, rows, family, penalty, l1=0.0):
    """scikit-learn's predictions at its optimum, ``(rows, outputs)``."""
    from sklearn.linear_model import Lasso, LogisticRegression, PoissonRegressor, Ridge

    n = int(rows.sum())
    if family in ("logistic", "multinomial"):
        more = {"l1_ratio": 1.0, "C": 1 / l1, "solver": "saga"} if l1 else {"C": 1 / penalty, "solver": "newton-cg"}
        found = LogisticRegression(**more, tol=1e-12, max_iter=200_000).fit(x[rows], y[rows]).predict_proba(x)
        return found[:, 1:] if family == "logistic" else found
    if family == "poisson":
        model = PoissonRegressor(alpha=penalty / n, tol=1e-13, max_iter=1000, solver="newton-cholesky")
    elif l1:
        model = Lasso(alpha=l1 / n, tol=1e-14, max_iter=1_000_000)
    else:
        model = Ridge(alpha=penalty)
    return model.fit(x[rows], y[rows]).predict(x)[:, None]


@pytest.mark.parametrize(
    ("seed", "hosts"),
    [(0, 3), (1, 1), (2, 3), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, 1), (1, 3), (2, 1)))],
)
def test_it_is_scikit_learns_optimum(seed, hosts):
    table = draw(600 + seed, 500, holes=hosts == 3)
    parties, _ = as_parties(table, hosts, seed)
    penalty = (0.01, 1.0, 30.0)[seed]
    _, result = train(parties, VerticalLinear(security="none", penalty=penalty), task=table.task)
    x, y, rows = joined(parties, result)
    expected = found_by_sklearn(x, y, rows, TASKS[table.task], penalty)
    scale = np.std(y) if table.task == "regression" else 1.0
    assert np.abs(result.predictions["federated"] - expected).max() / scale < 2e-6
    alone = found_by_sklearn(x[:, : len(parties["guest"]) - 2], y, rows, TASKS[table.task], penalty)
    assert np.abs(result.predictions["alone"] - alone).max() / scale < 2e-6


def test_poisson_is_scikit_learns_optimum():
    rng = np.random.default_rng(0)
    x, ids = rng.normal(size=(400, 4)), np.arange(400)
    y = rng.poisson(np.exp(0.5 + x @ [0.5, -0.3, 0.4, 0.0]))
    parties = {
        "bank": {"id": ids, "a": x[:, 0], "b": x[:, 1], "y": y},
        "shop": {"id": ids[::-1], "c": x[::-1, 2], "d": 1e6 + x[::-1, 3]},
    }
    job, result = train(parties, VerticalLinear(security="none", family="poisson", penalty=2.0), task="regression")
    found = result.predictions["federated"]
    assert np.abs(found - found_by_sklearn(*joined(parties, result), "poisson", 2.0)).max() < 1e-6
    assert result.compare(train_pooled(job, parties, result))["difference"] < 1e-10


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_an_l1_penalty_leaves_scikit_learns_columns(task):
    rng = np.random.default_rng(1)
    x, ids = rng.normal(size=(300, 8)), np.arange(300)
    x[:, 6] = x[:, 0] + 0.1 * x[:, 6]
    signal = x @ [1, 0.5, 0, 0, 0.7, 0, 0, 0] + rng.normal(size=300)
    y = signal if task == "regression" else (signal > 0).astype(int)
    parties = {
        "bank": {"id": ids, "y": y} | {f"a{j}": x[:, j] for j in range(4)},
        "shop": {"id": ids} | {f"b{j}": x[:, j] for j in range(4, 8)},
    }
    job, result = train(parties, VerticalLinear(security="none", penalty=0.0, l1=15.0))
    rows = joined(parties, result)
    expected = found_by_sklearn(*rows, TASKS[task], 0.0, 15.0)
    assert np.abs(result.predictions["federated"] - expected).max() < 1e-5
    assert result.compare(train_pooled(job, parties, result))["difference"] < 1e-8
    w = np.concatenate([np.asarray(result.replies[name]["half"]["part"]["weights"])[:, 0] for name in parties])
    assert 0 < (w == 0).sum() < 6


@given(st.integers(0, 10**6), st.sampled_from([LOGISTIC, POISSON, SOFTMAX, SQUARED, "pieces"]))
@settings(max_examples=40, deadline=None)
def test_derivatives_are_those_of_the_loss(seed, name):
    rng = np.random.default_rng(seed)
    objective = TreeLoss(LOGISTIC if name == "pieces" else name, 3 if name == SOFTMAX else 1)
    y = rng.integers(0, 3 if name == SOFTMAX else 2, 6).astype(float)
    y[0] = 1.0
    loss = LinearLoss(objective, y, pieces=name == "pieces")
    m, u = rng.normal(size=(2, 6, objective.outputs))
    step = 1e-5
    slope = (loss.loss(m + step * u) - loss.loss(m - step * u)) / (2 * step)
    assert slope == pytest.approx(float((loss.residuals(m) * u).sum()), rel=1e-5, abs=1e-4)
    if name != "pieces":
        bent = (loss.residuals(m + step * u) - loss.residuals(m - step * u)) / (2 * step)
        np.testing.assert_allclose(loss.bend(m, u), bent, rtol=1e-4, atol=1e-7)
        assert (loss.curvatures(m) >= 0).all()


@pytest.mark.parametrize("points", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_killed_and_resumed_it_is_the_same(tmp_path, points):
    parties, _ = as_parties(draw(600, 300), hosts=2)
    ready = Vertical(model=VerticalLinear(security="none")).prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks

    def world(folder, resume):
        return World(Community(parties), Inline(), folder=folder, resume=resume)

    killed_and_resumed(world, program, tmp_path, points=points)


def test_rows_asked_later_get_the_same_answers_and_new_values_the_scales_of_the_training():
    table = draw(601, 300)
    parties, _ = as_parties(table)
    _, result = train(parties)
    told = dict(zip(result.predictions["id"].tolist(), result.predictions["federated"][:, 0], strict=True))
    asked = {**parties, "guest": {name: values[::-3] for name, values in parties["guest"].items() if name != "y"}}
    expected = np.array([told[name] for name in asked["guest"]["id"].tolist()])
    np.testing.assert_allclose(result.predict(asked), expected, rtol=1e-12)


def test_a_host_with_a_constant_or_an_empty_column_or_a_copy_adds_nothing():
    table = draw(600, 300)
    parties, _ = as_parties(table)
    plain = {**parties, "host-1": {**parties["host-1"]}}
    more = {**parties, "host-1": {**parties["host-1"], "flat": np.full(len(table.x), 3.1), "none": np.full(len(table.x), np.nan)}}  # fmt: skip
    (_, one), (_, other) = train(plain), train(more)
    np.testing.assert_allclose(one.predictions["federated"], other.predictions["federated"], rtol=0, atol=1e-9)
    bare = {"guest": parties["guest"], "host-1": {"id": parties["host-1"]["id"]}}
    _, none = train(bare)
    np.testing.assert_allclose(none.predictions["federated"], none.predictions["alone"], rtol=0, atol=1e-9)
    order = {key: i for i, key in enumerate(parties["guest"]["id"].tolist())}
    at = [order[key] for key in parties["host-1"]["id"].tolist()]
    copied = {**bare, "host-1": {**bare["host-1"], **{f"copy {n}": v[at] for n, v in parties["guest"].items() if n not in ("id", "y")}}}  # fmt: skip
    job, twice = train(copied)
    assert twice.compare(train_pooled(job, copied, twice))["difference"] < 1e-8


PUBLIC = {"security": "none", "outputs": 1, "coupled": False, "unit": 1.0, "curvature": 1.0}


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ([{**PUBLIC, "security": "magic"}], "security='magic', where 'none' was agreed"),
        ([{**PUBLIC, "outputs": 10**9}], "1000000000 margins a row"),
        ([{**PUBLIC, "unit": 0.0}], "labels in units of 0.0"),
        ([{**PUBLIC, "curvature": -1.0}], "a second derivative of -1.0"),
        (["hello"], "security=None"),
        ([PUBLIC, np.zeros((9, 1))], r"no numbers of shape \(20, 1\)"),
        ([PUBLIC, np.full((20, 1), np.nan)], "NaN or infinity from 'guest'"),
        ([PUBLIC, np.zeros((20, 1)), np.full((20, 1), -1.0)], "a negative second derivative"),
    ],
)
def test_a_guest_that_says_something_else_is_refused(told, match):
    x = np.random.default_rng(0).normal(size=(20, 2))

    async def guest(peers):
        for message in told:
            await peers.send("host", message)

    async def host(peers):
        return await VerticalLinear(security="none").train_host(x, peers, "guest", secret=Secret(1))

    with pytest.raises(MessageError, match=match):
        hold(guest=guest, host=host)


def test_a_host_that_says_something_else_is_refused():
    rng = np.random.default_rng(0)
    rows = GuestRows(rng.normal(size=(20, 2)), rng.integers(0, 2, 20).astype(float), TreeLoss(LOGISTIC))

    async def guest(peers):
        return await VerticalLinear(security="none").train_guest(rows, peers, ["host"], secret=Secret(1))

    async def host(peers):
        await peers.recv("guest")
        await peers.send("guest", np.zeros((20, 2)))

    with pytest.raises(MessageError, match=r"no numbers of shape \(20, 1\) from 'host'"):
        hold(guest=guest, host=host)
    part = VerticalLinear().train_pooled(rows)
    with pytest.raises(MessageError, match="NaN or infinity from 'shop'"):
        VerticalLinear.read_answer(part, {"margins": np.full((4, 1), np.inf)}, 4, 1, "shop")
    with pytest.raises(MessageError, match="no numbers"):
        VerticalLinear.read_answer(part, {"margins": np.zeros((3, 1))}, 4, 1, "shop")


@pytest.mark.parametrize(
    "wrong", [{"family": "probit"}, {"penalty": -1.0}, {"penalty": np.inf}, {"l1": np.nan}, {"security": "magic"}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        VerticalLinear(**wrong)


def test_labels_that_do_not_fit_the_family_are_refused():
    with pytest.raises(ConfigError, match="family='poisson' for labels of the family 'logistic'"):
        family_objective("poisson", TreeLoss(LOGISTIC))
    for y, match in (([-1.0, 2.0], "labels below 0"), ([0.0, 0.0], "labels that are all 0")):
        with pytest.raises(DataError, match=match):
            LinearLoss(TreeLoss(POISSON), np.array(y))


def test_without_a_penalty_weights_that_grow_without_end_are_refused():
    x, ids = np.linspace(-1, 1, 60), np.arange(60)
    parties = {"bank": {"id": ids, "x": x**2, "y": (x > 0).astype(int)}, "shop": {"id": ids, "z": x}}
    with pytest.raises(AtollError, match=r"the loss still falls after \d+ steps"):
        train(parties, VerticalLinear(security="none", penalty=0.0))


@pytest.mark.parametrize(
    ("name", "alone", "federated"),
    [("motor", 0.8954, 0.2976), pytest.param("default_credit", 0.6567, 0.7131, marks=pytest.mark.slow)],
)
def test_the_measures_of_fates_examples(name, alone, federated):
    """Golden numbers, which scikit-learn gives too: seed 0, a quarter held out, penalty 1."""
    try:
        bank, shop = atoll.data.fate_vertical(name)
    except DataError:
        pytest.skip("no folder of data")
    _, result = train({"bank": bank, "shop": shop})
    assert [round(value, 4) for value in result.scores.values()] == [alone, federated]


def test_labels_keep_their_digits_beside_an_offset():
    """The offset is four hundred thousand deviations: in single precision a label would lose one part in a hundred of its deviation."""
    parties, _ = as_parties(draw(2, 400))
    rng = np.random.default_rng(0)
    parties["guest"]["y"] = rng.normal(size=len(parties["guest"]["id"]))
    moved = {**parties, "guest": {**parties["guest"], "y": parties["guest"]["y"] + 4e5}}
    plain, far = (train(each, task="regression")[1].predictions for each in (parties, moved))
    np.testing.assert_array_equal(far["y"], plain["y"] + 4e5)
    np.testing.assert_allclose(far["federated"] - 4e5, plain["federated"], atol=1e-6)
