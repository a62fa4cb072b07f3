"""Reports: what clients tell of their data and a model besides their replies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, OutputPerturbation, SufficientStatistics
from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, DataError, TaskError
from atoll.core.job import prepared
from atoll.core.requests.task import Work
from atoll.data import Dataset
from atoll.learn.learner import LearnerSettings, adapt
from atoll.learn.local.reports import rows_for
from atoll.models.matrix import MatrixRegression, matrix_observations
from atoll.models.quadratic import Quadratic, quadratics
from atoll.testing import check_learner
from tests.support.learn_toys import Told, islands, own_loop

SIZES = [10, 4, 7, 1]


def linear(algorithm=None):
    data = islands(SIZES)
    return adapt(atoll.models.linear(4, 3), LearnerSettings(algorithm=algorithm or FedAvg(epochs=2)), data), data


def asking(learner, **more):
    algorithm = learner.algorithm
    params = learner.init(Rng(0))
    return {"broadcast": algorithm.broadcast(algorithm.init(params), "train"), "phase": "train", **more}


def job(model, **settings):
    return atoll.Training(model=model, algorithm=FedAvg(lr=0.05, **settings))


@pytest.mark.network
def test_partial_work_and_reports_are_the_same_on_all_engines():
    check_learner(job(atoll.models.linear(4, 3), epochs=2, batch_size=4), islands(SIZES))


@pytest.mark.parametrize(
    ("model", "data", "batch"),
    [
        (Quadratic(3), quadratics(3, 3), None),
        (MatrixRegression(2, 2), matrix_observations(3, 2, 1, rows=6), 4),
    ],
    ids=["quadratic", "matrix"],
)
def test_so_they_are_for_problems_whose_answer_is_known(model, data, batch):
    plan = atoll.Training(model=model, algorithm=FedAvg(lr=0.01, epochs=2, batch_size=batch))
    check_learner(plan, data, engines=("inline", "batched"), by_examples=False)


@pytest.mark.network
def test_so_they_are_for_models_that_train_by_themselves():
    def fit(params, data, rng):
        return {"mean": params["mean"] + 0.5 * (data.x.mean(axis=0) - params["mean"]) + 0.1 * rng.random(4)}

    model = atoll.models.CustomLearner(
        init=lambda rng: {"mean": np.zeros(4)},
        train=fit,
        evaluate=lambda params, data: {"loss": float(((data.x - params["mean"]) ** 2).mean())},
    )
    check_learner(job(model), islands(SIZES))


def test_so_they_are_for_estimators():
    sklearn = pytest.importorskip("sklearn.linear_model")
    model = sklearn.SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.1)
    check_learner(
        atoll.Training(model=model, algorithm=FedAvg(epochs=2)), islands(SIZES), engines=("inline", "batched")
    )


def test_a_training_reports_its_mean_loss_and_a_survey_that_of_the_received_model():
    learner, data = linear()
    params = learner.init(Rng(0))
    reply = learner.train(Told(data.shard(0)), asking(learner, reports={"loss": None}))
    part = reply["report/loss"]
    assert part.value == reply["loss"].value
    assert (part.weight, part.kind, part.role) == (10.0, "parts", "report")
    told = learner.report(Told(data.shard(0)), {"params": params, "reports": {"loss": None}})
    assert set(told) == {"report/loss"}
    assert told["report/loss"].value == pytest.approx(np.log(3))  # a model of zeros: all three classes are as likely
    assert told["report/loss"].weight == 10.0
    assert learner.report_of(params, data.test, {"loss": None}) == {"loss": pytest.approx(np.log(3))}


def script_learner(tmp_path, **answer):
    """The learner of a script whose process answers this."""
    (tmp_path / "train.py").write_text("")
    script = atoll.models.Script(script=str(tmp_path / "train.py"), model={"w": np.zeros(2)})
    learner = prepared(job(script), islands(SIZES)).learner
    learner._once = lambda island, task: {"model": {"w": np.ones(2)}, "examples": None, "metrics": {}, **answer}
    island = Told(islands(SIZES).shard(0))
    island.request = 1
    return learner, island


@pytest.mark.parametrize(
    ("examples", "loss", "told"),
    [(2.5, 0.75, (0.75, 2.5)), (None, 0.75, (0.75, 10.0)), (0.0, 0.75, (0.0, 0.0)), (4.0, np.nan, (0.0, 0.0))],
)
def test_a_scripts_loss_counts_by_its_own_examples(tmp_path, examples, loss, told):
    learner, island = script_learner(tmp_path, examples=examples, metrics={"loss": loss})
    reply = learner.train(island, asking(learner, reports={"loss": None}))
    assert (float(reply["report/loss"].value), reply["report/loss"].weight) == told
    assert reply["update"].weight == (10.0 if examples is None else examples)


@pytest.mark.parametrize("examples", [-1.0, np.nan, np.inf, 2.0**54, 5, "5", True])
def test_a_count_that_comes_past_the_clients_own_check_is_refused(tmp_path, examples):
    learner, island = script_learner(tmp_path, examples=examples)
    with pytest.raises(TaskError, match=r"replied with examples=.*call task.reply\(model, examples=n\) with n from 0"):
        learner.train(island, asking(learner))


def test_a_loss_that_is_no_number_costs_no_update():
    learner, _ = linear()
    update = Mean({"w": np.ones(2)}, examples=10.0)
    for loss, told in ((0.5, (0.5, 10.0)), (np.nan, (0.0, 0.0))):
        reply = {"update": update, "loss": Mean(np.float64(loss), examples=10.0, role="metric")}
        made = learner._with_reports(reply, {"loss": {}}, 10)
        assert (float(made["report/loss"].value), made["report/loss"].weight) == told


def test_a_client_without_rows_tells_nothing():
    learner, _ = linear()
    empty = Dataset({"x": np.zeros((0, 4)), "y": np.zeros(0, int)}, task="classification", classes=3)
    message = {"params": learner.init(Rng(0)), "reports": {"loss": None}}
    for told in (
        learner.report(Told(empty), message),
        learner.train(Told(empty), asking(learner, reports={"loss": None})),
    ):
        assert (told["report/loss"].value, told["report/loss"].weight) == (0.0, 0.0)


def test_a_survey_of_some_rows_tells_their_mean_and_is_right_on_average():
    """One of the sets of 3 rows, not always the same one; over many keys the mean of all rows, within five standard errors."""
    learner, data = linear()
    params = {name: np.random.default_rng(0).normal(size=leaf.shape) for name, leaf in learner.init(Rng(0)).items()}
    whole = data.shard(0).dataset()
    each = [learner.report_of(params, whole.take([i]), {"loss": None})["loss"] for i in range(10)]
    means = np.array([np.mean(some) for some in itertools.combinations(each, 3)])
    told = []
    for key in range(300):
        part = learner.report(Told(data.shard(0), key), {"params": params, "reports": {"loss": {"rows": 3}}})[
            "report/loss"
        ]
        assert part.weight == 3.0
        assert np.abs(means - part.value).min() < 1e-12
        told.append(float(part.value))
    assert len(set(told)) > 50
    assert abs(np.mean(told) - np.mean(each)) < 5 * means.std() / np.sqrt(len(told))
    work = learner.report.declared(range(10), {"params": params, "reports": {"loss": {"rows": 3}}})
    assert work.epochs == pytest.approx(0.3)


@pytest.mark.parametrize("rows", [0, -1, 2.5, "many"])
def test_a_survey_of_no_rows_is_refused(rows):
    learner, data = linear()
    with pytest.raises(ConfigError, match="rows="):
        learner.report_of(learner.init(Rng(0)), data.test, {"loss": {"rows": rows}})


def test_rows_are_not_drawn_of_what_cannot_be_taken_apart():
    with pytest.raises(DataError, match="cannot draw rows from a range"):
        rows_for({"rows": 2}, range(5), 0)
    assert rows_for({"rows": 5}, range(5), 0) == range(5)


@pytest.mark.parametrize("where", ["train", "report", "own", "check"])
def test_what_nobody_knows_or_this_model_cannot_tell_is_refused(where):
    learner, data = linear()

    def ask(reports):
        if where == "train":
            return learner.train(Told(data.shard(0)), asking(learner, reports=reports))
        if where == "report":
            return learner.report(Told(data.shard(0)), {"params": learner.init(Rng(0)), "reports": reports})
        if where == "own":
            return learner.report_of(learner.init(Rng(0)), data.test, reports)
        return learner.check_reports(reports)

    with pytest.raises(ConfigError, match=r"no report is called 'losses'\. Did you mean 'loss'"):
        ask({"losses": None})
    with pytest.raises(CompositionError, match=r"LinearLearner cannot report 'profile'.*use a PyTorch module"):
        ask({"profile": None})
    with pytest.raises(ConfigError, match="options are: rows"):
        ask({"loss": {"layer": "fc"}})
    with pytest.raises(ConfigError, match="use a dict"):
        ask(["loss"])


def test_a_survey_of_nothing_and_of_no_data_is_refused():
    learner, data = linear()
    with pytest.raises(ConfigError, match="no reports"):
        learner.report(Told(data.shard(0)), {"params": learner.init(Rng(0)), "reports": {}})
    with pytest.raises(DataError, match="no data to report 'loss' on"):
        learner.report_of(learner.init(Rng(0)), None, {"loss": None})


def test_nothing_is_reported_beside_a_mechanism():
    learner, data = linear(OutputPerturbation(base=FedAvg(), tau=1.0, sigma=1.0))
    with pytest.raises(CompositionError, match="would leave the clients without noise"):
        learner.train(Told(data.shard(0)), asking(learner, reports={"loss": None}))
    with pytest.raises(CompositionError, match="would leave the clients without noise"):
        learner.report(Told(data.shard(0)), {"params": learner.init(Rng(0)), "reports": {"loss": None}})
    assert learner.check_reports({}) == {}


def test_a_loop_that_measures_no_loss_cannot_tell_it():
    learner, message = own_loop(epochs=1)
    with pytest.raises(CompositionError, match="cannot report 'loss'"):
        learner.train(Told(islands([10]).shard(0)), {**message, "reports": {"loss": None}})
    model = atoll.models.CustomLearner(
        init=lambda rng: {"w": np.zeros(1)}, train=lambda p, d, r: p, evaluate=lambda p, d: {"accuracy": 1.0}
    )
    other = adapt(model, LearnerSettings(algorithm=FedAvg()), islands([10]))
    with pytest.raises(CompositionError, match="measures no loss"):
        other.report(Told(islands([10]).shard(0)), {"params": other.init(Rng(0)), "reports": {"loss": None}})


def test_naive_bayes_has_no_loss_before_it_has_statistics():
    bayes = pytest.importorskip("sklearn.naive_bayes")
    data = islands([10])
    learner = adapt(bayes.GaussianNB(), LearnerSettings(algorithm=SufficientStatistics()), data)
    told = learner.report(Told(data.shard(0)), {"params": learner.init(Rng(0)), "reports": {"loss": None}})
    assert told["report/loss"].weight == 0.0
    reply = learner.train(
        Told(data.shard(0)),
        {"broadcast": {"params": learner.init(Rng(0))}, "phase": "train", "reports": {"loss": None}},
    )
    assert reply["report/loss"].weight == 10.0
    assert reply["report/loss"].value > 0


def test_reports_count_as_passes_over_the_data():
    learner, data = linear(FedAvg(epochs=2, batch_size=4))
    shard = data.shard(0)
    assert learner.report.declared(shard, {"reports": {"loss": None}}) == Work(10, 3, 1)
    plain = learner.train.declared(shard, {"phase": "train"})
    assert learner.train.declared(shard, {"phase": "train", "reports": {"loss": None}}) == plain == Work(10, 6, 2)
    assert learner.train.declared(shard, {"phase": "train", "reports": {"profile": None}}) == Work(10, 9, 3)


def test_a_training_knows_the_survey_by_name():
    plan = job(atoll.models.linear(4, 3))
    data = islands(SIZES)
    assert "atoll.learn.linear:report" in [task.name for task in plan.named_tasks(plan.learner(data), data)]


def test_reports_reach_the_server_one_by_one_in_cohort_order():
    learner, data = linear()
    message = asking(learner, reports={"loss": None})

    async def program(fed):
        got = await fed.sum(fed.parties[::-1], learner.train, message, at=1)
        return [(part.sender, part.weight) for part in got["report/loss"]], got.senders.positions.tolist()

    told, senders = atoll.simulate(program, data, tasks=[learner.train], engine="inline")
    assert told == [(3, 1.0), (2, 7.0), (1, 4.0), (0, 10.0)]
    assert senders == [3, 2, 1, 0]
