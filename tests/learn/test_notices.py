"""What a result says of itself: settings without effect, replies that did not count, a loss that grew, numbers that were cut off."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest

import atoll
from atoll import Evaluation, FedAvg, Training
from atoll.core.errors import ConfigError
from atoll.core.job import notices_of
from atoll.core.requests.cohort import Community
from atoll.models import CustomLearner
from atoll.pacing import FedBuff
from atoll.reducers import SecureAggregation
from atoll.secure.words import FixedPoint
from atoll.selection import Everyone, FixedSample, Once, PoissonSample, Uniform, WithLabels
from atoll.topology import Hierarchical
from tests.support.learn_toys import islands

SIZES = [9, 14, 20, 9]


def job(**parts: Any) -> Training:
    parts = {
        "model": atoll.models.linear(4, 3),
        "algorithm": FedAvg(lr=0.1),
        "selection": Everyone(),
        "rounds": 2,
        **parts,
    }
    return Training(**parts)


def run(training: Any, **options: Any) -> Any:
    return atoll.simulate(training, islands(SIZES), engine="inline", progress=False, **options)


ASKED = {
    "Uniform": {"selection": Uniform(50)},
    "PoissonSample": {"selection": PoissonSample(50)},
    "FixedSample": {"selection": FixedSample(50)},
    "Once": {"selection": Once(50), "rounds": 1},
    "Evaluation": {"evaluation": Evaluation(clients=50)},
    "FedBuff": {"pacing": FedBuff(buffer=2, concurrency=50)},
    "WithLabels": {"selection": WithLabels(base=Uniform(50), labelled=(0, 1), least=1)},
}


@pytest.mark.parametrize("who", list(ASKED))
def test_a_number_of_clients_above_that_of_all_is_said(who: str) -> None:
    made = run(job(**ASKED[who]))
    told = [line for line in made.notices if "50" in line]
    assert len(told) == 1
    assert told[0].startswith(who)
    assert told[0].endswith("and there are 4: all of them take part")
    assert told[0] in str(made)


def test_an_edge_has_its_own_clients_alone() -> None:
    (told,) = run(job(selection=Uniform(3), topology=Hierarchical(groups=2))).notices
    assert told == "Uniform asks for 3 clients a round, and there are 2: all of them take part"


@pytest.mark.parametrize(
    "parts", [{}, {"selection": Uniform(4)}, {"selection": Uniform(0.5)}], ids=["all", "4", "share"]
)
def test_a_plain_training_has_no_notices(parts: dict[str, Any]) -> None:
    made = run(job(**parts))
    assert made.notices == ()
    assert "notices" not in str(made)


def test_the_default_of_ten_clients_is_no_wish() -> None:
    made = run(Training(model=atoll.models.linear(4, 3), algorithm=FedAvg(lr=0.1), rounds=1))
    assert made.notices == ()


def growing(losses: list[float], bad: str = "") -> CustomLearner:
    def train(params: Any, data: Any, rng: Any) -> Any:
        return {"round": params["round"] + (np.nan if bad and len(data) == 14 else 1)}

    return CustomLearner(
        init=lambda rng: {"round": np.zeros(1)},
        train=train,
        evaluate=lambda params, data: {"loss": losses[round(np.nan_to_num(params["round"][0]))]},
    )


def test_a_loss_that_grew_is_said_and_so_are_rejected_replies(tmp_path: Any) -> None:
    made = run(job(model=growing([1.0, 2.0, 40.0], "one")), folder=tmp_path / "run")
    rejected, grown = made.notices
    assert rejected.startswith("2 replies were rejected in 2 of 2 rounds, first in round 1 of client-1:")
    assert "test/loss ended at 40" in grown
    assert "the training diverged" in grown
    kept = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert kept["notices"] == list(made.notices)
    assert run(job(model=growing([1.0, 2.0, 3.0]))).notices == ()


def test_a_learning_rate_of_a_million_is_said() -> None:
    (told,) = run(job(algorithm=FedAvg(lr=1e6))).notices
    assert "of equal chances: the training diverged; use a smaller learning rate, or scale the columns" in told


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cuda"}, "device='cuda' has no effect on Linear"),
        ({"compile": "always"}, "compile='always' has no effect on Linear"),
    ],
)
def test_a_device_or_native_code_for_a_numpy_model_is_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(job(**settings))
    for model in (growing([1.0]), atoll.models.IdleModel(3)):
        with pytest.raises(ConfigError, match="has no effect on"):
            atoll.learn.learner.adapt(
                model, atoll.learn.learner.LearnerSettings(algorithm=FedAvg(), **settings), islands(SIZES)
            )


def test_a_double_model_is_trained_in_double_precision() -> None:
    """The oracle is PyTorch's own loop in double precision: one client, full batches, one step a round."""
    torch = pytest.importorskip("torch")
    rows = islands([24])
    x, y = torch.tensor(np.asarray(rows.shard(0).x, np.float64)), torch.tensor(np.asarray(rows.shard(0).y))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    alone = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    alone.load_state_dict(model.state_dict())
    steps = torch.optim.SGD(alone.parameters(), lr=0.5)
    for _ in range(5):
        steps.zero_grad()
        torch.nn.functional.cross_entropy(alone(x), y).backward()
        steps.step()
    for engine in ("inline", "batched"):
        made = atoll.simulate(
            job(model=model, algorithm=FedAvg(lr=0.5, batch_size=24), rounds=5), rows, engine=engine, progress=False
        )
        for name, wanted in alone.named_parameters():
            np.testing.assert_allclose(made.params[name], wanted.detach().numpy(), rtol=0, atol=1e-14)
        assert made.notices == ()
    half = torch.nn.Sequential(torch.nn.Linear(4, 5).double(), torch.nn.Linear(5, 3))
    (told,) = run(job(model=half)).notices
    assert (
        told
        == "The model's parameters of float64 are trained and measured in float32, and rounded in the model that is returned."
    )


