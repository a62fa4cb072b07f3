"""Training: composition, keep-best, callbacks, rejected updates, resuming."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.aggregation import EqualWeights
from atoll.algorithms import FedAvg, FedNova
from atoll.core.algebra import tree as T
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, QuorumError
from atoll.core.federation.scope import StopRun
from atoll.data import Dataset
from atoll.learn import Evaluation, Training
from atoll.models import CustomLearner
from atoll.pacing import FedAsync, FedBuff
from atoll.reducers import SecureAggregation
from atoll.rounds import Patience, Target
from atoll.selection import Everyone, Schedule, Uniform
from atoll.stages import Clip
from tests.support.learn_toys import flat, islands

SIZES = [9, 14, 20]


def job(**parts):
    return Training(
        **{
            "model": atoll.models.linear(4, 3),
            "algorithm": FedAvg(lr=0.1),
            "selection": Everyone(),
            "rounds": 4,
            **parts,
        }
    )


def run(training, **world):
    return atoll.simulate(training, islands(SIZES), engine="inline", **world)


def wobble(values):
    """A model whose test loss follows a script, whatever it learns."""
    return CustomLearner(
        init=lambda rng: {"round": np.zeros(1)},
        train=lambda params, data, rng: {"round": params["round"] + 1},
        evaluate=lambda params, data: {"loss": values[round(float(params["round"][0]))]},
    )


def test_keep_best_gives_the_model_of_its_best_round():
    losses = [9.0, 5.0, 2.0, 3.0, 4.0]
    best = run(job(model=wobble(losses), keep_best="test/loss"))
    assert (best.round, float(best.params["round"][0])) == (2, 2.0)
    last = run(job(model=wobble(losses)))
    assert (last.round, float(last.params["round"][0])) == (4, 4.0)
    accuracy = run(job(keep_best="test/accuracy"))
    assert accuracy.metrics.best("test/accuracy")[1] == accuracy.metrics[accuracy.round - 1]["test/accuracy"]


def test_of_equal_rounds_the_first_is_best():
    assert run(job(model=wobble([9.0, 5.0, 5.0, 5.0, 5.0]), keep_best="test/loss")).round == 1


def test_keep_best_looks_at_measured_rounds_only():
    found = run(job(model=wobble([9.0, 1.0, 3.0, 0.5, 2.0]), keep_best="test/loss", evaluation=Evaluation(every=2)))
    assert found.round == 4


def test_a_best_model_survives_a_resume(tmp_path):
    losses = [9.0, 5.0, 2.0, 3.0, 4.0]
    run(job(model=wobble(losses), keep_best="test/loss", rounds=3), folder=tmp_path / "run")
    found = run(job(model=wobble(losses), keep_best="test/loss"), folder=tmp_path / "run", resume=True)
    assert (found.round, float(found.params["round"][0])) == (2, 2.0)
    assert len(found.metrics) == 4


def test_callbacks_see_every_round_and_may_stop():
    seen = []

    def watch(row):
        seen.append(row["round"])
        if row["round"] == 3:
            raise StopRun("enough")

    result = run(job(callbacks=[watch]))
    assert seen == [1, 2, 3]
    assert result.reason == "enough"
    assert len(result.metrics) == 3

    def quit_silently(row):
        raise StopRun

    assert run(job(callbacks=[quit_silently])).reason == "a callback asked to stop"


def test_rules_of_stopping_see_the_same_after_a_resume(tmp_path):
    losses = [9.0, 5.0, 6.0, 6.0, 6.0, 6.0]
    rule = [Patience("test/loss", evaluations=2)]
    whole = run(job(model=wobble(losses), stop=rule, rounds=5))
    run(job(model=wobble(losses), stop=rule, rounds=2), folder=tmp_path / "run")
    resumed = run(job(model=wobble(losses), stop=rule, rounds=5), folder=tmp_path / "run", resume=True)
    assert len(whole.metrics) == len(resumed.metrics) == 3
    assert whole.reason == resumed.reason


def test_a_resumed_training_is_the_uninterrupted_one(tmp_path):
    parts = {"selection": atoll.Uniform(2), "uplink": [Clip(0.5)], "algorithm": FedAvg(lr=0.1, decay=0.9)}
    whole = run(job(rounds=6, **parts))
    run(job(rounds=2, **parts), folder=tmp_path / "run")
    resumed = run(job(rounds=6, **parts), folder=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(flat(resumed.params), flat(whole.params))
    assert resumed.metrics.column("loss") == whole.metrics.column("loss")


def diverging(who):
    """A loop whose client of that size returns NaN."""

    def train(params, data, rng):
        return {"w": params["w"] + (np.nan if len(data) == who else 1.0)}

    return CustomLearner(init=lambda rng: {"w": np.zeros(2)}, train=train)


def test_an_update_that_is_not_finite_is_rejected_counted_and_named():
    result = run(job(model=diverging(14), rounds=2))
    assert result.metrics.column("rejected") == [1, 1]
    assert result.metrics[0]["rejected_clients"] == {"client-1": "update/w is not finite"}
    assert result.metrics.column("replied") == [2, 2]
    np.testing.assert_array_equal(result.params["w"], [2.0, 2.0])


@pytest.mark.parametrize("pacing", [FedAsync(), FedBuff(buffer=1)], ids=["FedAsync", "FedBuff"])
def test_an_asynchronous_round_whose_only_update_is_rejected_says_so(pacing):
    rows = run(job(model=diverging(14), pacing=pacing, selection=atoll.Uniform(3), rounds=4)).metrics
    assert sum(rows.column("replied")) + sum(rows.column("rejected")) == 4
    assert [row["rejected_clients"] for row in rows if row["rejected"]] == [
        {"client-1": "update/w is not finite"}
    ] * sum(rows.column("rejected"))
    assert sum(rows.column("rejected")) >= 1


def test_when_all_updates_are_rejected_the_training_says_so():
    plan = job(model=diverging(14), selection=Schedule([[1]]))
    with pytest.raises(
        QuorumError, match=r"0 of 1 replies can be used.*\(in round 1.*client-1: update/w is not finite"
    ):
        run(plan)


def test_a_global_model_that_is_not_finite_is_named():
    class Explodes(FedAvg):
        def fold(self, state, sums, info, phase):
            return {**state, "params": T.map(lambda x: x + np.inf, state["params"])}

    with pytest.raises(AtollError, match=r"parameter 'weight' of the global model is not finite \(in round 1\)"):
        run(job(algorithm=Explodes(lr=0.1)))


def test_a_model_that_does_not_fit_the_data():
    with pytest.raises(DataError, match="the model takes 7 features, but the data have 4"):
        run(job(model=atoll.models.linear(7, 3)))
    with pytest.raises(DataError, match="label «2» does not fit a model with 2 outputs"):
        run(job(model=atoll.models.linear(4, 2)))


def test_counts_for_one_output_are_told_how_to_be_amounts():
    """Both remedies of the error are tried; each is the other's oracle."""
    x = np.random.default_rng(0).normal(size=(30, 4))
    counts = np.arange(30) % 7

    def train(*made):
        return atoll.simulate(
            job(model=atoll.models.linear(4, 1), rounds=2), dict(zip("ab", made, strict=True)), engine="inline"
        )

    rows = [{"x": x[part], "y": counts[part]} for part in (slice(15), slice(15, 30))]
    with pytest.raises(DataError, match=r"fit a model with 1 outputs.*y\.astype\(float\).*task='regression'"):
        train(*rows)
    fractions = train(*({**each, "y": each["y"].astype(float)} for each in rows))
    declared = train(*(Dataset(each, task="regression") for each in rows))
    np.testing.assert_array_equal(flat(fractions.params), flat(declared.params))


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_stages_leave_the_number_of_steps_alone(engine):
    """Of a reply of FedNova the clip acts on the update, which is shorter than its bound, and not on the three steps beside it."""
    plain, clipped = (
        atoll.simulate(
            job(algorithm=FedNova(lr=1e-3, epochs=3, batch_size=None), uplink=uplink, rounds=2),
            islands(SIZES),
            engine=engine,
        )
        for uplink in ([], [Clip(1.0)])
    )
    np.testing.assert_array_equal(clipped.params["weight"], plain.params["weight"])
    assert np.any(plain.params["weight"])


