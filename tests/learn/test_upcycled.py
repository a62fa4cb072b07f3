"""Upcycled-FL: the laws T1-T6 and T8 of its specification, and that it leaves the base alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import (
    IFCA,
    Accelerated,
    FedAvg,
    FedAvgM,
    FedDualAvg,
    FedDyn,
    FedProx,
    FedYogi,
    FirstOrderResidual,
    PFedMe,
    Scaffold,
    Upcycled,
)
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.algorithm import Movable, RoundInfo, Stragglers
from atoll.learn.transforms import Momentum
from atoll.models.quadratic import Quadratic, minimiser, quadratics
from atoll.testing import check_algorithm

LOCAL = {"lr": 0.05, "epochs": 3, "batch_size": 8}
BASES = {
    "FedAvg": FedAvg(**LOCAL),
    "FedAvgM": FedAvgM(**LOCAL, momentum=0.3),
    "FedProx": FedProx(**LOCAL, mu=0.1),
    "Scaffold": Scaffold(**LOCAL),
    "FedDyn": FedDyn(**LOCAL, alpha=0.1),
    "pFedMe": PFedMe(lr=0.05, epochs=1, batch_size=8, lam=5.0),
    "FedYogi": FedYogi(**LOCAL, server_lr=0.02),
}


def islands():
    return atoll.data.dirichlet(atoll.data.iris(), parties=6, alpha=0.5, seed=1)


def run(algorithm, rounds=4, engine="inline", selection=None, seed=3, **more):
    job = atoll.Training(
        model=atoll.models.linear(4, 3), algorithm=algorithm, selection=selection or atoll.Uniform(3), rounds=rounds
    )
    return atoll.simulate(job, islands(), engine=engine, seed=seed, **more)


def on_quadratics(algorithm, rounds, clients=4, dim=5):
    job = atoll.Training(model=Quadratic(dim), algorithm=algorithm, selection=atoll.Everyone(), rounds=rounds)
    return atoll.simulate(job, quadratics(clients, dim), engine="inline", seed=0)


@pytest.mark.parametrize("name", BASES)
def test_the_contract_holds_for_every_base(name):
    check_algorithm(Upcycled(base=BASES[name], coefficient=0.5), rounds=4)


@pytest.mark.parametrize("name", ["FedAvg", "FedProx"])
def test_a_pair_is_the_base_with_server_learning_rate_one_plus_eta(name):  # T3
    eta = 0.7
    pairs = run(Upcycled(base=BASES[name], coefficient=eta), rounds=6)
    folded = run(type(BASES[name])(**{**LOCAL, "server_lr": 1 + eta}), rounds=3)
    if name == "FedProx":
        folded = run(FedProx(**LOCAL, mu=0.1, server_lr=1 + eta), rounds=3)
    for leaf, value in folded.params.items():
        np.testing.assert_allclose(pairs.params[leaf], value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", BASES)
def test_with_eta_0_the_odd_rounds_are_the_base_itself(name):  # T6
    """Same cohorts, stragglers and batches, to the bit."""
    late = {"stragglers": Stragglers(0.5), "epochs": 3}
    base = replace(BASES[name], **late)
    for seen, rounds in ((5, 3), (6, 3), (4, 2)):
        got, want = run(Upcycled(base=base, coefficient=0.0), rounds=seen), run(base, rounds=rounds)
        for leaf, value in want.params.items():
            np.testing.assert_array_equal(got.params[leaf], value)


def test_mu_0_or_a_growing_lambda_end_at_the_base():
    assert Upcycled(base=FedAvg(), mu=0.0, lambda_=1.0).eta(1) == 0.0
    up = Upcycled(base=FedProx(mu=1.0), mu=1.0, lambda_=2.0, schedule="sqrt")
    assert [up.eta(m) for m in (1, 4)] == pytest.approx([1 / 3, 1 / 5])
    assert Upcycled(base=FedProx(), coefficient=1 / 3, schedule="linear").eta(3) == pytest.approx(1 / 7)
    assert Upcycled(base=FedProx(mu=1.0), mu=1.0, lambda_=1e12).eta(1) < 1e-11


@pytest.mark.parametrize(
    "base",
    [
        FedDualAvg(lr=0.05, steps=3, batch_size=None, l1=0.3),
        FedDualAvg(lr=0.05, steps=3, batch_size=None, mirror="entropy"),
        IFCA(base=FedAvg(lr=0.05, steps=3, batch_size=None)),
    ],
    ids=["thresholds", "simplex", "clusters"],
)
def test_what_the_model_is_computed_from_moves_as_far(base):  # T3, where `params` is not what is sent
    clusters = isinstance(base, IFCA)
    further = replace(base, base=replace(base.base, server_lr=1.5)) if clusters else replace(base, server_lr=1.5)
    pairs, folded = on_quadratics(Upcycled(base=base, coefficient=0.5), 6), on_quadratics(further, 3)
    np.testing.assert_allclose(pairs.params["w"], folded.params["w"], rtol=1e-12, atol=1e-14)
    if clusters:
        inside = on_quadratics(IFCA(base=Upcycled(base=base.base, coefficient=0.5)), 6)
        np.testing.assert_allclose(inside.params["w"], folded.params["w"], rtol=1e-12)


@pytest.mark.parametrize("base", [Scaffold, FedDyn])
@pytest.mark.parametrize("more", [{"schedule": "linear"}, {"schedule": "sqrt"}, {"period": 3}], ids=str)
def test_unequal_extrapolations_end_at_the_optimum_too(base, more):
    """SCAFFOLD's control and FedDyn's h are means of what clients keep, and stay so."""
    own = {"alpha": 1.0} if base is FedDyn else {}
    up = Upcycled(base=base(lr=0.05, steps=10, batch_size=None, **own), coefficient=0.5, **more)
    data = quadratics(3, 3, seed=1)
    job = atoll.Training(model=Quadratic(3), algorithm=up, selection=atoll.Everyone(), rounds=60)
    best, _ = minimiser(data)
    np.testing.assert_allclose(atoll.simulate(job, data, engine="inline").params["w"], best, atol=0.005)


def test_even_rounds_contact_nobody(tmp_path):  # T4
    up = run(Upcycled(base=BASES["Scaffold"], coefficient=0.5), rounds=6)
    base = run(BASES["Scaffold"], rounds=6)
    rows = list(up.metrics)
    assert [row["selected"] for row in rows] == [3, 0, 3, 0, 3, 0]
    assert [row["bytes_up"] + row["bytes_down"] > 0 for row in rows] == [True, False] * 3
    for column in ("bytes_up", "bytes_down", "selected"):
        assert 2 * sum(r[column] for r in rows) == pytest.approx(sum(r[column] for r in base.metrics), rel=0.02)


def test_one_step_in_three_reuses_the_last_round_with_data():
    up = Upcycled(base=FedAvg(**LOCAL), coefficient=0.5, period=3)
    models = [run(up, rounds=r).params["weight"] for r in (1, 2, 3, 4)]
    np.testing.assert_allclose(models[2], models[1] + 0.5 * (models[1] - models[0]), rtol=1e-12)
    assert [row["selected"] for row in run(up, rounds=6).metrics] == [3, 3, 0, 3, 3, 0]


def test_closed_form_with_exact_solves():  # T1
    """The server's extrapolation is the mean of the clients' minimisers of the linearised, penalised, proximal objective."""
    mu, lam, clients, dim = 2.0, 3.0, 4, 5
    data = quadratics(clients, dim)
    exact = FedProx(lr=0.08, steps=3000, batch_size=None, mu=mu)
    odd, even = (on_quadratics(Upcycled(base=exact, mu=mu, lambda_=lam), rounds).params["w"] for rounds in (3, 4))
    before = on_quadratics(Upcycled(base=exact, mu=mu, lambda_=lam), 2).params["w"]
    local, further = [], []
    for k in range(clients):
        h, b = np.asarray(data.shard(k).x), np.asarray(data.shard(k).y)
        w = np.linalg.solve(h + mu * np.eye(dim), b + mu * before)
        np.testing.assert_allclose(h @ w - b + mu * (w - before), 0, atol=1e-9)  # Eq. 4
        slope = h @ w - b
        local.append(w)
        # argmin <slope, v> + lam/2 ||v - w||^2 + mu/2 ||v - W||^2, with W the new aggregate
        further.append((slope, w))
    aggregate = np.mean(local, axis=0)
    np.testing.assert_allclose(odd, aggregate, atol=1e-8)
    minima = [(lam * w + mu * aggregate - slope) / (lam + mu) for slope, w in further]
    np.testing.assert_allclose(even, np.mean(minima, axis=0), atol=1e-8)


@given(st.floats(0.1, 5.0), st.floats(0.1, 5.0), st.floats(0.01, 1.0))
def test_quadratic_exactness(a, mu, eta):  # T5
    """F = a/2 ||w||^2 for all: a pair multiplies the model by r (1 + eta) - eta, r = mu / (mu + a)."""
    r = mu / (mu + a)
    up = Upcycled(base=FedProx(mu=mu, batch_size=None), coefficient=eta)
    state = up.init({"w": np.array([1.0])})
    info = RoundInfo(1, 1, 1, 1, rng=Rng(0))
    state = up.fold(state, {"update": {"w": np.array([r - 1.0])}}, info, "train")
    state = up.advance(state, info)
    assert up.plan(state) == ()
    state = up.advance(state, info)
    factor = float(state["params"]["w"][0])
    assert factor == pytest.approx(r * (1 + eta) - eta, abs=1e-12)
    # It beats the odd round alone, does not overshoot, and falls short of two true rounds, each from its own r on.
    for margin, border in ((r - abs(factor), eta / (2 + eta)), (factor, eta / (1 + eta)), (factor - r * r, eta)):
        if abs(margin) > 1e-9:  # on the border rounding decides
            assert (margin > 0) == (r > border)
    exact = Upcycled(base=FedProx(mu=mu), mu=mu, lambda_=a)
    assert exact.eta(1) == pytest.approx(r)
    assert r * (1 + exact.eta(1)) - exact.eta(1) == pytest.approx(r * r)  # two true rounds for one


def test_the_first_order_residual_measures_the_solve():  # T2
    rough, fine = (
        on_quadratics(FirstOrderResidual(base=FedProx(lr=0.08, steps=s, batch_size=None, mu=1.0)), 2) for s in (5, 3000)
    )
    assert list(fine.metrics)[-1]["residual"] < 1e-8 < 1e-2 < list(rough.metrics)[-1]["residual"]
    plain = on_quadratics(FedProx(lr=0.08, steps=5, batch_size=None, mu=1.0), 2)
    np.testing.assert_allclose(rough.params["w"], plain.params["w"], rtol=1e-12)
    both = on_quadratics(
        Upcycled(base=FirstOrderResidual(base=FedProx(lr=0.08, steps=5, batch_size=None, mu=1.0)), coefficient=0.3), 3
    )
    assert ["residual" in row for row in both.metrics] == [True, False, True]


def test_what_moves_along_is_the_bases_word():
    params = {"weight": np.ones((2, 2)), "count": np.array([3])}
    info = RoundInfo(1, 2, 2, 4, rng=Rng(0))
    up = Upcycled(base=Scaffold(), coefficient=0.5)
    state = up.init(params)
    half = {"weight": np.full((2, 2), 0.5), "count": np.array([1])}
    state = up.advance(up.fold(state, {"update": half, "control": half}, info, "train"), info)
    control = state["control"]["weight"].copy()
    state = up.advance(state, info)
    np.testing.assert_allclose(state["params"]["weight"], 1.75)
    np.testing.assert_allclose(state["control"]["weight"], 1.5 * control)
    assert control.max() > 0
    np.testing.assert_array_equal(state["params"]["count"], [4])  # an integer moves with data only
    assert state["params"]["count"].dtype == params["count"].dtype
    for base, keys in ((FedDyn(), ("params", "h")), (FedYogi(), ("params",)), (FedAvgM(), ("params",))):
        assert Upcycled(base=base, coefficient=0.1).extrapolates == keys
    for base in (Scaffold(), FedDyn()):  # changes that count unequally must not be in the server's part of a sum alone
        assert Upcycled(base=base, coefficient=0.1, schedule="sqrt").extrapolates == ("params",)
        assert Upcycled(base=base, coefficient=0.1, period=3).extrapolates == ("params",)
    accelerated = Accelerated(base=Scaffold(option=1), transforms=(Momentum(0.5),))
    assert Upcycled(base=accelerated, coefficient=0.1).extrapolates == ("params", "control")


@pytest.mark.parametrize("engine", ["batched", "processes"])
def test_engines_agree(engine):
    algorithm = Upcycled(base=BASES["Scaffold"], coefficient=0.5)
    one, many = run(algorithm), run(algorithm, engine=engine)
    for leaf, value in one.params.items():
        np.testing.assert_allclose(many.params[leaf], value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coefficient": 0.5, "mu": 1.0, "lambda_": 1.0}, "either a coefficient"),
        ({"mu": 1.0}, "both mu and lambda_"),
        ({"mu": 1.0, "lambda_": 0.0}, "lambda_ > 0"),
        ({"coefficient": -0.1}, r"coefficient=-0\.1"),
        ({"coefficient": 0.5, "schedule": "wild"}, "schedule='wild'"),
        ({"coefficient": 1.5, "schedule": "sqrt"}, "at most 1"),
        ({"coefficient": 0.5, "period": 1}, "period=1"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Upcycled(base=FedAvg(), **options)


def test_a_base_that_keeps_not_what_it_says_is_refused():
    class Wrong(FedAvg, Movable):
        extrapolates = ("params", "nothing")

    with pytest.raises(CompositionError, match="keeps no nothing"):
        Upcycled(base=Wrong(), coefficient=0.1).init({"w": np.zeros(1)})
