"""DS-FL: bytes that no model changes, agreement, refusals, and a client whose predictions are forged."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, OutputPerturbation
from atoll.core.algebra.aggregate import Parts
from atoll.core.errors import AtollError, CompositionError, DataError
from atoll.data import Dataset, Islands
from atoll.labels.methods import DSFL
from atoll.labels.methods import dsfl as module
from atoll.models import Linear, mlp
from atoll.reducers import SecureAggregation
from tests.support.killed_trainings import killed_training

CENTRES = np.random.default_rng(0).normal(size=(3, 6)) * 2.0


def rows(n: int, seed: int, classes: tuple[int, ...] = (0, 1, 2)) -> Dataset:
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, size=n)
    return Dataset(
        {"x": (CENTRES[y] + rng.normal(size=(n, 6))).astype(np.float32), "y": y}, task="classification", classes=3
    )


def clinics(public: int = 60) -> Islands:
    """Three clients with two classes each, and a public pool whose labels nobody reads."""
    made = Islands.from_datasets([rows(40, 1, (0, 1)), rows(40, 2, (1, 2)), rows(40, 3, (0, 2))], test=rows(300, 9))
    made.public = rows(public, 8) if public else None
    return made


def job(model: Any = None, rounds: int = 6, algorithm: Any = None, **settings: Any) -> atoll.Training:
    return atoll.Training(
        model=model or Linear(6, 3),
        algorithm=algorithm or FedAvg(lr=0.1, epochs=1, batch_size=10),
        topology=DSFL(**{"rows": 30, "batch_size": 10, **settings}),
        selection=atoll.Everyone(),
        rounds=rounds,
        evaluation=atoll.Evaluation(every=rounds),
    )


def test_the_server_learns_from_predictions_alone() -> None:
    taught = atoll.simulate(job(), clinics(), engine="inline").metrics[-1]["test/accuracy"]
    untaught = atoll.simulate(job(epochs=0), clinics(), engine="inline").metrics[-1]["test/accuracy"]
    assert taught > 0.85
    assert taught > untaught + 0.2


def test_bytes_follow_rows_and_classes_and_no_model() -> None:
    """Up: 4 bytes for each of 30 rows and 3 classes of 3 clients, the loss, and headers; a model of a thousand parameters more changes nothing."""
    small, large = (
        atoll.simulate(job(model, rounds=1), clinics(), engine="inline").metrics[-1]
        for model in (Linear(6, 3), mlp(6, 3, hidden=(64, 64)))
    )
    assert small["bytes_up"] == large["bytes_up"]
    more = atoll.simulate(job(rounds=1, rows=60), clinics(), engine="inline").metrics[-1]
    for row, n in ((small, 30), (more, 60)):
        payload = 3 * 4 * n * 3
        assert payload < row["bytes_up"] < payload + 3 * 512, "predictions and headers"
        assert payload < row["bytes_down"] < payload + 3 * 1024, "the same numbers, and the keys of both messages"


def test_without_distillation_clients_train_alone() -> None:
    """DS-FL averages no models: the server's stays as it began, for any number of rounds."""
    one, more = (atoll.simulate(job(epochs=0, rounds=n), clinics(), engine="inline", seed=0).params for n in (1, 3))
    assert all(np.array_equal(one[name], more[name]) for name in one)


@pytest.mark.network
def test_order_of_era_is_a_choice_and_the_same_on_every_engine() -> None:
    found = {}
    for order in ("before", "after", "never"):
        found[order] = atoll.simulate(job(order=order, rounds=2), clinics(), engine="inline").params
        again = atoll.simulate(job(order=order, rounds=2), clinics(), engine="processes").params
        assert all(np.array_equal(found[order][name], again[name]) for name in again)
    assert not np.allclose(found["before"]["weight"], found["after"]["weight"])


def test_a_killed_run_resumes_to_the_bit(tmp_path: Any) -> None:
    """Clients' models are private state."""
    killed_training(job(rounds=3), clinics(), tmp_path, points=6)


@dataclass(frozen=True)
class Forged(DSFL):
    """The second client sends what it likes."""

    sent: Any = None

    def course(self, context: Any) -> Any:
        return _Forged(self, context)


class _Forged(module._Exchange):
    async def _predict(self, island: Any, message: Any) -> Any:
        made = await super()._predict(island, message)
        if island.name == "client-1":
            made["predictions"] = Parts(self.rule.sent, role="side")  # type: ignore[attr-defined]
        return made


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (np.full((30, 3), 5.0, np.float32), "row 0 of the predictions has 5: not a probability"),
        (np.full((30, 3), 0.5, np.float32), "adds up to 1.5"),
        (np.ones((1, 3), np.float32) / 3, r"shape \(1, 3\), not \(30, 3\)"),
    ],
)
def test_predictions_off_the_simplex_are_left_out_and_named(sent: Any, said: str) -> None:
    data = clinics()
    attacked = atoll.Training(
        model=Linear(6, 3),
        algorithm=FedAvg(lr=0.1),
        topology=Forged(rows=30, sent=sent),
        selection=atoll.Everyone(),
        rounds=2,
    )
    row = atoll.simulate(attacked, data, engine="inline").metrics[0]
    assert row["replied"] == 2
    assert row["rejected"] == 1
    ((name, why),) = row["rejected_clients"].items()
    assert name == data.names[1]
    assert re.search(said, why)


@pytest.mark.parametrize(
    ("changes", "data", "error", "said"),
    [
        ({}, {"public": 0}, DataError, r"no public pool.*islands\.public"),
        ({"reducer": "secure"}, {}, CompositionError, "predictions"),
        (
            {"algorithm": OutputPerturbation(base=FedAvg(), tau=1.0, sigma=1.0)},
            {},
            CompositionError,
            "predictions of models without noise",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    changes: dict[str, Any], data: dict[str, Any], error: type[AtollError], said: str
) -> None:
    changes = {**changes, "reducer": SecureAggregation()} if "reducer" in changes else changes
    with pytest.raises(error, match=said):
        atoll.simulate(replace(job(), **changes), clinics(**data), engine="inline")


@pytest.mark.parametrize(
    "settings", [{"rows": 0}, {"epochs": -1}, {"batch_size": 0}, {"lr": 0.0}, {"temperature": 0.0}, {"order": "twice"}]
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=str(next(iter(settings.values())))):
        DSFL(**settings)