@pytest.mark.parametrize(
    ("parts", "kind", "text"),
    [
        ({"rounds": 0}, ConfigError, "rounds=0"),
        ({"checkpoint_every": 0}, ConfigError, "checkpoint_every=0"),
        ({"algorithm": "fedavg"}, CompositionError, "'fedavg' is not an instance of Algorithm"),
        ({"selection": 5}, CompositionError, "selection: 5 is not an instance of Selection"),
        ({"selection": Everyone}, CompositionError, "selection: Everyone is a class"),
        (
            {"uplink": Clip(1.0)},
            CompositionError,
            r"uplink=Clip.*is not a list of Stage .*use for example .atoll.stages.Clip",
        ),
        (
            {"downlink": [Clip(1.0)]},
            CompositionError,
            r"downlink: .*Clip.* is not an instance of Stage .*use for example atoll.stages",
        ),
        (
            {"aggregation": SecureAggregation()},
            CompositionError,
            r"aggregation: .*Remedy: it belongs elsewhere: reducer=Sec",
        ),
        ({"aggregation": EqualWeights}, CompositionError, r"is a class .*Remedy: make one: aggregation=EqualWeights"),
        ({"uplink": [Uniform(1)]}, CompositionError, r"Remedy: it belongs elsewhere: selection=Uniform\(...\)"),
        ({"budget": 3.0}, CompositionError, "budget: 3.0 is not an instance of Budget"),
        ({"stop": Target("test/loss", 1.0)}, CompositionError, "stop=Target.* is not a list of StopRule"),
        ({"callbacks": [3]}, CompositionError, "callbacks=.3. is not a list of Callable"),
        ({"rounds": "5"}, ConfigError, "rounds='5'.*use a whole number"),
        ({"rounds": 2.5}, ConfigError, "rounds=2.5"),
        (
            {"keep_best": "test/acc"},
            ConfigError,
            "'test/acc' is not measured in this training.*Did you mean 'test/accuracy'",
        ),
        ({"stop": [Patience("acc")]}, ConfigError, "'acc' is not measured .*Training.stop, Patience"),
        ({"model": 3}, ConfigError, "a model of type int cannot be trained"),
        ({"model": atoll.models.linear(4, 3, loss="huber")}, ConfigError, "loss='huber'"),
    ],
)
def test_bad_settings(parts, kind, text):
    with pytest.raises(kind, match=text):
        run(job(**parts))


def test_jobs_are_values():
    first = job()
    second = first.replace(rounds=9)
    assert (first.rounds, second.rounds) == (4, 9)
    assert second.algorithm is first.algorithm


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    parts = {"selection": atoll.Uniform(2)}
    a, b, c = (flat(run(job(**parts), seed=s).params) for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_phases_are_run_in_order_and_each_is_metered():
    class TwoPhases(FedAvg):
        phases = ("look", "train")

        def broadcast(self, state, phase):
            return {**super().broadcast(state, phase), "phase": phase}

        def fold(self, state, sums, info, phase):
            if phase == "look":
                return {**state, "seen": info.round}
            return {**super().fold(state, sums, info, phase), "seen": state["seen"]}

    once, twice = (run(job(algorithm=a, rounds=1)).metrics[0] for a in (FedAvg(lr=0.1), TwoPhases(lr=0.1)))
    assert twice["bytes_up"] == 2 * once["bytes_up"]
    assert twice["replied"] == 3
