"""Trainings whose stages are fitted: to the last sum, to a mock client on public rows, and one accumulator a version."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import Scaffold
from atoll.core.errors import CompositionError
from atoll.data import Dataset
from atoll.pacing import FedAsync, FedBuff
from atoll.stages import Clip, ScalarQuantizer
from atoll.testing import Timetable


@pytest.fixture(scope="module")
def islands():
    return atoll.data.dirichlet(atoll.data.digits(), parties=12, alpha=0.5, seed=0)


def trained(islands, *uplink, engine="inline", rounds=6, **parts):
    parts = {"algorithm": atoll.FedAvg(lr=0.3), "selection": atoll.Uniform(6), **parts}
    job = atoll.Training(model=atoll.models.linear(64, 10), rounds=rounds, uplink=uplink, **parts)
    return atoll.simulate(job, islands, engine=engine)


def test_the_first_round_goes_as_numbers_and_the_others_as_words(islands):
    result = trained(islands, ScalarQuantizer(8, 12))
    first, second = result.metrics[0], result.metrics[1]
    assert "clamped" not in first
    assert second["clamped"] < 0.05
    assert second["overflowed"] == 0.0
    assert second["bits_declared"] == 6 * (640 * 12 + 8 * 14 + 10 * 64 + 32)  # five check words; the bias is float64
    assert first["bytes_up"] > 3 * second["bytes_up"]
    assert abs(result.metrics.last("test/accuracy") - trained(islands).metrics.last("test/accuracy")) < 0.02


def test_public_rows_fit_the_first_round_too_whatever_the_engine(islands):
    public = islands.with_public(islands.shard(11).dataset())
    inline = trained(public, Clip(1.0), ScalarQuantizer(8, 12, spread=2.0))
    assert inline.metrics[0]["clamped"] < 0.05
    batched = trained(public, Clip(1.0), ScalarQuantizer(8, 12, spread=2.0), engine="batched")
    assert np.allclose(inline.params["weight"], batched.params["weight"])


def test_public_rows_without_labels_train_no_mock_client(islands):
    """Such rows are there for other parts of a training; stages then fit to sums, as without public rows."""
    unlabelled = islands.with_public(Dataset({"x": islands.shard(11).dataset().x}))
    made, alone = (trained(data, ScalarQuantizer(8, 12)).params for data in (unlabelled, islands))
    assert all(np.array_equal(made[name], alone[name]) for name in alone)


def test_both_sums_of_scaffold_have_their_own_scale(islands):
    result = trained(islands, ScalarQuantizer(12, 20), algorithm=Scaffold(lr=0.1))
    plain = trained(islands, algorithm=Scaffold(lr=0.1))
    assert abs(result.metrics.last("test/accuracy") - plain.metrics.last("test/accuracy")) < 0.03


def test_clients_at_work_on_older_models_keep_their_version(islands):
    """Devices of unequal speed: replies to several requests, under several versions, end in one step."""
    seconds = {f"client-{i}": 1.0 + i for i in range(12)}
    pacing = FedBuff(buffer=3, concurrency=6)
    job = atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.3), pacing=pacing, selection=atoll.Uniform(6), rounds=10,
        uplink=[ScalarQuantizer(10, 16)],
    )  # fmt: skip
    result = atoll.simulate(job, islands, engine="inline", devices=Timetable(seconds))
    assert result.metrics.last("overflowed") == 0.0
    assert max(row["most_stale"] for row in result.metrics) >= 1


def test_a_resumed_training_goes_on_with_its_version(islands, tmp_path):
    whole = trained(islands, ScalarQuantizer(8, 12, refresh=4), rounds=6)

    def to(rounds, resume):
        job = atoll.Training(
            model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.3), selection=atoll.Uniform(6), rounds=rounds,
            uplink=[ScalarQuantizer(8, 12, refresh=4)],
        )  # fmt: skip
        return atoll.simulate(job, islands, engine="inline", folder=tmp_path / "run", resume=resume)

    to(3, False)
    assert np.array_equal(to(6, True).params["weight"], whole.params["weight"])


def test_parameters_are_kept_as_long_as_a_client_works_on_their_version(islands):
    job = atoll.Training(model=atoll.models.linear(64, 10), uplink=[ScalarQuantizer()])
    context = job.context(job.learner(islands), islands)
    state = {"fitted": {"train": [[0, {"u": "a"}], [3, {"u": "b"}], [5, {"u": "c"}]]}}
    seen = [context.chain(state, "train", version).fitted["u"] for version in (0, 2, 3, 4, 5, None)]
    assert seen == ["a", "a", "b", "b", "c", "c"]
    assert context.chain({}, "train").fitted is None


def test_a_pacing_that_fits_nothing_refuses_a_stage_that_must_be_fitted(islands):
    with pytest.raises(CompositionError, match="ScalarQuantizer"):
        trained(islands, ScalarQuantizer(), pacing=FedAsync())
    trained(islands, ScalarQuantizer(limit=10.0), pacing=FedAsync(), rounds=1)
