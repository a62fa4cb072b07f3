"""Compression on the way down: what clients work with, what it costs, and what is left over."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg
from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError
from atoll.core.requests.stage import StageContext
from atoll.models.quadratic import Quadratic, minimiser, quadratics
from atoll.stages import QSGD, Clip, ErrorFeedback, Sign, TopK

DIM = 300
SEEN: list[dict] = []
RNG = Rng.of(0)


def islands(clients=6, dim=DIM):
    rng = np.random.default_rng(0)
    parts = {}
    for k in range(clients):
        matrix = np.diag(rng.uniform(0.5, 1.0, size=dim))
        parts[f"client-{k}"] = atoll.data.Dataset({"x": matrix, "y": rng.normal(size=dim)}, task="regression")
    return atoll.data.Islands.from_datasets(parts)


@dataclass(frozen=True, kw_only=True)
class Watched(FedAvg):
    """Notes what the server has and what a client was given."""

    batch_size: int | None = None
    steps: int | None = 1

    def broadcast(self, state, phase):
        SEEN.append({"x": state["params"]["w"].copy(), "hat": []})
        return super().broadcast(state, phase)

    def start(self, broadcast, client):
        SEEN[-1]["hat"].append(broadcast["params"]["w"].copy())
        return super().start(broadcast, client)


def run(stage, selection=None, rounds=6, algorithm=None, engine="inline", data=None, **more):
    SEEN.clear()
    data = data or islands()
    job = atoll.Training(
        model=Quadratic(int(data.shard(0).x.shape[1])), algorithm=algorithm or Watched(lr=0.2), downlink=stage,
        selection=selection or atoll.Everyone(), rounds=rounds, **more,
    )  # fmt: skip
    return atoll.simulate(job, data, engine=engine, seed=1)


def test_everyone_works_with_x_hat_and_what_is_left_over_is_sent_later():
    """``x_hat <- x_hat + C(x - x_hat)``, from the whole ``x`` at first."""
    stage = TopK(0.1)
    run(stage)
    held = None
    for seen in SEEN:
        off = None if held is None else seen["x"] - held
        held = seen["x"] if held is None else held + stage.decode(stage.encode({"w": off}, StageContext.of(RNG)), None, 1)["w"]  # fmt: skip
        assert len(seen["hat"]) == 6
        for hat in seen["hat"]:
            np.testing.assert_array_equal(hat, held)
    assert not np.array_equal(SEEN[-1]["hat"][0], SEEN[-1]["x"])


def test_it_is_error_feedback_at_the_server():
    """Zheng et al. 2019: ``p~ = update + e``, ``x <- x + C(p~)``, ``e <- p~ - C(p~)``, written out beside it."""
    stage = Sign("model")
    run(stage, rounds=8)
    e, x = np.zeros(DIM), SEEN[0]["hat"][0]
    for before, after in itertools.pairwise(SEEN):
        update = after["x"] - before["x"]
        p = update + e
        sent = stage.decode(stage.encode({"w": p}, StageContext.of(RNG)), None, 1)["w"]
        x, e = x + sent, p - sent
        np.testing.assert_allclose(after["hat"][0], x, atol=1e-12)


class Cycle(atoll.Uniform):
    """A fixed list of cohorts."""

    rows: ClassVar = [[0, 1], [0, 2], [1, 2], [1, 2], [2, 1], [0, 3]]

    def invite(self, candidates, size, state):
        return np.array(self.rows[candidates.round - 1])


def test_who_holds_the_last_version_is_charged_the_difference_and_the_others_the_model():
    data, stage = islands(), QSGD(7)
    history = run(stage, Cycle(2), data=data).metrics
    zero = {"w": np.zeros(DIM)}
    rest = {"lr": 0.2}
    full = M.nbytes({"broadcast": {"params": zero, **rest}, "phase": "train"})
    packed = stage.encode(zero, StageContext.of(RNG))
    diff = M.nbytes({"broadcast": {"params": packed, **rest}, "phase": "train"})
    assert diff < 0.2 * full
    # Of each cohort: who was there in the round before.
    expected = [2 * full, diff + full, diff + full, 2 * diff, 2 * diff, 2 * full]
    assert [row["bytes_down"] for row in history] == expected


def test_a_client_that_fell_silent_is_not_believed_to_know():
    from atoll.testing import Timetable

    job = atoll.Training(
        model=Quadratic(DIM), algorithm=Watched(lr=0.2), downlink=Sign(), selection=atoll.Everyone(), rounds=3
    )
    lost = Timetable(lost={"/@2/": ["client-1"]})
    history = atoll.simulate(job, islands(), engine="inline", devices=lost).metrics
    down = [row["bytes_down"] for row in history]
    diff = down[1] / 6
    assert down[2] == 5 * diff + down[0] / 6


@pytest.mark.parametrize("engine", ["batched", "processes"])
def test_it_is_the_same_on_every_engine(engine):
    one, other = run(TopK(0.1)), run(TopK(0.1), engine=engine)
    np.testing.assert_allclose(one.params["w"], other.params["w"], rtol=1e-9, atol=1e-12)
    assert one.metrics.bytes_down == other.metrics.bytes_down


@pytest.mark.slow
def test_a_contraction_still_leads_to_the_optimum():
    data = quadratics()
    best, _ = minimiser(data)
    found = run(
        TopK(0.2),
        algorithm=FedAvg(lr=0.05, steps=1, batch_size=None),
        rounds=400,
        data=data,
        evaluation=atoll.Evaluation(every=400),
    )
    np.testing.assert_allclose(found.params["w"], best, atol=1e-3)


def test_phases_of_one_round_tell_a_model_once():
    """The second phase of a round is about the same model: nothing of it crosses again."""
    from atoll.algorithms import MimeSVRG

    history = run(TopK(0.1), algorithm=MimeSVRG(lr=0.1, steps=2, batch_size=None)).metrics
    row = history[-1]
    encoded = M.nbytes({"params": TopK(0.1).encode({"w": np.zeros(DIM)}, StageContext.of(RNG))})
    assert row["bytes_down"] < 6 * (4 * encoded + 800)


@pytest.mark.parametrize("stage", [ErrorFeedback(TopK(0.1))], ids=repr)
def test_memory_has_no_place_on_the_way_down(stage):
    with pytest.raises(
        CompositionError, match=r"ErrorFeedback cannot compress what the server sends.*keeps the error itself"
    ):
        run(stage)


def test_it_survives_a_crash(tmp_path):
    def job(rounds):
        return atoll.Training(
            model=Quadratic(DIM), algorithm=Watched(lr=0.2), downlink=Sign(), uplink=[Clip(5.0), ErrorFeedback(TopK(0.1))],
            selection=atoll.Uniform(3), rounds=rounds,
        )  # fmt: skip

    whole = atoll.simulate(job(6), islands(), engine="inline", seed=2, folder=tmp_path / "whole")
    atoll.simulate(job(3), islands(), engine="inline", seed=2, folder=tmp_path / "half")
    resumed = atoll.simulate(job(6), islands(), engine="inline", seed=2, folder=tmp_path / "half", resume=True)
    assert M.equal(whole.params, resumed.params)
    assert [row["bytes_down"] for row in whole.metrics] == [row["bytes_down"] for row in resumed.metrics]
    assert T.size(whole.params) == DIM
