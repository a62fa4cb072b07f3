"""The record of a training and the efficiency metrics that are reductions of it (W. Wu 2021, Eqs. 1.4-1.6)."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg
from atoll.core import message as M
from atoll.core.errors import ConfigError
from atoll.core.requests.results import Outcomes
from atoll.learn import Evaluation, Training
from atoll.models import CustomLearner
from atoll.rounds import History, MaxTime, Patience, Target
from atoll.selection import Everyone
from tests.support.learn_toys import Fixed, islands

ACCURACY = [0.2, 0.5, None, 0.8, 0.7]
LOSS = [2.0, 1.0, None, 0.4, 0.5]
LENGTHS = [3.0, 5.0, 2.0, 4.0, 6.0]


def log():
    rows, clock = [], 0.0
    for i, (accuracy, loss, length) in enumerate(zip(ACCURACY, LOSS, LENGTHS, strict=True), 1):
        row = {"round": i, "t_start": clock, "t_end": clock + length, "bytes_up": 10 * i, "bytes_down": i}
        if accuracy is not None:
            row |= {"test/accuracy": accuracy, "test/loss": loss}
        rows.append(row)
        clock += length
    return History(rows)


def test_rounds_time_and_bytes_to_a_target():
    h = log()
    assert (h.rounds_to("test/accuracy", 0.5), h.time_to("test/accuracy", 0.5)) == (2, 8.0)
    assert (h.rounds_to("test/accuracy", 0.75), h.time_to("test/accuracy", 0.75)) == (4, 14.0)
    assert h.bytes_to("test/accuracy", 0.75) == (10 + 20 + 30 + 40) + (1 + 2 + 3 + 4)
    assert (h.rounds_to("test/loss", 0.45), h.time_to("test/loss", 0.45)) == (4, 14.0)
    for never in (h.rounds_to, h.time_to, h.bytes_to):
        assert never("test/accuracy", 0.99) is None
        assert never("test/loss", 0.1) is None


def test_the_average_round_length():
    assert log().average_round_length == pytest.approx(sum(LENGTHS) / 5)
    assert History([]).average_round_length == 0.0


def test_best_and_last():
    h = log()
    assert h.best("test/accuracy") == (4, 0.8)
    assert h.best("test/loss") == (4, 0.4)
    assert h.best("test/loss", lowest=False) == (1, 2.0)
    assert h.last("test/accuracy") == 0.7
    assert h.column("test/accuracy") == ACCURACY
    assert (h.bytes_up, h.bytes_down) == (150, 15)
    assert (len(h), h[-1]["round"], [row["round"] for row in h]) == (5, 5, [1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    "lower", ["test/mse", "clients/loss/worst_decile", "test/calibration_error", "test/rmse", "test/mae"]
)
def test_losses_and_errors_are_best_when_lowest(lower):
    h = History([{"round": 1, lower: 2.0}, {"round": 2, lower: 1.0}])
    assert h.best(lower) == (2, 1.0)
    assert h.rounds_to(lower, 1.5) == 2


def test_a_metric_that_was_never_recorded_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no round recorded 'test/acuracy'. Did you mean 'test/accuracy'\?"):
        log().column("test/acuracy")
    with pytest.raises(ConfigError, match="no round recorded 'f1'"):
        log().rounds_to("f1", 1.0)


def test_traffic_of_one_terabyte_each_way():
    """Wu 2021, section 1.3: a model of 10 MB, 1000 clients, 100 rounds, everyone takes part: 1 TB down and 1 TB up.

    The same arithmetic at a 10,000th of the size and in 2 rounds; what is above it is the envelope of a message.
    """
    clients, rounds, floats = 1000, 2, 125
    assert 10e6 * 1000 * 100 == 1e12
    model = CustomLearner(init=lambda rng: {"w": np.zeros(floats)}, train=lambda params, data, rng: params)
    job = Training(model=model, algorithm=FedAvg(), selection=Everyone(), rounds=rounds)
    history = atoll.simulate(job, islands([1] * clients), engine="inline").metrics
    size = 8 * floats
    envelope = M.nbytes({"broadcast": {"params": {"w": np.zeros(floats)}, "lr": 0.1}, "phase": "train"}) - size
    assert history.bytes_down == clients * rounds * (size + envelope)
    assert clients * rounds * size < history.bytes_up < clients * rounds * (size + 200)


@pytest.mark.slow
def test_all_ten_clients_finish_with_a_chance_of_a_tenth():
    """Wu 2021: 10 clients that crash with probability 20 % each all finish with probability (1 - 0.2)^10 = 10.7 %."""

    class Coins:
        def plan(self, parties, plan):
            done = np.random.Generator(np.random.Philox(key=plan.key)).random(len(parties)) >= 0.2
            return Outcomes(np.ones(len(parties)), done, done.astype(float))

        def transfer(self, source, target, nbytes):
            return 0.0

    model = CustomLearner(init=lambda rng: {"w": np.zeros(1)}, train=lambda params, data, rng: params)
    job = Training(model=model, algorithm=FedAvg(), selection=Everyone(), rounds=1000, checkpoint_every=1000)
    history = atoll.simulate(job, islands([1] * 10), engine="inline", devices=Coins()).metrics
    share = np.mean([row["silent"] == 0 for row in history])
    assert round(0.8**10, 3) == 0.107
    assert abs(share - 0.107) < 4 * np.sqrt(0.107 * 0.893 / 1000)
    assert np.mean(history.column("replied")) == pytest.approx(8.0, abs=0.15)


def history(values, name="test/accuracy"):
    return History([{"round": i, "t_start": i - 1.0, "t_end": float(i), name: v} for i, v in enumerate(values, 1)])


def test_target():
    rule = Target("test/accuracy", 0.8)
    assert rule.reason(history([])) is None
    assert rule.reason(history([0.5, 0.79])) is None
    assert rule.reason(history([0.5, 0.8])) == "test/accuracy = 0.8 reached the target 0.8"
    assert rule.reason(history([0.9, None])) is None
    assert Target("test/loss", 0.3).reason(history([0.2], "test/loss")) == "test/loss = 0.2 reached the target 0.3"
    assert Target("test/loss", 0.3).reason(history([0.4], "test/loss")) is None


def test_time():
    assert MaxTime(3.0).reason(history([0.0, 0.0])) is None
    assert MaxTime(2.0).reason(history([0.0, 0.0])) == "2.0 s passed the budget of 2 s"
    with pytest.raises(ConfigError, match="seconds=0"):
        MaxTime(0)


def test_patience():
    rule = Patience("test/accuracy", evaluations=2)
    assert rule.reason(history([0.5, 0.6, 0.6])) is None
    assert rule.reason(history([0.5, 0.6, 0.6, 0.55])) == "test/accuracy has not improved for 2 evaluations"
    assert rule.reason(history([0.5, 0.6, None, 0.6, None, 0.7])) is None
    lenient = Patience("test/loss", evaluations=2, margin=0.1)
    assert lenient.reason(history([1.0, 0.95, 0.93], "test/loss")) == "test/loss has not improved for 2 evaluations"
    assert lenient.reason(history([1.0, 0.95, 0.85], "test/loss")) is None
    with pytest.raises(ConfigError, match="evaluations=0"):
        Patience("test/loss", 0)


def test_stop_rules_end_a_training_with_a_reason():
    def job(**parts):
        return Training(
            model=atoll.models.linear(4, 3), algorithm=FedAvg(lr=0.1), selection=Everyone(), rounds=30, **parts
        )

    data = islands([20, 20])
    full = atoll.simulate(job(), data, engine="inline")
    assert full.reason == "all 30 rounds are done"
    goal = full.metrics[4]["test/loss"]
    stopped = atoll.simulate(job(stop=[Target("test/loss", goal)]), data, engine="inline")
    assert len(stopped.metrics) == full.metrics.rounds_to("test/loss", goal) <= 5
    assert "reached the target" in stopped.reason
    patient = atoll.simulate(job(stop=[Patience("test/accuracy", 3)]), data, engine="inline")
    assert len(patient.metrics) < 30
    assert "has not improved" in patient.reason


def test_the_round_at_which_a_rule_stops_is_evaluated():
    job = Training(
        model=atoll.models.linear(4, 3),
        algorithm=FedAvg(lr=0.1),
        selection=Everyone(),
        rounds=30,
        stop=[MaxTime(2.5)],
        evaluation=Evaluation(every=10, clients=-1),
    )
    rows = atoll.simulate(job, islands([5, 5]), engine="inline", devices=Fixed([1.0, 1.0])).metrics
    assert len(rows) == 3
    assert [("test/accuracy" in row, "clients/accuracy" in row) for row in rows] == [(False, False)] * 2 + [
        (True, True)
    ]


DEVICES = History(
    [
        {"round": 1, "selected": 4, "replied": 3, "crashed": 1, "synchronised": 4, "wasted": 0.5, "energy_wh": 2.0},
        {"round": 2, "selected": 0, "replied": 0},  # the server alone
        {
            "round": 3,
            "selected": 6,
            "replied": 5,
            "picked": 2,
            "begun": 4.0,
            "synchronised": 1,
            "wasted": 1.0,
            "version_variance": 0.5,
        },
    ]
)


def test_how_well_rounds_use_their_devices():
    """Eqs. 3.3, 3.12, 3.13 over the rounds in which somebody was asked."""
    assert DEVICES.effective_update_ratio(10) == pytest.approx((3 + 2) / 20)
    assert DEVICES.synchronisation_ratio(10) == pytest.approx((4 + 1) / 20)
    assert DEVICES.version_variance == pytest.approx(0.25)
    assert DEVICES.futility == pytest.approx(1.5 / 8)
    assert DEVICES.energy_wh == 2.0
    assert History([]).futility == History([]).version_variance == History([]).effective_update_ratio(5) == 0.0


def test_a_population_of_nobody_is_refused():
    with pytest.raises(ConfigError, match="population=0 clients"):
        DEVICES.synchronisation_ratio(0)
