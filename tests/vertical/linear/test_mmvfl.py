"""MMVFL: the optimum of its convex problem, the same model as with all columns in one place, and parties that predict alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError, MessageError
from atoll.core.message import Bits
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing import killed_and_resumed
from atoll.trees.objectives import SOFTMAX, TreeLoss
from atoll.vertical import MMVFL, Vertical
from atoll.vertical.job import train_pooled
from atoll.vertical.linear import mmvfl
from atoll.vertical.linear.mmvfl import fit_group_lasso
from atoll.vertical.model import ColumnScales, GuestRows
from tests.support.sessions_by_hand import hold


def parties(seed=0, rows=600, classes=4, hosts=2):
    """Classes that each party's first column tells in part; other columns are noise."""
    rng = np.random.default_rng(seed)
    y, ids = rng.integers(0, classes, rows), np.arange(rows)
    made = {}
    for k, name in enumerate(["bank", *(f"shop-{i}" for i in range(hosts))]):
        order = rng.permutation(rows)
        signal = rng.permutation(np.linspace(-2, 2, classes))[y] + rng.normal(size=rows)
        columns = {"signal": signal, "noise": rng.normal(size=rows), "more": rng.normal(size=rows)}
        made[name] = {"id": ids[order], **{name: values[order] for name, values in columns.items()}}
        if k == 0:
            made[name]["y"] = y[order]
    return made, y


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 0.5]))
@settings(max_examples=30, deadline=None)
def test_the_group_lasso_is_at_its_optimum(seed, beta):
    """The subgradient: ``2 x'(x w - z) / n + beta w_j / |w_j|`` is 0, or within beta where w_j is 0."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(50, 5)), rng.normal(size=(50, 3))
    z += 0.5 * x[:, :1]
    w = fit_group_lasso(x, z, beta, np.zeros((5, 3)))
    pull = 2 * x.T @ (x @ w - z) / len(x)
    for one, slope in zip(w, pull, strict=True):
        length = np.linalg.norm(one)
        if length > 0:
            np.testing.assert_allclose(slope, -beta * one / length, atol=1e-9)
        else:
            assert np.linalg.norm(slope) <= beta + 1e-9


def objective(model, blocks, y, parts, z):
    """The paper's sum, with the Z's of all parties eliminated but given: for a check of first derivatives."""
    total, n = 0.0, len(y)
    for k, (x, part) in enumerate(zip(blocks, parts, strict=True)):
        scores = ColumnScales.unpacked(part["scales"]).apply(x) @ part["weights"] + part["base"]
        eta = model.eta if k == 0 else 0.0
        own = (scores + model.zeta * z + eta * y) / (1 + model.zeta + eta)
        total += (((scores - own) ** 2).sum() + model.zeta * ((own - z) ** 2).sum() + eta * ((own - y) ** 2).sum()) / n
        total += model.beta * MMVFL.selected(part).sum()
    return total


def common(model, blocks, y, parts):
    """Z as a plain least-squares problem gives it."""
    top = bottom = 0.0
    for k, (x, part) in enumerate(zip(blocks, parts, strict=True)):
        scores = ColumnScales.unpacked(part["scales"]).apply(x) @ part["weights"] + part["base"]
        eta = model.eta if k == 0 else 0.0
        top = top + (scores + eta * y) / (1 + model.zeta + eta)
        bottom += (1 + eta) / (1 + model.zeta + eta)
    return top / bottom


@pytest.mark.parametrize(("zeta", "eta"), [(1000.0, 1000.0), (2.0, 3.0)])
def test_the_rounds_reach_the_optimum_of_the_papers_sum(zeta, eta):
    """No small change of weights, intercepts or pseudo-labels lowers the sum."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 3, 80)
    blocks = [rng.normal(size=(80, 2)) + 0.5 * codes[:, None], rng.normal(size=(80, 3)) - codes[:, None] / 2]
    y = np.eye(3)[codes]
    model = MMVFL(beta=0.05, zeta=zeta, eta=eta)
    part = model.train_pooled(GuestRows(np.concatenate(blocks, axis=1), codes.astype(float), TreeLoss(SOFTMAX, 3), (2, 3)))  # fmt: skip
    best, z = part["sides"], common(model, blocks, y, part["sides"])
    least = objective(model, blocks, y, best, z)
    for _ in range(60):
        moved = [{**one, "weights": one["weights"] + 1e-3 * rng.normal(size=one["weights"].shape), "base": one["base"] + 1e-3 * rng.normal(size=3)} for one in best]  # fmt: skip
        assert objective(model, blocks, y, moved, common(model, blocks, y, moved)) > least
        assert objective(model, blocks, y, best, z + 1e-3 * rng.normal(size=z.shape)) > least


