"""Generalisation gaps: against measures by hand, who counts as a participant, and what refuses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.learn.round.gaps import Gaps
from atoll.mechanisms import CentralDP
from atoll.models import Linear
from atoll.reducers import SecureAggregation
from atoll.selection import Schedule
from atoll.topology import Gossip, Ring
from tests.support.learn_toys import islands

SIZES = (20, 30, 25, 16, 12)
WHOLE = islands(SIZES).with_held_out(0.25, seed=3)


def job(drawn: Any = ((0, 1), (2,)), **more: Any) -> Any:
    parts = {"model": Linear(4, 3), "algorithm": FedAvg(lr=0.1), "selection": Schedule(drawn), "rounds": 2}
    return atoll.Training(**{**parts, "evaluation": atoll.Evaluation(gaps=True), **more})


def run(data: Any = WHOLE, *, policy: Any = None, **more: Any) -> Any:
    options = {} if policy is None else {"policy": policy}
    return atoll.simulate(job(**more), data, engine="inline", seed=1, progress=False, **options)


def by_hand(params: Any, parts: list[Any]) -> dict[str, float]:
    """Loss and accuracy of a linear model over the rows of several data sets together."""
    x = np.concatenate([np.asarray(part["x"], float) for part in parts])
    y = np.concatenate([np.asarray(part["y"]) for part in parts])
    weight, bias = np.asarray(params["weight"], float), np.asarray(params["bias"], float)
    outputs = x @ (weight if weight.shape[0] == x.shape[1] else weight.T) + bias
    logs = outputs - np.logaddexp.reduce(outputs, axis=1, keepdims=True)
    return {"loss": float(-logs[np.arange(len(y)), y].mean()), "accuracy": float((outputs.argmax(1) == y).mean())}


def test_each_group_is_measured_on_its_own_rows() -> None:
    result = run()
    found = result.gaps
    own = [WHOLE.shard(place) for place in range(5)]
    groups = {
        "trained": by_hand(result.params, own[:3]),
        "held_out": by_hand(result.params, [one.held_out for one in own[:3]]),
        "unseen": by_hand(result.params, [*own[3:], *(one.held_out for one in own[3:])]),
    }
    for measure in ("loss", "accuracy"):
        for group, values in groups.items():
            assert found.values[measure][group] == pytest.approx(values[measure], rel=1e-5), (measure, group)
    assert (found.participants, found.others) == (3, 2)
    assert found.examples["unseen"] == 28
    assert found.examples["trained"] + found.examples["held_out"] == 75
    assert found.out_of_sample("loss") == pytest.approx(
        groups["held_out"]["loss"] - groups["trained"]["loss"], abs=1e-5
    )
    rise = groups["held_out"]["accuracy"] - groups["unseen"]["accuracy"]
    assert found.participation("accuracy") == pytest.approx(rise, abs=1e-6)


def test_it_changes_nothing_of_the_training_but_that_rows_list_participants() -> None:
    plain, gaps = run(evaluation=atoll.Evaluation(participants=True)), run()
    assert plain.gaps is None
    assert list(plain.metrics) == list(gaps.metrics)
    assert np.array_equal(plain.params["weight"], gaps.params["weight"])


@settings(max_examples=12)
@given(drawn=st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=3))
def test_a_client_that_is_never_drawn_has_not_trained(drawn: list[set[int]]) -> None:
    ever = set().union(*drawn)
    shares = [sorted(one) for one in drawn]
    found = atoll.simulate(job(shares, rounds=len(drawn)), WHOLE, engine="inline", progress=False).gaps
    assert (found.participants, found.others) == (len(ever), 5 - len(ever))
    assert found.examples.get("unseen", 0) == sum(SIZES[place] for place in set(range(5)) - ever)
    assert np.isnan(found.participation("loss")) == (len(ever) == 5)


def test_a_reply_that_never_came_makes_no_participant() -> None:
    from tests.support.learn_toys import Fixed

    late = atoll.simulate(
        job(selection=atoll.Everyone(), pacing=atoll.pacing.Synchronous(quorum=4)),
        WHOLE,
        seed=1,
        progress=False,
        devices=Fixed([1, 1, 1, 1, np.inf]),
    )
    assert (late.gaps.participants, late.gaps.others) == (4, 1)


def test_a_site_that_refuses_is_named_and_costs_the_others_nothing() -> None:
    from atoll.core.requests.policy import SitePolicy

    allowed = ("atoll.models.*", "atoll.learn.linear*")
    found = run(policy={"client-4": SitePolicy(tasks=allowed)}).gaps
    assert "atoll.learn.gaps:measure may not run here" in found.withheld["client-4"]
    assert found.examples["unseen"] == 16


def test_a_group_too_small_for_secure_sums_is_left_out() -> None:
    found = run(reducer=SecureAggregation(), selection=Schedule([(0, 1), (2, 3)])).gaps
    assert "1 parties, fewer than 2" in found.withheld["unseen"]
    assert np.isnan(found.participation("loss"))
    assert not np.isnan(found.out_of_sample("loss"))


def test_secure_sums_show_each_group_and_the_same_gaps() -> None:
    twice = [(0, 1), (1, 2)]
    plain = run(selection=Schedule(twice)).gaps
    masked = run(reducer=SecureAggregation(), selection=Schedule(twice)).gaps
    for measure, groups in plain.values.items():
        for group, value in groups.items():
            assert masked.values[measure][group] == pytest.approx(value, abs=1e-3)


def test_the_best_model_is_the_one_that_is_measured() -> None:
    result = run(keep_best="test/accuracy", algorithm=FedAvg(lr=3.0), selection=Schedule([[0, 1], [2]]))
    own = [WHOLE.shard(place) for place in range(3)]
    assert result.gaps.values["loss"]["trained"] == pytest.approx(by_hand(result.params, own)["loss"], rel=1e-5)


def test_report_and_folder_have_them(tmp_path: Path) -> None:
    result = atoll.simulate(job(), WHOLE, seed=1, progress=False, folder=tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "gaps.json").read_text())
    assert kept["gaps"]["loss"]["out_of_sample"] == pytest.approx(result.gaps.out_of_sample())
    section = next(one for one in result.prepared.sections(result.outcome) if one["title"] == "Generalisation gaps")
    assert "3 clients have trained, 2 never did" in section["text"]
    assert len(section["tables"][0]["rows"]) == len(result.gaps.values) + 1


def test_gaps_without_held_out_rows_are_refused_and_the_remedy_is_true() -> None:
    with pytest.raises(DataError, match="no client has rows that it does not train on") as caught:
        run(islands(SIZES))
    assert "with_held_out(0.2)" in caught.value.remedy
    assert run(islands(SIZES).with_held_out(0.2)).gaps.participants == 3


def test_what_has_no_central_server_or_promises_privacy_is_refused() -> None:
    with pytest.raises(CompositionError, match="tells clients that train from those that never do"):
        run(topology=Gossip(graph=Ring()), selection=atoll.Everyone())
    private = CentralDP(epsilon=8.0, delta=1e-5, clip=1.0)
    with pytest.raises(CompositionError, match="without noise"):
        run(privacy=private, selection=atoll.selection.Uniform(2))


def test_an_unknown_measure_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no 'acuracy' among the gaps.*'accuracy'"):
        run().gaps.out_of_sample("acuracy")
    empty = Gaps(0, 0, {}, {}, {})
    with pytest.raises(ConfigError, match="no 'loss' among the gaps"):
        empty.participation()
