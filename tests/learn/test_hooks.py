"""Hooks hear the steps of a run in order; what they do wrong has a name, and ends nothing. The best model is kept."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg
from atoll.pacing import SAFA, FedBuff
from atoll.rounds import Hooks
from tests.support.learn_toys import islands


class Written(Hooks):
    """Writes down every step, and what is in it."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.facts: list[dict[str, Any]] = []

    def heard(self, step: str, facts: Any) -> None:
        self.steps.append(f"heard {step}")
        self.facts.append(dict(facts))


def _writer(name: str) -> Any:
    def write(self: Written, **facts: Any) -> None:
        self.steps.append(name)
        self.facts.append(facts)

    return write


STEPS = [name for name, _ in inspect.getmembers(Hooks, inspect.isfunction) if not name.startswith("_")]
for _name in STEPS:
    if _name != "heard":
        setattr(Written, _name, _writer(_name))


def job(*callbacks: Any, **more: Any) -> Any:
    parts: dict[str, Any] = {"algorithm": FedAvg(lr=0.1), "selection": atoll.Everyone(), "rounds": 2}
    return atoll.Training(model=atoll.models.Linear(4, 3), callbacks=callbacks, **{**parts, **more})


def run(*callbacks: Any, **more: Any) -> Any:
    return atoll.simulate(job(*callbacks, **more), islands((20, 30, 25)), engine="inline", seed=1)


def test_every_step_is_heard_in_order(tmp_path: Any):
    hook = Written()
    atoll.simulate(job(hook, keep_best="loss"), islands((20, 30, 25)), engine="inline", seed=1, folder=tmp_path / "run")
    a_round = [
        "round_begins", "before_training", "after_training", "before_aggregation", "after_aggregation",
        "evaluated", "best_found", "round_ends", "saved",
    ]  # fmt: skip
    assert hook.steps == ["run_begins", *a_round, *a_round, "run_ends"]
    assert {*hook.steps} == {*STEPS} - {"heard"}
    told = dict(zip(hook.steps, hook.facts, strict=True))  # the last of each
    assert told["before_training"]["clients"].names == ["client-0", "client-1", "client-2"]
    assert told["after_training"]["silent"].names == []
    before, after = told["before_aggregation"]["params"], told["after_aggregation"]["params"]
    assert not np.array_equal(before["weight"], after["weight"])
    assert told["round_ends"]["row"]["round"] == 2
    assert "all 2 rounds" in told["run_ends"]["reason"]


@pytest.mark.parametrize("pacing", [FedBuff(buffer=2), SAFA()], ids=lambda p: type(p).__name__)
def test_asynchronous_pacings_say_when_they_aggregate(pacing: Any):
    hook = Written()
    run(
        hook,
        pacing=pacing,
        selection=atoll.Uniform(2) if isinstance(pacing, FedBuff) else atoll.selection.CFCFM(0.9),
    )
    assert hook.steps.count("before_aggregation") == hook.steps.count("after_aggregation") == 2


def test_hooks_change_nothing():
    plain, heard = run(), run(Written())
    assert list(plain.metrics) == list(heard.metrics)
    np.testing.assert_array_equal(plain.params["weight"], heard.params["weight"])


class Clumsy(Hooks):
    def after_aggregation(self, number: int, phase: str, params: Any) -> None:
        if number == 1:
            raise ValueError("the disk of my plots is full")


def test_an_exception_in_a_hook_is_named_and_loses_nothing(caplog: Any):
    other = Written()
    with caplog.at_level(logging.WARNING):
        result = run(Clumsy(), other)
    assert result.metrics[0]["hook_errors"] == {"Clumsy.after_aggregation": "ValueError: the disk of my plots is full"}
    assert "hook_errors" not in result.metrics[1]
    assert "the hook Clumsy.after_aggregation failed" in caplog.text
    assert other.steps[-1] == "run_ends"
    np.testing.assert_array_equal(result.params["weight"], run().params["weight"])


class Enough(Hooks):
    def evaluated(self, number: int, row: Any) -> None:
        if number == 1:
            raise atoll.StopRun("enough for today")


def test_a_hook_may_end_the_run():
    result = run(Enough(), rounds=5)
    assert (len(result.metrics), result.reason) == (1, "enough for today")


def test_a_program_announces_steps_of_its_own():
    """What a program of your own announces reaches whoever the world lets hear."""
    heard: list[Any] = []

    async def program(fed: Any) -> None:
        fed.announce("nobody_listens")
        fed.running.hear = lambda step, facts: heard.append((step, facts))
        fed.announce("halfway", rows=3)

    atoll.simulate(program, islands((5, 6)), engine="inline")
    assert heard == [("halfway", {"rows": 3})]


def test_steps_of_ones_own_are_heard():
    from atoll.core.world import RunningJob
    from atoll.rounds.loop import Heard

    class Fed:
        running = RunningJob()

    hook = Written()
    Heard([hook, print], Fed())  # type: ignore[arg-type]
    assert Fed.running.hear is not None
    Fed.running.hear("halfway", {"rows": 3})
    assert (hook.steps, hook.facts) == (["heard halfway"], [{"rows": 3}])


# ---------------------------------------------------------------------- the best model


def test_the_best_model_is_kept_with_its_metric():
    result = run(rounds=6, keep_best="test/accuracy", algorithm=FedAvg(lr=3.0))
    values = result.metrics.column("test/accuracy")
    best = result.best
    assert (best.metric, best.value) == ("test/accuracy", max(values))
    assert values[best.round - 1] == best.value
    assert result.round == best.round < 6  # the learning rate is too high: the last is not the best
    np.testing.assert_array_equal(best.params["weight"], result.params["weight"])
    assert not np.array_equal(result.last["weight"], result.params["weight"])


def test_the_lowest_loss_is_the_best():
    result = run(rounds=4, keep_best="test/loss", algorithm=FedAvg(lr=3.0))
    assert result.best.value == min(result.metrics.column("test/loss"))


def test_without_keep_best_the_last_model_is_the_result():
    result = run()
    assert result.best is None
    np.testing.assert_array_equal(result.last["weight"], result.params["weight"])


def test_both_models_are_in_the_run_folder(tmp_path: Any):
    from safetensors.numpy import load_file

    training = job(rounds=6, keep_best="test/accuracy", algorithm=FedAvg(lr=3.0))
    result = atoll.simulate(training, islands((20, 30, 25)), engine="inline", seed=1, folder=tmp_path / "run")
    for name, params in (("model", result.best.params), ("last", result.last)):
        np.testing.assert_array_equal(load_file(tmp_path / "run" / f"{name}.safetensors")["weight"], params["weight"])


def test_the_best_model_outlives_a_crash(tmp_path: Any):
    """It is in the checkpoint: a run killed after its best round has it still."""
    training = job(rounds=6, keep_best="test/accuracy", algorithm=FedAvg(lr=3.0))
    data = islands((20, 30, 25))
    whole = atoll.simulate(training, data, engine="inline", seed=1)

    def stop(row: Any) -> None:
        if row["round"] == 5:
            raise atoll.StopRun("killed")

    half = training.replace(callbacks=[stop])
    atoll.simulate(half, data, engine="inline", seed=1, folder=tmp_path / "run")
    again = atoll.simulate(training, data, engine="inline", seed=1, folder=tmp_path / "run", resume=True)
    assert (again.best.round, again.best.value) == (whole.best.round, whole.best.value)
    np.testing.assert_array_equal(again.best.params["weight"], whole.best.params["weight"])