@atoll.task
def values(island: Any, message: Any) -> Any:
    return {"m": atoll.Mean(np.asarray(island.data, np.float64), examples=1)}


def program_of(value_range: float | None, told: bool = False) -> Any:
    async def program(fed: Any) -> float:
        found = await fed.sum(fed.parties, values, reducer=SecureAggregation(codec=FixedPoint(value_range=value_range)))
        if told:
            fed.record({"clamped": found.counts["clamped"] / found.counts["coded"]})
        return float(found["m"][0])

    return program


def test_a_program_whose_secure_sum_cuts_off_numbers_says_so() -> None:
    """The mean of 1e12 and 0 is 5e11; with a range of 8 it is 262,144."""
    data = Community({"a": [1e12], "b": [0.0]})
    with pytest.warns(RuntimeWarning, match="1 of 2 numbers did not fit the range of a secure sum and were cut off"):
        atoll.simulate(program_of(8.0), data, engine="inline", progress=False)
    with pytest.warns(RuntimeWarning, match="use a larger value_range in FixedPoint"):
        made = atoll.simulate(
            atoll.rounds.ProgramJob(program_of, {"value_range": 8.0}), data, engine="inline", progress=False
        )
    assert "1 of 2 numbers did not fit" in str(made)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            atoll.simulate(program_of(8.0), Community({"a": [7.0], "b": [0.0]}), engine="inline", progress=False) == 3.5
        )
        atoll.simulate(program_of(8.0, told=True), data, engine="inline", progress=False)  # its record says it


@pytest.mark.parametrize("personal", [False, True])
def test_what_is_measured_on_training_rows_says_so(personal: bool) -> None:
    algorithm = atoll.algorithms.Ditto(lr=0.1, lam=0.1) if personal else FedAvg(lr=0.1)
    measuring = job(algorithm=algorithm, evaluation=Evaluation(clients=-1, personal=personal))
    (told,) = run(measuring).notices
    named = "clients/… and personal/…" if personal else "clients/…"
    assert told.startswith(f"{named} are measured on the rows that clients train on: islands.with_held_out(0.2)")
    apart = islands(SIZES).with_held_out(0.2)
    assert atoll.simulate(measuring, apart, engine="inline", progress=False).notices == ()


def test_replies_that_a_bridge_counts_as_failed_are_said_and_none_is_no_failure() -> None:
    assert notices_of([{"round": 1, "failed": 0}, {"round": 2, "failed": 0}]) == []
    assert notices_of([{"round": 1, "failed": 2}, {"round": 2, "failed": 0}]) == ["2 replies failed in 1 of 2 rounds"]
    assert notices_of([{"round": 1, "failed": "no quorum"}]) == ["1 of 1 rounds failed, first round 1: no quorum"]