@pytest.mark.parametrize("classes", [4, 2])
def test_it_is_the_model_of_all_columns_and_each_party_predicts_alone(classes):
    tables, truth = parties(classes=classes)
    job = Vertical(model=MMVFL(beta=0.3), task="multiclass" if classes > 2 else "binary")
    result = atoll.simulate(job, tables, engine="inline", progress=False)
    assert result.compare(train_pooled(job, tables, result))["difference"] < 1e-12
    alone, federated = result.scores.values()
    assert federated > alone + (0.05 if classes > 2 else -0.01)
    for name, table in tables.items():
        part = result.replies[name]["half"]["part"]
        lengths = MMVFL.selected(part)
        named = dict(zip(result.replies[name]["half"]["features"], lengths.tolist(), strict=True))
        assert named.pop("signal") > 0
        assert not any(named.values()), "columns of noise are left out"
        if name != "bank":
            made = result.predict_own(name, table)
            said = made.argmax(axis=1) if classes > 2 else made > 0.5
            assert (said == truth[table["id"]]).mean() > 1.2 / classes
    assert any("purpose" in line for line in result.learns["shop-0"])
    foreseen = job.predict_cost(dict.fromkeys(tables, 600), [3, 3, 3], classes if classes > 2 else 1)
    assert 0.2 < foreseen["bytes"] / result.cost["bytes"] < 5


def solved_centrally(blocks, labels, zeta, eta, rows):
    """The least of the paper's sum without beta, as one least-squares problem in all weights, intercepts and pseudo-labels at once."""
    parties, outputs = len(blocks), labels[0].shape[1]
    ends = np.cumsum([0, *(x.shape[1] + 1 for x in blocks)])
    size = ends[-1] + (parties + 1) * rows  # weights, then the Z of each party, then the common one
    lines, answers = [], []

    def add(weight, coefficients, answer):
        line = np.zeros(size)
        for at, value in coefficients:
            line[at] = value
        lines.append(np.sqrt(weight) * line)
        answers.append(np.sqrt(weight) * answer)

    for k, (x, y) in enumerate(zip(blocks, labels, strict=True)):
        for i in range(rows):
            own, common = ends[-1] + k * rows + i, ends[-1] + parties * rows + i
            add(1.0, [(slice(ends[k], ends[k + 1]), [*x[i], 1.0]), (own, -1.0)], np.zeros(outputs))
            add(zeta, [(own, 1.0), (common, -1.0)], np.zeros(outputs))
            if not np.isnan(y[i]).any():
                add(eta, [(own, 1.0)], y[i])
    found = np.linalg.lstsq(np.array(lines), np.array(answers), rcond=None)[0]
    return [x @ found[a : b - 1] + found[b - 1] for x, a, b in zip(blocks, ends, ends[1:], strict=False)]


def several_labels(seed, rows, classes, hosts=2):
    """Tables whose first host knows the class of some rows, and is wrong about some of them."""
    tables, truth = parties(seed, rows, classes, hosts)
    rng, shop = np.random.default_rng(seed + 1), tables["shop-0"]
    told = truth[shop["id"]].copy()
    wrong = rng.random(rows) < 0.2
    told[wrong] = rng.integers(0, classes, int(wrong.sum()))
    shop["seen"] = np.where(rng.random(rows) < 0.3, np.nan, told)
    return tables


