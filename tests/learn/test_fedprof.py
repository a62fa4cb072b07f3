"""FedProf: versions of profiles, scores, draws, and what becomes of clients with spoiled data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.aggregation import EqualWeights, KeepGlobal, KeepLocal
from atoll.algorithms import FedAvg
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.requests.party import Roster
from atoll.learn import Training
from atoll.learn.profiles import divergence, selection_probabilities
from atoll.learn.selection.base import draw
from atoll.learn.selection.fedprof import divergences_of, empty_store, store_profiles
from atoll.selection import Candidates, FedProf, SizeProportional, unbiased_alphas
from atoll.stages import QSGD
from tests.support.fedprof_toys import job, profile, round_seen, spoiled, watched
from tests.support.learn_toys import flat, islands


def surveyed(n, seed=0, alpha=10.0, **settings):
    """A rule that heard everybody once, its memory, and the divergences."""
    rng = np.random.default_rng(seed)
    rule, own = FedProf(2, alpha=alpha, **settings), profile(rng)
    told = [profile(rng) for _ in range(n)]
    state = rule.heard(round_seen(n, 1, range(n), told, own), rule.init(Roster(n).all()))
    return rule, state, np.array([divergence(p, own) for p in told])


def odds(rule, state, number=1):
    return np.exp(rule.log_odds(np.arange(len(state["version"])), number, state))


# Scores


@given(st.integers(1, 20), st.floats(0.0, 20.0), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_probabilities_are_those_of_the_scores(n, alpha, seed):
    rule, state, div = surveyed(n, seed, alpha)
    np.testing.assert_allclose(divergences_of(state), div, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(odds(rule, state), selection_probabilities(div, alpha), rtol=1e-9, atol=1e-300)


@given(st.integers(1, 20), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_alpha_zero_draws_uniformly(n, seed):
    rule, state, _ = surveyed(n, seed, 0.0)
    np.testing.assert_allclose(odds(rule, state), np.full(n, 1 / n), rtol=1e-12)


def test_every_client_may_have_its_own_alpha():
    alphas = (0.0, 1.0, 5.0, 2.5)
    rule, state, div = surveyed(4, alpha=alphas)
    np.testing.assert_allclose(odds(rule, state), selection_probabilities(div, np.array(alphas)), rtol=1e-9)
    with pytest.raises(ConfigError, match="alpha has 4 numbers for 3 clients"):
        rule.init(Roster(3).all())


def test_a_floor_of_exploration_and_ageing():
    rule, state, div = surveyed(6, alpha=10.0, explore=0.3)
    plain = selection_probabilities(div, 10.0)
    np.testing.assert_allclose(odds(rule, state), 0.7 * plain + 0.3 / 6, rtol=1e-9)
    ageing, state, div = surveyed(6, alpha=10.0, ageing=0.5)
    state["version"][2] = 0  # unknown: the median divergence, and no age
    lam = np.exp(-10 * div + 0.5 * (9 - 1))
    known = np.delete(div, 2)
    lam[2] = np.exp(-10 * np.median(known))
    np.testing.assert_allclose(odds(ageing, state, number=9), lam / lam.sum(), rtol=1e-9)


def test_a_client_without_rows_is_never_drawn():
    rng = np.random.default_rng(0)
    told, rule = [profile(rng) for _ in range(3)], FedProf(3, explore=0.5)
    seen = round_seen(3, 1, range(3), told, profile(rng), examples=[4, 0, 5])
    state = rule.heard(seen, rule.init(Roster(3).all()))
    there = Candidates(Roster(3).all(), 1, Rng.of(0))
    assert sorted(rule.invite(there, 3, state).tolist()) == [0, 2]
    assert rule.survey(there, 3, state).tolist() == []  # nor asked again
    none = rule.heard(round_seen(1, 1, [0], told[:1], told[1], examples=[0]), rule.init(Roster(1).all()))
    with pytest.raises(DataError, match="no client has an example"):
        rule.invite(Candidates(Roster(1).all(), 1, Rng.of(0)), 1, none)


def test_everyone_is_asked_first_and_newcomers_later():
    rng = np.random.default_rng(0)
    rule, everybody = FedProf(2), Candidates(Roster(5).all(), 1, Rng.of(0))
    state = rule.init(Roster(5).all())
    assert rule.survey(everybody, 2, state).tolist() == [0, 1, 2, 3, 4]
    state = rule.heard(round_seen(5, 1, [0, 2, 3], [profile(rng) for _ in range(3)], profile(rng)), state)
    assert rule.survey(everybody, 2, state).tolist() == [1, 4]


# Versions


@given(st.integers(0, 10_000), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_profiles_are_compared_with_the_servers_of_the_same_version(seed, lag):
    """Beside an account that forgets nothing; the store keeps what somebody refers to, and the last ``lag`` rounds."""
    rng, n = np.random.default_rng(seed), 6
    store, clients, server = empty_store(Roster(n).all()), {}, {}
    for number in range(1, 9):
        server[number] = profile(rng)
        who = np.flatnonzero(rng.random(n) < 0.4)
        late = np.maximum(1, number - rng.integers(0, lag + 1, len(who)))
        told = [profile(rng) for _ in who]
        store = store_profiles(store, round_seen(n, number, who, told, server[number], versions=late), lag)
        clients.update({int(k): (int(v), p) for k, v, p in zip(who, late, told, strict=True)})
        expected = [divergence(clients[k][1], server[clients[k][0]]) if k in clients else np.nan for k in range(n)]
        np.testing.assert_allclose(divergences_of(store), expected, rtol=1e-9, atol=1e-12)
        kept = {v for v, _ in clients.values()} | set(range(max(1, number - lag + 1), number + 1) if lag else ())
        assert set(store["own"]["version"].tolist()) == kept


def test_a_profile_of_a_version_that_the_server_dropped_is_an_error():
    rng = np.random.default_rng(0)
    store = store_profiles(empty_store(Roster(3).all()), round_seen(3, 1, [0], [profile(rng)], profile(rng)))
    store = store_profiles(store, round_seen(3, 2, [0], [profile(rng)], profile(rng)))
    assert store["own"]["version"].tolist() == [2]
    late = round_seen(3, 3, [1], [profile(rng)], profile(rng), versions=[1])
    with pytest.raises(DataError, match=r"client-1 sent a profile in round 3 made with the model of round 1, but the"):
        store_profiles(store, late)
    # Where the pacing says that somebody still has the model of round 1, nothing is dropped.
    store = empty_store(Roster(3).all())
    for number, pending in ((1, [1]), (2, [1, 2])):
        seen = round_seen(3, number, [0], [profile(rng)], profile(rng))
        store = store_profiles(store, replace(seen, pending=np.array(pending)))
    assert store_profiles(store, late)["version"].tolist() == [2, 1, 0]


def test_another_layer_in_between_is_an_error():
    rng = np.random.default_rng(0)
    store = store_profiles(empty_store(Roster(2).all()), round_seen(2, 1, [0], [profile(rng)], profile(rng)))
    with pytest.raises(DataError, match="profiles have 4 elements, but earlier ones have 3"):
        store_profiles(store, round_seen(2, 2, [1], [profile(rng, 4)], profile(rng, 4)))


# Theorem 5.1


def test_the_theorems_alphas_draw_by_share():
    rng = np.random.default_rng(1)
    div, rho = rng.uniform(0.01, 3.0, 8), rng.dirichlet(np.ones(8))
    alphas = unbiased_alphas(div, rho)
    assert (alphas >= 0).all()
    np.testing.assert_allclose(selection_probabilities(div, alphas), rho, rtol=1e-9)
    with pytest.raises(DataError, match="not positive"):
        unbiased_alphas([0.0, 1.0], [0.5, 0.5])


def test_with_replacement_the_mean_of_a_round_is_unbiased_and_its_variance_falls_as_one_over_k():
    """Lemmas C.4 and C.5 of the source with q = rho: fixed local models, 8000 rounds; without replacement it is biased."""
    rho, models = np.array([0.4, 0.3, 0.15, 0.1, 0.05]), np.array([1.0, -2.0, 3.0, 0.5, 8.0])
    logits, wanted = np.log(rho), float(np.dot([0.4, 0.3, 0.15, 0.1, 0.05], [1.0, -2.0, 3.0, 0.5, 8.0]))

    def rounds(k, replace):
        return np.array([models[draw(Rng.of(k).child(t), logits, k, replace=replace)].mean() for t in range(8000)])

    three, twelve, apart = rounds(3, True), rounds(12, True), rounds(3, False)
    spread = float((rho * (models - wanted) ** 2).sum())
    assert three.mean() == pytest.approx(wanted, abs=5 * np.sqrt(spread / 3 / 8000))
    assert three.var() == pytest.approx(spread / 3, rel=0.06)
    assert twelve.var() == pytest.approx(spread / 12, rel=0.06)
    # Exact shares without replacement, enumerated in test_selection_rules.
    assert apart.mean() == pytest.approx(np.dot([0.2994, 0.2786, 0.2008, 0.1444, 0.0768], models), abs=0.03)
    assert abs(apart.mean() - wanted) > 0.3


# In a training


@pytest.mark.network
def test_spoiled_clients_are_drawn_less_and_profiles_are_of_the_received_model():
    rule = watched(4, alpha=10.0)
    result = atoll.simulate(job(rule, rounds=8), spoiled(), engine="batched")
    drawn = np.concatenate([seen.asked.positions for seen in rule.log])
    assert (drawn >= 6).sum() < 0.2 * len(drawn)
    uniform = watched(4, alpha=0.0)
    atoll.simulate(job(uniform, rounds=8), spoiled(), engine="batched")
    assert (np.concatenate([seen.asked.positions for seen in uniform.log]) >= 6).sum() > 0.25 * len(drawn)
    # 12 profiles of 16 means and variances came before the first round, and 4 with every reply.
    assert result.metrics[0]["bytes_up"] - result.metrics[1]["bytes_up"] > 12 * 8 * 16


def test_the_servers_own_profile_is_of_the_model_that_clients_receive():
    """Clients have the server's rows, and a coarse quantiser lies between: both sides profile what comes out of it."""
    found = []

    class Watched(FedProf):
        def accept(self, seen, state):
            new = super().accept(seen, state)
            found.append(divergences_of(new).max())
            return new

    class Alike:
        def __init__(self, rows):
            self.test, self.names, self.sizes = rows, ["a", "b", "c"], [len(rows)] * 3

        def __len__(self):
            return 3

        def shard(self, i):
            return self.test

    job = Training(
        model=atoll.models.mlp(4, 3),
        algorithm=FedAvg(lr=0.1, batch_size=5),
        selection=Watched(2),
        downlink=QSGD(levels=1),
        rounds=3,
    )
    atoll.simulate(job, Alike(islands([30]).shard(0)), engine="inline", seed=0)
    assert len(found) == 3
    assert max(found) < 1e-6


