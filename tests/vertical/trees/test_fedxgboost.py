"""Boosting by matrix products, which are exact and show a host uniform numbers, and from labels with noise, which are all that a host learns of labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.errors import CompositionError, ConfigError, MessageError, PolicyError
from atoll.core.message import encode
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.engines import Inline
from atoll.privacy import spent
from atoll.testing import killed_and_resumed
from atoll.testing.crash import live
from atoll.trees.objectives import SQUARED, TreeLoss
from atoll.vertical import FedXGBoost, SecureBoost, Vertical
from atoll.vertical.trees import products
from atoll.vertical.trees.boosting import HostColumns, HostRole
from atoll.vertical.trees.columns import OwnedColumns
from tests.support.vertical_toys import as_parties, draw

pytest.importorskip("rbcl")
FEW = {"trees": 2, "depth": 3, "bins": 8}
NOISE = {**FEW, "security": "noise", "epsilon": 2.0}


def train(parties, model, **more):
    return atoll.simulate(Vertical(model=model), parties, engine="inline", progress=False, **more)


@given(st.integers(2, 40), st.integers(0, 2**32))
def test_a_host_has_all_leaves_but_those_of_its_bins(leaves, seed):
    rng = np.random.default_rng(seed)
    roots, bins = rng.integers(0, 2**64, (5, 2), np.uint64), rng.integers(0, leaves, 5)
    all_, sides = products.grow_leaves(roots, leaves)
    chosen = products._other_sides(bins, leaves)
    heard = np.where(chosen[..., None], sides[:, :, 1], sides[:, :, 0])
    found, each = products.fill_leaves(heard, bins, leaves), np.arange(5)
    assert all_.shape == found.shape == (5, leaves, 2)
    assert len(np.unique(all_.reshape(-1, 2), axis=0)) == 5 * leaves
    assert not found[each, bins].any()
    all_[each, bins] = 0
    np.testing.assert_array_equal(found, all_)


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(4))
def test_trees_by_products_are_the_plain_trees(monkeypatch, seed):
    if seed % 2:
        monkeypatch.setattr(products, "_KEPT", 0)  # leaves grow again for each level
    parties, _ = as_parties(draw(520 + seed, 320, holes=seed == 1), hosts=1 + seed % 2, seed=seed)
    hidden, plain = train(parties, FedXGBoost(**FEW)), train(parties, SecureBoost(**FEW, security="none"))
    for name, values in plain.predictions.items():
        np.testing.assert_array_equal(hidden.predictions[name], values)
    for party in list(parties)[1:]:
        assert encode(hidden.replies[party]["half"]["part"]) == encode(plain.replies[party]["half"]["part"])


def heard_by_a_host(monkeypatch, model, parties, **more):
    """All that the guest says to a host while trees grow."""
    said, answer = [], HostRole.answer
    with monkeypatch.context() as patch:
        patch.setattr(HostRole, "answer", lambda self, message: (said.append(message), answer(self, message))[1])
        train(parties, model, **more)
    return said


def test_what_hides_gradients_is_uniform_and_frames_follow_from_shapes(monkeypatch):
    parties, _ = as_parties(draw(531, 400))
    one = heard_by_a_host(monkeypatch, FedXGBoost(**FEW), parties)
    sealed = np.concatenate([m["sealed"].ravel() for m in one if "sealed" in m])
    counts = np.bincount(sealed.view(np.uint8), minlength=256)
    expected = len(sealed) * 8 / 256
    assert ((counts - expected) ** 2 / expected).sum() < 400  # 255 degrees of freedom: 6 deviations
    assert len(np.unique(sealed)) == len(sealed)
    first, second = (
        m["sealed"] for m in one if "sealed" in m
    )  # of two trees: what they differ in is no difference of gradients
    assert (np.abs((second - first).view(np.int64)) > 2**40).all()
    guest = {**parties["guest"], "y": 1 - parties["guest"]["y"]}
    other = heard_by_a_host(monkeypatch, FedXGBoost(**FEW), {**parties, "guest": guest})
    sizes = [[m["sealed"].nbytes for m in said if "sealed" in m] for said in (one, other)]
    assert sizes[0] == sizes[1]
    assert sum(sizes[0]) == 2 * 16 * (len(sealed) // 4)


@pytest.mark.parametrize("security", ["product", "noise"])
def test_killed_and_resumed_it_grows_the_same_trees(tmp_path, security):
    parties, _ = as_parties(draw(537, 240))
    model = FedXGBoost(**(NOISE if security == "noise" else FEW))
    ready = Vertical(model=model).prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks

    def world(folder, resume):
        return World(Community(parties), Inline(), folder=folder, resume=resume, secret_seed=3)

    killed_and_resumed(world, program, tmp_path, points=2)


def halves():
    """Both halves after the first gradients, without transfers."""
    rng = np.random.default_rng(0)
    columns = OwnedColumns(rng.normal(size=(50, 2)).astype(np.float32), 8)
    leaves = [count + 2 for count in columns.counts]
    roots = [rng.integers(0, 2**64, (50, 2), np.uint64) for _ in leaves]
    bins = [products._leaf_of(columns, f) for f in range(2)]
    heard = []
    for mine, many, at in zip(roots, leaves, bins, strict=True):
        sides = products.grow_leaves(mine, many)[1]
        heard.append(np.where(products._other_sides(at, many)[..., None], sides[:, :, 1], sides[:, :, 0]))
    guest = products.ProductGuest(products._Leaves(roots, leaves))
    host = products.ProductHost(products._Leaves(heard, leaves, bins))
    pairs = rng.integers(-(2**24), 2**24, (50, 2))
    sealed = guest.seal(pairs)
    return columns, guest, host, pairs, sealed


def test_parts_of_sums_that_a_host_made_up_are_refused():
    columns, guest, host, pairs, sealed = halves()
    with pytest.raises(MessageError, match="before gradients"):
        host.sums(columns, [0])
    for wrong in (sealed[:-1], sealed.astype(np.int64), sealed[:, :1]):
        with pytest.raises(MessageError, match="for 50 rows and 2 columns"):
            host.take(wrong, columns, 0, last=True)
    host.take(sealed, columns, 0, last=True)
    parts = host.sums(columns, [0])
    known, rows = HostColumns(columns.counts, columns.fullest), [columns.rows_at(0)]
    found = guest.open(parts, known, pairs.sum(axis=0)[None], rows)
    np.testing.assert_array_equal(found, columns.sums(pairs.astype(np.float32), [0]))
    changed = parts.copy()
    changed[0, 0, 0, 0] += np.uint64(1)
    with pytest.raises(MessageError, match="do not add up"):
        guest.open(changed, known, pairs.sum(axis=0)[None], rows)
    with pytest.raises(MessageError, match="parts of sums of shape"):
        guest.open(parts[:, :1], known, pairs.sum(axis=0)[None], rows)


@pytest.mark.parametrize("seed", [531, 533])  # two classes, and more
def test_a_host_hears_what_follows_from_labels_with_noise_alone(monkeypatch, seed):
    table = draw(seed, 300)
    parties, _ = as_parties(table)
    noisy = np.random.default_rng(1).normal(size=(10_000, table.objective.outputs))
    monkeypatch.setattr(FedXGBoost, "_hide_labels", lambda self, rows, secret, spend: noisy[: len(rows.x)])
    said = heard_by_a_host(monkeypatch, FedXGBoost(**NOISE), parties)
    y = parties["guest"]["y"]
    guest = {**parties["guest"], "y": np.random.default_rng(2).permutation(y)}
    other = heard_by_a_host(monkeypatch, FedXGBoost(**NOISE), {**parties, "guest": guest})
    assert encode(said) == encode(other)


@pytest.mark.parametrize(("seed", "epsilon"), [(531, 0.5), (533, 4.0)])
def test_the_ledger_has_one_release_of_the_epsilon_that_you_give(seed, epsilon):
    parties, _ = as_parties(draw(seed, 260))
    model = FedXGBoost(**NOISE | {"epsilon": epsilon, "delta": 1e-5, "trees": 3})
    world = World(Community(parties), Inline())
    live(world, Vertical(model=model))
    lines = [line for line in world.ledger.lines() if line["kind"] == "gaussian"]
    assert len(lines) == 1
    assert lines[0]["party"] == "guest"
    assert lines[0]["unit"] == "example"
    cost = spent(lines, 1e-5, neighbours="replace-one")["guest"]
    assert 0.98 * epsilon < cost <= epsilon * (1 + 1e-9)


def test_noise_is_that_of_the_epsilon():
    rows = draw(531, 3000).rows()
    spend = []
    noisy = FedXGBoost(**NOISE)._hide_labels(rows, Secret(5), spend.append)
    (event,) = spend
    noise = noisy[:, 0] - rows.targets
    assert abs(noise.std() / event.noise_multiplier - 1) < 5 / np.sqrt(2 * len(noise))
    assert abs(noise.mean()) < 5 * event.noise_multiplier / np.sqrt(len(noise))
    with pytest.raises(PolicyError, match="without a ledger"):
        FedXGBoost(**NOISE)._hide_labels(rows, Secret(5), None)


def test_less_noise_costs_less():
    parties, _ = as_parties(draw(540, 4000))
    plain = train(parties, SecureBoost(**FEW, security="none")).scores["test/federated/auc"]
    little, much = (
        train(parties, FedXGBoost(**NOISE | {"epsilon": e}), secret_seed=1).scores["test/federated/auc"]
        for e in (1000.0, 0.05)
    )
    assert abs(little - plain) < 0.02
    assert much < plain - 0.02


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"security": "paillier"}, ConfigError, "'product' or 'noise'"),
        ({"security": "noise"}, ConfigError, "epsilon=None"),
        ({"security": "noise", "epsilon": 0.0}, ConfigError, "epsilon=0.0"),
        ({"security": "noise", "epsilon": 1.0, "delta": 1.0}, ConfigError, "delta=1.0"),
        ({"epsilon": 1.0}, CompositionError, "epsilon with security='product'"),
        ({"delta": 1e-5}, CompositionError, "delta with security='product'"),
        ({"trees": 0}, ConfigError, "trees=0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, error, words):
    with pytest.raises(error, match=words):
        FedXGBoost(**settings)


def test_numbers_have_no_noise_that_covers_them():
    with pytest.raises(ConfigError, match="labels that are numbers"):
        FedXGBoost(**NOISE).fit_objective(TreeLoss(SQUARED))
    assert FedXGBoost().fit_objective(TreeLoss(SQUARED)) == TreeLoss(SQUARED)


def test_bytes_are_known_beforehand():
    parties, _ = as_parties(draw(531, 1500))
    for model in (FedXGBoost(trees=4), FedXGBoost(trees=4, security="noise", epsilon=1.0)):
        found = train(parties, model)
        columns = [len(t) - 1 - ("y" in t) for t in parties.values()]
        expected = found.outcome.job.predict_cost({name: len(t["id"]) for name, t in parties.items()}, columns)
        assert 0.7 < found.cost["bytes"] / expected["bytes"] < 1.35