@given(st.integers(0, 10**6), st.sampled_from([2, 3]), st.sampled_from([(1000.0, 1000.0), (3.0, 5.0)]))
@settings(max_examples=3, deadline=None)
def test_with_labels_of_several_parties_it_is_the_sum_solved_centrally(seed, classes, weights):
    """Between parties, whose rows lie in other orders, the scores are those of one least-squares problem."""
    zeta, eta = weights
    tables = several_labels(seed, 60, classes)
    model = MMVFL(beta=0.0, zeta=zeta, eta=eta, labels={"shop-0": "seen"})
    job = Vertical(model=model, task="multiclass" if classes > 2 else "binary", test=0.0)
    result = atoll.simulate(job, tables, engine="inline", progress=False)
    assert result.compare(train_pooled(job, tables, result))["difference"] < 1e-12
    ids = result.predictions["id"].astype(int)
    blocks, labels, found = [], [], []
    for name, table in tables.items():
        part, at = result.replies[name]["half"]["part"], np.argsort(table["id"])[ids]
        x = np.stack([table[column][at] for column in result.replies[name]["half"]["features"]], axis=1)
        blocks.append(ColumnScales.of(x).apply(x))
        codes = table[{"bank": "y", "shop-0": "seen"}.get(name, "id")][at].astype(float)
        if name == "shop-1":
            codes[:] = np.nan
        one_hot = 2 * codes[:, None] - 1 if classes == 2 else (codes[:, None] == np.arange(classes)).astype(float)
        labels.append(np.where(np.isnan(codes)[:, None], np.nan, one_hot))
        found.append(ColumnScales.unpacked(part["scales"]).apply(x) @ part["weights"] + part["base"])
    for own, best in zip(found, solved_centrally(blocks, labels, zeta, eta, 60), strict=True):
        np.testing.assert_allclose(own, best, atol=1e-6)


def test_with_labels_of_several_parties_and_a_penalty_it_is_at_the_optimum():
    """The subgradient by each party's weights, given the best pseudo-labels, which a host's labels move."""
    tables = several_labels(5, 200, 3)
    rows = [np.argsort(table["id"]) for table in tables.values()]
    blocks = [np.stack([table[c][at] for c in ("signal", "noise", "more")], axis=1) for table, at in zip(tables.values(), rows, strict=True)]  # fmt: skip
    y, seen = tables["bank"]["y"][rows[0]].astype(float), tables["shop-0"]["seen"][rows[1]]
    names = np.array(["" if np.isnan(one) else f"{one:g}" for one in seen])
    model = MMVFL(beta=0.2, zeta=3.0, eta=5.0, labels={"shop-0": "seen"})
    part = model.train_pooled(GuestRows(np.concatenate(blocks, axis=1), y, TreeLoss(SOFTMAX, 3), (3, 3, 3), ("0", "1", "2"), (names, None)))  # fmt: skip
    labels = [np.eye(3)[y.astype(int)], np.where(np.isnan(seen)[:, None], 0, seen[:, None] == np.arange(3)), np.zeros((200, 3))]  # fmt: skip
    etas = [np.full((200, 1), 5.0), 5.0 * ~np.isnan(seen)[:, None], np.zeros((200, 1))]
    scaled = [ColumnScales.of(x).apply(x) for x in blocks]
    scores = [x @ side["weights"] + side["base"] for x, side in zip(scaled, part["sides"], strict=True)]
    share = [1 / (1 + 3.0 + eta) for eta in etas]
    z = sum(a * (p + eta * own) for a, p, eta, own in zip(share, scores, etas, labels, strict=True))
    z = z / sum(a * (1 + eta) for a, eta in zip(share, etas, strict=True))
    zeros = 0
    for x, p, eta, own, a, side in zip(scaled, scores, etas, labels, share, part["sides"], strict=True):
        slope = 2 * x.T @ (p - a * (p + 3.0 * z + eta * own)) / 200
        for w, one in zip(side["weights"], slope, strict=True):
            length = np.linalg.norm(w)
            if length:
                np.testing.assert_allclose(one, -0.2 * w / length, atol=1e-7)
            else:
                zeros += 1
                assert np.linalg.norm(one) <= 0.2 + 1e-7
    assert 0 < zeros < 9


def test_a_hosts_labels_are_no_feature_and_classes_of_the_guest():
    tables = several_labels(2, 200, 3)
    job = Vertical(model=MMVFL(labels={"shop-0": "seen"}), task="multiclass")
    result = atoll.simulate(job, tables, engine="inline", progress=False)
    assert result.replies["shop-0"]["half"]["features"] == ["more", "noise", "signal"]
    assert any("labels of shop-0" in line for line in result.learns["bank"])
    assert result.predict_own("shop-0", {n: v for n, v in tables["shop-0"].items() if n != "seen"}).shape == (200, 3)
    tables["shop-0"]["y"] = tables["shop-0"].pop("seen")  # of the guest's name: refused unless it is said to be labels
    with pytest.raises(AtollError, match="the name of the guest's labels"):
        atoll.simulate(Vertical(model=MMVFL(), task="multiclass"), tables, engine="inline", progress=False)
    same = atoll.simulate(Vertical(model=MMVFL(labels={"shop-0": "y"}), task="multiclass"), tables, engine="inline", progress=False)  # fmt: skip
    np.testing.assert_array_equal(same.predictions["federated"], result.predictions["federated"])
    tables["shop-0"]["y"][:20] = 7  # a held-out row counts for nothing
    with pytest.raises(AtollError, match="label «7» is no class of the guest's, which are «0», «1», «2»"):
        atoll.simulate(Vertical(model=MMVFL(labels={"shop-0": "y"}), task="multiclass"), tables, engine="inline", progress=False)  # fmt: skip
    with pytest.raises(ConfigError, match="labels= of 'bank'"):
        atoll.simulate(Vertical(model=MMVFL(labels={"bank": "y"})), tables, engine="inline", progress=False)
    with pytest.raises(ConfigError, match="labels='seen'"):
        MMVFL(labels="seen")