def test_the_stored_divergence_is_that_of_the_two_profiles():
    rule = watched(4)
    atoll.simulate(job(rule, rounds=3), spoiled(), engine="inline")
    seen, state = rule.log[-1], rule.states[-1]
    own = seen.own("profile")
    for client, told in zip(seen.replied.positions, seen.reports["profile"], strict=True):
        assert divergences_of(state)[client] == pytest.approx(divergence(told, own), rel=1e-9)


@pytest.mark.parametrize("replace", [False, True])
def test_the_same_on_engines_and_after_a_resume(replace, tmp_path):
    plan = job(FedProf(3, alpha=2.0, replace=replace, explore=0.1, ageing=0.1), rounds=4, aggregation=EqualWeights())
    whole = atoll.simulate(plan, spoiled(), engine="inline")
    batched = atoll.simulate(plan, spoiled(), engine="batched")
    np.testing.assert_allclose(flat(batched.params), flat(whole.params), rtol=1e-4, atol=1e-5)
    atoll.simulate(plan.replace(rounds=2), spoiled(), engine="inline", folder=tmp_path)
    resumed = atoll.simulate(plan, spoiled(), engine="inline", folder=tmp_path, resume=True)
    np.testing.assert_array_equal(flat(resumed.params), flat(whole.params))


