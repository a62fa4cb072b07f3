"""Linear models on secret shares: the plain model of SecureML's logistic function, or of Taylor's loss."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing.crash import Killed, live
from atoll.trees.objectives import LOGISTIC, POISSON, TreeLoss
from atoll.vertical import Vertical, VerticalLinear
from atoll.vertical.job import train_pooled
from atoll.vertical.linear.vertical_linear import _places
from atoll.vertical.model import GuestRows
from tests.support.sessions_by_hand import hold
from tests.support.vertical_toys import as_parties, draw

SHARED = VerticalLinear(security="shared")


def train(parties, model=SHARED, **more):
    job = Vertical(model=model, **more)
    return job, atoll.simulate(job, parties, engine="inline", progress=False)


@pytest.mark.parametrize("seed", [0, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, *range(3, 12)))])
def test_on_shares_it_is_the_plain_model(seed):
    table = draw(700 + seed, 500, holes=True)
    parties, _ = as_parties(table, 1 + seed % 2, seed)
    job, result = train(parties, task=table.task)
    assert result.compare(train_pooled(job, parties, result))["difference"] < 1e-4
    if table.task == "binary":
        keys = {name: len(columns["id"]) for name, columns in parties.items()}
        foreseen = job.predict_cost(keys, [len(columns) - 1 - (name == "guest") for name, columns in parties.items()])
        assert 0.3 < foreseen["bytes"] / result.cost["bytes"] < 3


def test_pieces_are_secureml():
    """The optimum has ``x' (f(m) - y) + penalty w = 0`` with ``f`` clipped at 0 and 1 (Mohassel and Zhang 2017, equation 7)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = (x[:, 0] + 0.5 * rng.normal(size=300) > 0.3).astype(float)
    part = SHARED.train_pooled(GuestRows(x, y, TreeLoss(LOGISTIC)))
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    m = scaled @ part["weights"][:, 0] + part["base"][0]
    assert (np.abs(m) > 0.5).mean() > 0.2
    r = np.clip(m + 0.5, 0, 1) - y
    np.testing.assert_allclose(scaled.T @ r + part["weights"][:, 0], 0, atol=1e-8)
    assert r.sum() == pytest.approx(0, abs=1e-8)


def test_a_copy_a_constant_and_an_empty_column_are_in_bounds():
    rng = np.random.default_rng(3)
    ids, x = np.arange(240), rng.normal(size=(240, 3))
    y = x[:, 0] + x[:, 2] + rng.normal(size=240)
    bank = {"id": ids, "a": x[:, 0], "b": x[:, 1], "y": y}
    shop = {"id": ids, "copy": x[:, 0], "c": x[:, 2], "flat": np.ones(240), "none": np.full(240, np.nan)}
    for label in (y, (y > 0).astype(int)):
        parties = {"bank": {**bank, "y": label}, "shop": shop}
        job, result = train(parties)
        assert result.compare(train_pooled(job, parties, result))["difference"] < 1e-3
    bare = {"bank": bank, "shop": {"id": ids}}
    job, result = train(bare)
    assert result.compare(train_pooled(job, bare, result))["difference"] < 1e-4


@pytest.mark.parametrize("security", ["shared", pytest.param("ckks", marks=pytest.mark.slow)])
def test_killed_and_resumed_it_stays_in_bounds(tmp_path, security):
    """A resumed training has other shares and other noise: the rounding differs."""
    pytest.importorskip("tenseal")
    parties, _ = as_parties(draw(702, 260))
    job = Vertical(model=VerticalLinear(security=security))

    def world(folder, resume=False):
        return World(Community(parties, dict.fromkeys(job.model.helpers)), Inline(), folder=tmp_path / folder, resume=resume)  # fmt: skip

    whole = live(world("whole"), job)
    expected = whole.result.predictions["federated"]
    for step in (len(whole.steps) // 2, len(whole.steps) - 3):
        with contextlib.suppress(Killed):
            live(world(f"killed {step}"), job, kill_at=step)
        again = live(world(f"killed {step}", True), job).result
        np.testing.assert_allclose(again.predictions["federated"], expected, rtol=0, atol=1e-4)


def rows(n=40):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return GuestRows(x, (x[:, 0] > 0).astype(float), TreeLoss(LOGISTIC))


HOST_X = np.random.default_rng(1).normal(size=(40, 3))


def guest(peers):
    return SHARED.train_guest(rows(), peers, ["host"], secret=Secret(1))


def host(peers):
    return SHARED.train_host(HOST_X, peers, "guest", secret=Secret(2))


def dealer(peers):
    return SHARED.assist("dealer", peers, ["guest", "host"], secret=Secret(3))


def test_nothing_but_uniform_words_travels_and_weights_go_to_their_owner_alone():
    (one, two, _), said = hold(guest=guest, host=host, dealer=dealer)
    to_dealer = [m for _, target, m in said if target == "dealer"]
    assert all(set(m) <= {"what", "shapes", "bitwise", "by", "owner"} for m in to_dealer)
    between = [m for source, target, m in said if "dealer" not in (source, target)]
    arrays = [np.asarray(each) for m in between for each in (m if isinstance(m, list) else [m]) if not isinstance(m, dict)]  # fmt: skip
    assert {each.dtype for each in arrays} == {np.dtype(np.uint64)}
    large = np.concatenate([each.ravel() for each in arrays if each.size >= 40])
    share_of_ones = np.unpackbits(large.view(np.uint8)).mean()
    assert abs(share_of_ones - 0.5) < 0.02
    # What is sent last are shares of the other's weights, of as many directions as it has.
    assert [np.asarray(m).shape for m in between[-2:]] in ([(3, 1), (3, 1)],)
    plain = SHARED.train_pooled(GuestRows(np.concatenate([rows().x, HOST_X], axis=1), rows().targets, TreeLoss(LOGISTIC)))  # fmt: skip
    joined = np.concatenate([one["weights"], two["weights"]])
    np.testing.assert_allclose(joined, plain["weights"], atol=1e-3)


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"directions": -1}, "-1 directions at 'host'"),
        ({"directions": 1 << 20}, "1048576 directions at 'host'"),
        ("x", "None directions at 'host'"),
    ],
)
def test_a_host_that_says_something_else_is_refused(told, match):
    async def wrong(peers):
        await peers.recv("guest")
        await peers.send("guest", told)

    with pytest.raises(AtollError, match=match):
        hold(guest=guest, host=wrong, dealer=dealer)