@pytest.mark.parametrize("told", ["yes", {"known": Bits.pack(np.ones(3, bool))}])
def test_a_host_that_does_not_say_which_rows_have_labels_is_refused(told):
    rows = GuestRows(np.zeros((20, 2)), np.arange(20) % 3.0, TreeLoss(SOFTMAX, 3), (), ("0", "1", "2"))

    async def guest(peers):
        await MMVFL(labels={"host": "seen"}).train_guest(rows, peers, ["host"], secret=Secret(1))

    async def host(peers):
        await peers.recv("guest")
        await peers.send("guest", told)

    with pytest.raises(MessageError, match="'host' does not say which rows have labels"):
        hold(guest=guest, host=host)


@pytest.mark.parametrize("classes", [None, ["0", "1"], ["0", "1", "1"], [0, 1, 2]])
def test_a_guest_that_does_not_name_the_classes_is_refused(classes):
    async def guest(peers):
        await peers.send("host", {"outputs": 3, "eta": 1000.0, "zeta": 1000.0, "classes": classes})

    async def host(peers):
        return await MMVFL().train_host(np.zeros((20, 2)), peers, "guest", secret=Secret(1), labels=np.array(["0"] * 20))  # fmt: skip

    with pytest.raises(MessageError, match="no names of the classes"):
        hold(guest=guest, host=host)


@pytest.mark.slow  # quicker: the pooled model is the same, and linear models resume
def test_killed_and_resumed_it_is_the_same(tmp_path):
    tables = several_labels(0, 600, 4)
    ready = Vertical(model=MMVFL(zeta=20.0, eta=20.0, labels={"shop-0": "seen"}), task="multiclass").prepare(
        Community(tables)
    )

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks

    def world(folder, resume):
        return World(Community(tables), Inline(), folder=folder, resume=resume)

    killed_and_resumed(world, program, tmp_path, points=6)


def test_a_training_that_does_not_settle_is_refused(monkeypatch):
    monkeypatch.setattr(mmvfl, "_ROUNDS", 2)
    tables, _ = parties()
    with pytest.raises(AtollError, match="pseudo-labels still move after 2 rounds"):
        atoll.simulate(Vertical(model=MMVFL(zeta=1.0, eta=1.0), task="multiclass"), tables, engine="inline", progress=False)  # fmt: skip


@pytest.mark.parametrize(
    ("told", "match"),
    [
        (["hello"], "None classes"),
        ([{"outputs": 3, "eta": 1.0, "zeta": 1000.0}], "other settings than agreed"),
        ([{"outputs": 3, "eta": 1000.0, "zeta": 1000.0}, {"z": np.zeros((9, 3))}], r"no numbers of shape \(20, 3\)"),
    ],
)
def test_a_guest_that_says_something_else_is_refused(told, match):
    async def guest(peers):
        for message in told:
            await peers.send("host", message)

    async def host(peers):
        return await MMVFL().train_host(np.zeros((20, 2)), peers, "guest", secret=Secret(1))

    with pytest.raises(MessageError, match=match):
        hold(guest=guest, host=host)


def test_numbers_and_settings_out_of_range_are_refused():
    tables, _ = parties()
    tables["bank"]["y"] = np.linspace(0, 1, 600)
    with pytest.raises((ConfigError, DataError), match="labels that are numbers"):
        atoll.simulate(Vertical(model=MMVFL()), tables, engine="inline", progress=False)
    for name in ("beta", "zeta", "eta"):
        with pytest.raises(ConfigError, match=f"{name}=-1"):
            MMVFL(**{name: -1.0})
