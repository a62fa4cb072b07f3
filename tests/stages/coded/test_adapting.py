"""Ranges, word lengths and codebooks that follow the sums: within their bounds, one version at a time, and only from what a sum tells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.requests.chain import Chain, due, fit_chain
from atoll.core.requests.stage import Worded
from atoll.pacing import FedBuff
from atoll.reducers import MultiRound, SecureAggregation
from atoll.stages import ProductQuantizer, ScalarQuantizer
from atoll.stages.coded.scalar import Bounds, bits_for
from atoll.testing import check_stage

TOLD = {"words": 1000, "coded": 10_000, "clamped": 0, "overflowed": 0, "n": 10}
BOUNDS = Bounds(0.001, 1.0, 16.0, 9, 16)


def known(word=12, spread=4.0, hold=0, version=1):
    return {"word": word, "spread": spread, "hold": hold, "version": version}


def told(version=1, **counts):
    return {**TOLD, "version": version, **counts}


def steered(before, said, needed=9):
    return BOUNDS.steer_bounds(before, said, BOUNDS.spread(before, said), needed)


@pytest.mark.parametrize(
    "settings_of", [{}, {"scheme": "symmetric", "stochastic": True}, {"lift": "unsigned"}], ids=str
)
def test_the_stage_keeps_what_it_declares(settings_of):
    check_stage(ScalarQuantizer(adapt=0.001, **settings_of))


@pytest.mark.parametrize(
    ("said", "word"),
    [
        (told(overflowed=5), 13), (told(overflowed=50), 14), (told(overflowed=1), 11), (told(), 11), (told(unchecked=1000), 16),
        (told(version=2, overflowed=900), 12), (None, 12),
    ],
    ids=["overflows", "many overflows", "tolerated", "none", "unknown", "of another version", "nothing told"],
)  # fmt: skip
def test_words_grow_when_sums_overflow_and_shrink_by_a_bit_when_they_need_not_be_as_long(said, word):
    assert steered(known(), said)["word"] == word


def test_after_an_overflow_words_do_not_shrink_at_once():
    state, lengths = known(), []
    for said in (told(overflowed=5), *[told()] * 12):
        state = {**steered(state, said), "version": 1}
        lengths.append(state["word"])
    assert lengths == [13] * 9 + [12, 11, 10, 9]


@pytest.mark.parametrize(
    ("said", "spread"),
    [(told(clamped=50), 6.0), (told(clamped=5), 4.0), (told(clamped=0), 3.6), (told(version=3, clamped=5000), 4.0)],
    ids=["clamped", "tolerated", "none", "of another version"],
)
def test_the_range_follows_the_share_of_clamped_entries(said, spread):
    assert BOUNDS.spread(known(), said) == pytest.approx(spread)


@given(steps=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 1000), st.integers(1, 40)), max_size=40))
@settings(max_examples=40)
def test_whatever_is_counted_words_and_range_stay_within_their_bounds(steps):
    state = known()
    for clamped, overflowed, needed in steps:
        state = {**steered(state, told(clamped=clamped, overflowed=overflowed), needed), "version": 1}
        assert 9 <= state["word"] <= 16
        assert 1.0 <= state["spread"] <= 16.0


@given(st.integers(0, 2**30))
def test_the_length_of_a_word_holds_twice_the_last_sum_with_its_sign(most):
    half = 1 << (bits_for(most) - 1)
    assert -half <= -2 * most
    assert 2 * most < half


def test_a_clamped_or_overflowed_share_makes_parameters_stale_before_their_refresh():
    chain = Chain([ScalarQuantizer(adapt=0.001, refresh=10)])
    inputs = {"u": {"0": {"w": np.linspace(-1, 1, 40).reshape(8, 5)}}}
    made = fit_chain(chain, None, inputs, Rng(0), 1)
    assert (made["u"]["0"]["word"], made["u"]["0"]["spread"]) == (16, 4.0)
    assert not due(chain, made, 2, {"u": told()})
    assert not due(chain, made, 2, {"u": told(version=2, clamped=5000)})
    assert due(chain, made, 2, {"u": told(clamped=5000)})
    again = fit_chain(chain, made, inputs, Rng(0), 2, {"u": told(clamped=5000)})
    assert (again["u"]["0"]["version"], again["u"]["0"]["spread"]) == (2, 6.0)
    assert fit_chain(chain, made, inputs, Rng(0), 2, {"u": told()}) == made


def test_replies_under_words_of_two_lengths_do_not_add_up():
    chain = Chain([ScalarQuantizer(adapt=0.001)])
    value = {"w": np.linspace(-1, 1, 40, dtype=np.float32).reshape(8, 5)}
    parameters = fit_chain(chain, None, {"u": {"0": value}}, Rng(0), 1)
    short = {"u": {"0": {**parameters["u"]["0"], "word": 11, "version": 2}}}
    sent = [
        chain.knowing(one).send(Mean(value), chain.knowing(one).public(Rng(0)), Rng(1), {}, name="u").total.value
        for one in (parameters, short)
    ]
    bits = [facet(chain.stages[0], Worded).word_bits(one)[f"v{i + 1}"]["codes"]["w"] for i, one in enumerate(sent)]
    assert bits == [16, 11]


ISLANDS = atoll.data.dirichlet(atoll.data.digits(), parties=10, alpha=1.0, seed=0)


def trained(stage, rounds=14, islands=ISLANDS, **more):
    job = atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.2), uplink=[stage], rounds=rounds, **more
    )
    return atoll.simulate(job, islands, engine="inline")


def test_a_training_ends_with_shorter_words_and_the_same_accuracy():
    wide, own = trained(ScalarQuantizer(8), 10), trained(ScalarQuantizer(8, adapt=0.002), 10)
    lengths = own.metrics.column("word_bits")
    assert lengths[1] == 16
    assert lengths[-1] <= 12
    last = [run.metrics[-1]["bytes_up"] for run in (wide, own)]
    assert last[1] < 0.9 * last[0]
    assert own.metrics.last("test/accuracy") > wide.metrics.last("test/accuracy") - 0.02
    assert max(own.metrics.column("overflowed")[1:]) <= 0.002


def test_if_words_may_not_grow_codes_become_coarser_and_no_scale_is_fitted_to_sums_that_wrapped_around():
    """At 100 parties, codes of 8 bits do not fit words of 9: with a scale of the wrapped mean, the training would end beside the optimum."""
    chain = Chain([ScalarQuantizer(8, 9, adapt=0.01)])
    inputs = {"u": {"0": {"w": np.linspace(-1, 1, 40).reshape(8, 5)}}}
    first = fit_chain(chain, None, inputs, Rng(0), 1)
    garbage = {"u": {"0": {"w": np.full((8, 5), 1e-3)}}}
    second = fit_chain(chain, first, garbage, Rng(0), 2, {"u": told(overflowed=300)})
    third = fit_chain(chain, second, garbage, Rng(0), 3, {"u": told(version=2, overflowed=300)})
    scales = [float(one["u"]["0"]["scale"]["w"]) for one in (first, second, third)]
    assert np.allclose(np.array(scales) / scales[0], [1, 2, 4])
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=30, alpha=1.0, seed=0)
    fixed, own = (trained(ScalarQuantizer(8, 9, adapt=adapt), 8, islands) for adapt in (None, 0.01))
    assert own.metrics.last("overflowed") < 0.02 < fixed.metrics.last("overflowed")
    assert own.metrics.last("test/accuracy") > fixed.metrics.last("test/accuracy") + 0.2


def test_words_that_are_too_short_grow_within_their_bound_and_so_does_the_range():
    """The range is set far too small: every reply is clamped until it has grown."""
    run = trained(ScalarQuantizer(8, spread=0.5, adapt=0.01), rounds=8)
    clamped = run.metrics.column("clamped")
    assert clamped[1] > 0.05
    assert clamped[-1] < clamped[1] / 3


@pytest.mark.quick("standing keys")
@pytest.mark.parametrize("reducer", [SecureAggregation(), MultiRound()], ids=["keys for each sum", "standing keys"])
def test_masked_sums_take_words_of_the_length_of_the_round(reducer):
    plain, hidden = (
        trained(ScalarQuantizer(8, adapt=0.002), 5),
        trained(ScalarQuantizer(8, adapt=0.002), 5, reducer=reducer),
    )
    assert hidden.metrics.column("word_bits") == plain.metrics.column("word_bits")
    assert (
        np.abs(hidden.params["weight"] - plain.params["weight"]).max() < 1e-6
    )  # the first round's numbers are fixed point


@pytest.mark.slow  # its quick siblings are the test of two lengths, which do not add up, and that of an older version's counts
def test_each_version_has_a_sum_of_its_own_under_fedbuff():
    run = trained(
        ScalarQuantizer(8, adapt=0.002), 12, pacing=FedBuff(buffer=4, group=2), reducer=SecureAggregation(threshold=2)
    )
    lengths = run.metrics.column("word_bits")
    assert min(length for length in lengths if length) < 16
    assert run.metrics.last("test/accuracy") > 0.7


def test_with_public_rows_the_counts_of_the_last_sum_steer_the_mock_clients_fit():
    islands = ISLANDS.with_public(ISLANDS.shard(0).dataset())
    run = trained(ScalarQuantizer(8, adapt=0.002, spread=1.0), 6, islands)
    assert run.metrics.column("word_bits")[0] == 16
    assert run.metrics.column("word_bits")[-1] < 16


@pytest.mark.slow  # what is fitted is a tree of the state, whose quick tests are those of `test_fitting`
def test_a_run_that_is_resumed_goes_on_with_its_words(tmp_path):
    stage = ScalarQuantizer(8, adapt=0.002)
    job = atoll.Training(model=atoll.models.linear(64, 10), uplink=[stage], rounds=4)
    whole = atoll.simulate(job, ISLANDS, engine="inline")
    atoll.simulate(job.replace(rounds=2), ISLANDS, engine="inline", folder=tmp_path)
    resumed = atoll.simulate(job, ISLANDS, engine="inline", folder=tmp_path, resume=True)
    assert resumed.metrics.column("word_bits") == whole.metrics.column("word_bits")
    assert np.array_equal(resumed.params["weight"], whole.params["weight"])


def test_a_codebook_stays_until_its_error_has_grown():
    rng = np.random.default_rng(0)
    chain = Chain([ProductQuantizer(4, 16, refresh=1, adapt=0.2)])
    first, near, far = (
        {"u": {"0": {"w": rng.normal(size=(32, 16)) * scale + shift}}} for scale, shift in ((1, 0), (1, 0), (0.2, 3))
    )
    made = fit_chain(chain, None, first, Rng(0), 1)
    assert 0 < made["u"]["0"]["error"] < 1
    assert fit_chain(chain, made, first, Rng(0), 2) == made
    assert fit_chain(chain, made, far, Rng(0), 2)["u"]["0"]["version"] == 2
    always = Chain([ProductQuantizer(4, 16, refresh=1)])
    assert fit_chain(always, made, near, Rng(0), 2)["u"]["0"]["version"] == 2


@pytest.mark.parametrize("stage", [ScalarQuantizer, ProductQuantizer])
@pytest.mark.parametrize("adapt", [-0.1, -3.0])
def test_shares_without_a_meaning_are_refused(stage, adapt):
    with pytest.raises(ConfigError, match=r"adapt=.*use a share"):
        stage(adapt=adapt)


@pytest.mark.parametrize("more", [{"limit": 1.0}, {"checked": 0}])
def test_without_check_words_or_with_a_fixed_range_nothing_can_follow(more):
    with pytest.raises(ConfigError, match=r"adapt=0.01 with limit=.*check words, and no fixed limit"):
        ScalarQuantizer(adapt=0.01, **more)
