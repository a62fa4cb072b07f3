"""Fitted round parameters: who sees what, versions, and how long they last."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Mean, Parts, merge_totals
from atoll.core.algebra.rng import Rng
from atoll.core.errors import DataError, MessageError
from atoll.core.requests.chain import Chain
from atoll.core.requests.fitting import due, fitted
from atoll.stages import Clip, RandomK, ScalarQuantizer

VALUE = {"w": np.full((5, 4), 2.0, np.float32)}


def test_a_stage_is_fitted_to_what_it_gets_at_a_party():
    chain = Chain([Clip(1.0), ScalarQuantizer(8, 16, "symmetric", spread=1.0)])
    made = fitted(chain, None, {"update": Mean(VALUE, examples=10.0)}, Rng(0), 1)
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
    known = chain.knowing(fitted(chain, None, reply, Rng(0), 1))
    public = known.public(Rng(1))
    assert set(known.fitted) == {"update", "control"}
    small, large = (chain.known(public, 0, name)["scale"]["w"] for name in ("update", "control"))
    assert float(large) == pytest.approx(100 * float(small), rel=1e-5)
    assert chain.known(public, 0, "one") is None


def test_a_version_grows_with_each_fit_and_waits_for_its_refresh():
    chain = Chain([ScalarQuantizer(refresh=3)])
    assert due(chain, None, 1)
    made = fitted(chain, None, {"u": Mean(VALUE)}, Rng(0), 1)
    assert not due(chain, made, 2)
    assert due(chain, made, 3)
    assert fitted(chain, made, {"u": Mean(VALUE)}, Rng(0), 2) == made
    assert fitted(chain, made, {"u": Mean(VALUE)}, Rng(0), 3)["u"]["0"]["version"] == 2
    assert not due(Chain([RandomK(0.5, shared=True)]), None, 1)


def test_versions_do_not_add_up_and_a_stale_one_is_refused():
    chain = Chain([ScalarQuantizer()])
    first = fitted(chain, None, {"u": Mean(VALUE)}, Rng(0), 1)
    second = fitted(chain, first, {"u": Mean(VALUE)}, Rng(0), 2)
    totals = [
        chain.knowing(known).send(Mean(VALUE), chain.knowing(known).public(Rng(0)), Rng(1), {}, name="u").total
        for known in (None, first, second)
    ]
    assert [next(iter(total.value)) for total in totals] == ["v0", "v1", "v2"]
    with pytest.raises(DataError, match=r"keys \['v1'\] against a dict with keys \['v2'\]"):
        merge_totals([{"u": totals[1]}, {"u": totals[2]}])
    with pytest.raises(MessageError, match="under v1, but the round parameters are v2"):
        chain.decode(totals[1], chain.knowing(second).public(Rng(0)), "u")


def test_a_chain_keeps_its_parameters_in_other_requests():
    chain = Chain([ScalarQuantizer()], "train").knowing({"u": {"0": {"version": 7}}})
    assert chain.within(5, hidden=True).fitted == chain.fitted
    assert chain.within(5, hidden=True).place == "train"