def test_hosts_that_the_session_does_not_have_are_refused():
    assert _places(["mall", "shop"], "bank", ["shop"]) == (["bank", "mall", "shop"], "mall")
    for told in (
        ["shop"],
        ["mall", "mall"],
        ["mall", "bank"],
        ["mall", "shop", "tram"],
        ["mall"],
        ["mall", "shop", "shop"],
        ["bank", "shop"],
        None,
        "mall",
    ):
        with pytest.raises(AtollError, match=r"hosts .* of 'bank'"):
            _places(told, "bank", ["shop"])


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(CompositionError, match="l1 with security='shared'"):
        VerticalLinear(security="shared", l1=1.0)
    with pytest.raises(CompositionError, match="short_exponents with security='shared'"):
        VerticalLinear(security="shared", short_exponents=True)


def test_targets_without_room_are_refused():
    """Poisson's are up to the log of the mean label: 690 for 1e300."""
    rng = np.random.default_rng(0)
    large = GuestRows(rng.normal(size=(400, 1)), 1e300 * (1 + rng.random(400)), TreeLoss(POISSON))

    async def guest(peers):
        return await VerticalLinear(security="shared", family="poisson").train_guest(
            large, peers, ["host"], secret=Secret(1)
        )

    async def host(peers):
        return await SHARED.train_host(rng.normal(size=(400, 1)), peers, "guest", secret=Secret(2))

    with pytest.raises(DataError, match=r"targets of .* sums may overflow"):
        hold(guest=guest, host=host, dealer=dealer)


def test_explain_names_the_dealer():
    job = Vertical(model=SHARED)
    assert job.others(2) == {"dealer": "dealer"}
    told = job.explain(Community(as_parties(draw(702, 260))[0]))
    assert any(one.who == "dealer" and "sees no shares" in one.sees for one in told.exposures)


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1))])
def test_two_parties_need_no_dealer(seed):
    """Triples by oblivious transfers: the same model in the same bounds, for many more bytes."""
    table = draw(700 + seed, 300, holes=True)
    parties, _ = as_parties(table)
    job = Vertical(model=VerticalLinear(security="shared", triples="transfers"), task=table.task)
    assert not job.helpers()
    result = atoll.simulate(job, parties, engine="inline", progress=False)
    assert result.compare(train_pooled(job, parties, result))["difference"] < 1e-3
    assert set(result.learns) == set(parties)
    assert any("oblivious transfers hide" in line for line in result.learns["host-1"])
    columns, outputs = [len(one) - 1 - (name == "guest") for name, one in parties.items()], len(result.classes)
    family = {"binary": "logistic", "multiclass": "multinomial", "regression": "least-squares"}[table.task]
    told = VerticalLinear(security="shared", triples="transfers", family=family).predict_cost(
        result.rows["train"], columns, outputs if outputs > 2 else 1
    )
    assert 0.3 < told["bytes"] / result.cost["bytes"] < 3


def test_transfers_are_of_two_parties_on_shares():
    with pytest.raises(CompositionError, match="triples with security='pair'"):
        VerticalLinear(triples="transfers")
    with pytest.raises(ConfigError, match="triples='magic'"):
        VerticalLinear(security="shared", triples="magic")
    parties, _ = as_parties(draw(702, 260), 2)
    with pytest.raises(AtollError, match="triples='transfers' with 3 parties"):
        atoll.simulate(Vertical(model=VerticalLinear(security="shared", triples="transfers")), parties, engine="inline", progress=False)  # fmt: skip
