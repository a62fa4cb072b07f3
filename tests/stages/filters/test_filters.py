"""Filters: what they leave out and bound, in which order, and that sites may force them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.stage import Guarding, StageContext
from atoll.stages import Clip, ExcludeVariables, GaussianNoise, Percentile
from atoll.testing import check_stage

CONTEXT = StageContext.of(Rng(1))
VALUE = {"head": {"w": np.array([[1.0, -2.0]]), "b": np.array([3.0])}, "body": np.array([0.5, -4.0, 0.1])}


@pytest.mark.parametrize("stage", [ExcludeVariables(["*"]), Percentile(50.0, limit=0.4)])
def test_they_keep_the_laws_of_stages(stage):
    check_stage(stage)


def test_excluded_variables_are_zero_and_the_others_as_they_are():
    sent = ExcludeVariables(["head/*", "b?dy"]).encode({**VALUE, "rest": np.array([np.inf])}, CONTEXT)
    assert all(not np.any(leaf) for leaf in (sent["head"]["w"], sent["head"]["b"], sent["body"]))
    assert np.isinf(sent["rest"]).all()
    unusable = {"head": {"w": np.array([[np.nan, 1.0]]), "b": np.array([3.0])}, "body": np.array([1.0])}
    assert not np.any(ExcludeVariables(["head/w"]).encode(unusable, CONTEXT)["head"]["w"])
    with pytest.raises(ConfigError, match=r"no variable matches 'tail/\*'.*head/w, head/b, body"):
        ExcludeVariables(["tail/*"]).encode(VALUE, CONTEXT)


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.sampled_from([0.0, 10.0, 50.0, 90.0]), st.floats(0.01, 5)
)
def test_a_percentile_keeps_the_largest_entries_clipped(values, percentile, limit):
    x = np.array(values)
    sent = Percentile(percentile, limit).encode({"w": x}, CONTEXT)["w"]
    least = np.percentile(np.abs(x), percentile)
    assert np.array_equal(sent, np.where(np.abs(x) >= least, np.clip(x, -limit, limit), 0.0))


def test_the_order_of_filters_is_that_of_the_uplink():
    excluded_first = [ExcludeVariables(["body"]), Clip(1.0)]
    clipped_first = [Clip(1.0), ExcludeVariables(["body"])]

    def sent(stages):
        value = VALUE
        for stage in stages:
            value = stage.encode(value, CONTEXT)
        return value["head"]["b"][0]

    assert sent(excluded_first) == pytest.approx(3 / np.sqrt(1 + 4 + 9))
    assert sent(clipped_first) == pytest.approx(3 / np.sqrt(1 + 4 + 9 + 0.25 + 16 + 0.01))


def training(uplink, **more):
    job = atoll.Training(
        model=atoll.models.linear(4, 3), algorithm=atoll.FedAvg(lr=0.1), selection=atoll.Everyone(), uplink=uplink, rounds=1,
        evaluation=atoll.Evaluation(server=False),
    )  # fmt: skip
    return atoll.simulate(
        job, atoll.data.iid(atoll.data.iris(), parties=3, seed=0), engine="inline", progress=False, **more
    )


def test_a_site_forces_its_filters_in_its_order():
    names = list(training([]).params)
    bias = next(name for name in names if "b" in name.lower())
    policy = {"client-1": SitePolicy(stages=[ExcludeVariables([bias]), Percentile(10.0, limit=0.05)])}
    found = training([ExcludeVariables([bias]), Percentile(20.0, limit=0.02)], policy=policy)  # stricter is enough
    assert not np.any(found.params[bias])
    assert not found.metrics[0].get("rejected_clients")
    for uplink in (
        [],
        [Percentile(10.0, limit=0.05), ExcludeVariables([bias])],
        [ExcludeVariables([bias]), Percentile(10.0, limit=0.5)],
    ):
        (row,) = training(uplink, policy=policy).metrics
        assert "the uplink lacks" in row["rejected_clients"]["client-1"]


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda: ExcludeVariables([]), r"patterns=\[\]"),
        (lambda: ExcludeVariables("head"), "patterns='head'"),
        (lambda: Percentile(100.0), "percentile=100.0"),
        (lambda: Percentile(10.0, limit=0.0), "limit=0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(made, match):
    with pytest.raises(ConfigError, match=match):
        made()


def test_they_promise_no_privacy_and_keep_a_bound():
    for stage in (ExcludeVariables(["a"]), Percentile(10.0)):
        assert facet(stage, Guarding).events(1.0) == ()
        assert not facet(stage, Guarding).protects
        assert facet(stage, Guarding).sensitivity(2.0) == 2.0
    assert not Percentile(10.0).covers(GaussianNoise(1.0))
