"""Fitted round parameters: who sees what, versions, and how long they last."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean, Parts, merge_totals
from atoll.core.algebra.rng import Rng
from atoll.core.errors import DataError, MessageError
from atoll.core.requests.chain import Chain, due, fit_chain, inputs_of
from atoll.core.requests.stage import StageContext
from atoll.stages import Clip, RandomK, ScalarQuantizer


def fit(chain, before, reply, turn):
    return fit_chain(chain, before, inputs_of(chain.knowing(before), reply, Rng(5)), Rng(0), turn)


VALUE = {"w": np.full((5, 4), 2.0, np.float32)}


def test_a_stage_is_fitted_to_what_it_gets_at_a_party():
    chain = Chain([Clip(1.0), ScalarQuantizer(8, 16, "symmetric", spread=1.0)])
    made = fit(chain, None, {"update": Mean(VALUE, examples=10.0)}, 1)
    # Clipped to norm 1, 20 equal entries are 1/sqrt(20); ten examples weigh ten times that.
    assert made["update"]["1"]["version"] == 1
    assert float(made["update"]["1"]["scale"]["w"]) * 127 == pytest.approx(10 / np.sqrt(20), rel=1e-6)


def test_each_aggregate_has_its_own_parameters_and_single_replies_have_none():
    chain = Chain([ScalarQuantizer()])
    reply = {
        "update": Mean(VALUE),
        "control": Mean({"w": VALUE["w"] * 100}),
        "one": Parts(VALUE),
        "loss": Mean(0.5, role="metric"),
    }
    known = chain.knowing(fit(chain, None, reply, 1))
    public = known.public(Rng(1))
    assert set(known.fitted) == {"update", "control"}
    small, large = (chain.find_parameters(public, 0, name)["scale"]["w"] for name in ("update", "control"))
    assert float(large) == pytest.approx(100 * float(small), rel=1e-5)
    assert chain.find_parameters(public, 0, "one") is None


def test_a_version_grows_with_each_fit_and_waits_for_its_refresh():
    chain = Chain([ScalarQuantizer(refresh=3)])
    assert due(chain, None, 1)
    made = fit(chain, None, {"u": Mean(VALUE)}, 1)
    assert not due(chain, made, 2)
    assert due(chain, made, 3)
    assert fit(chain, made, {"u": Mean(VALUE)}, 2) == made
    assert fit(chain, made, {"u": Mean(VALUE)}, 3)["u"]["0"]["version"] == 2
    assert not due(Chain([RandomK(0.5, shared=True)]), None, 1)


def test_versions_do_not_add_up_and_a_stale_one_is_refused():
    chain = Chain([ScalarQuantizer()])
    first = fit(chain, None, {"u": Mean(VALUE)}, 1)
    second = fit(chain, first, {"u": Mean(VALUE)}, 2)
    totals = [
        chain.knowing(known).send(Mean(VALUE), chain.knowing(known).public(Rng(0)), Rng(1), {}, name="u").total
        for known in (None, first, second)
    ]
    assert [next(iter(total.value)) for total in totals] == ["v0", "v1", "v2"]
    with pytest.raises(DataError, match=r"keys \['v1'\] against a dict with keys \['v2'\]"):
        merge_totals([{"u": totals[1]}, {"u": totals[2]}])
    with pytest.raises(MessageError, match="under v1, but the round parameters are v2"):
        chain.decode(totals[1], chain.knowing(second).public(Rng(0)), "u")


@pytest.mark.parametrize(
    "stages", [(), (RandomK(0.25, True, True, per="tensor"),), (RandomK(0.25, False, True, per="tensor"),)]
)
def test_the_mean_input_of_a_sum_is_what_its_parties_encoded(stages):
    """Also behind pruning, whose decoder puts zeros where nothing was sent: these are no input."""
    chain = Chain([*stages, ScalarQuantizer(16, 24, limit=64.0)])
    object.__setattr__(chain.stages[-1], "fits", True)
    rng, public = np.random.default_rng(0), chain.public(Rng(3))
    replies = [Mean({"w": rng.normal(size=(8, 8))}, examples=float(w)) for w in (1, 4, 2)]
    totals = merge_totals({"u": chain.send(reply, public, Rng(1), {}, name="u").total} for reply in replies)
    inputs = {}
    chain.decode(totals["u"], public, "u", inputs)
    found = inputs["u"][str(len(stages))]
    sent = [
        reply.value if not stages else stages[0].encode(reply.value, StageContext.of(Rng(1), public[0]))
        for reply in replies
    ]
    expected = T.scale(T.add(T.add(sent[0], T.scale(sent[1], 4.0)), T.scale(sent[2], 2.0)), 1 / 3)
    for leaf, want in zip(T.leaves(found), T.leaves(expected), strict=True):
        assert np.allclose(leaf, want, atol=0.01)


def test_a_chain_keeps_its_parameters_in_other_requests():
    chain = Chain([ScalarQuantizer()], "train").knowing({"u": {"0": {"version": 7}}})
    assert chain.within(5, hidden=True).fitted == chain.fitted
    assert chain.within(5, hidden=True).place == "train"