@pytest.mark.network
@pytest.mark.parametrize("aggregation", [KeepGlobal(), KeepLocal(), EqualWeights()], ids=repr)
def test_full_and_partial_aggregation(aggregation):
    rows = atoll.simulate(job(FedProf(4), rounds=3, aggregation=aggregation), spoiled(), engine="batched").metrics
    assert rows.last("test/loss") < np.log(10)


def test_what_it_cannot_do_without():
    with pytest.raises(ConfigError, match="FedProf compares clients with the server's own data, but there is none"):
        atoll.simulate(job(FedProf(2)), spoiled(test=False), engine="inline")
    with pytest.raises(CompositionError, match="cannot report 'profile'"):
        atoll.simulate(
            Training(model=atoll.models.linear(4, 3), selection=FedProf(2)), islands([5, 6]), engine="inline"
        )
    with pytest.raises(ConfigError, match="has no layer 'nowhere'"):
        atoll.simulate(job(FedProf(2, layer="nowhere")), spoiled(), engine="inline")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"alpha": -1.0}, "alpha=-1.0"),
        ({"alpha": ()}, r"alpha=\(\)"),
        ({"explore": 1.5}, "explore=1.5"),
        ({"ageing": -0.1}, "ageing=-0.1"),
        ({"lag": -1}, "lag=-1"),
        ({"floor": 0.0}, "floor=0.0"),
    ],
)
def test_settings_that_cannot_be(settings, text):
    with pytest.raises(ConfigError, match=text):
        FedProf(2, **settings)


@pytest.mark.slow
def test_sizes_and_the_theorems_alphas_draw_alike():
    """The alphas cancel the divergences: the draw is ``SizeProportional``'s."""
    _, state, div = surveyed(5, replace=True)
    rho = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    biased = FedProf(2, alpha=tuple(unbiased_alphas(div, rho).tolist()), replace=True)
    np.testing.assert_allclose(np.exp(biased.log_odds(np.arange(5), 1, state)), rho, rtol=1e-9)
    counts = np.zeros((2, 5))
    for number in range(3000):
        there = Candidates(Roster(5).all(), number, Rng.of(0).child(number), lambda: rho * 100)
        np.add.at(counts[0], biased.invite(there, 2, state), 1)
        np.add.at(counts[1], SizeProportional(2).invite(there, 2, None), 1)
    np.testing.assert_allclose(counts / 6000, np.stack([rho, rho]), atol=0.03)
