"""Mistakes that people make in Python: each gives an ``AtollError`` that names the value, the place and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import atoll
from atoll import FedAvg, Mean, Sum, Training, task
from atoll.core.errors import AtollError
from atoll.data import Dataset, digits, dirichlet, iid
from atoll.learn import algorithms
from atoll.models import linear
from atoll.rounds import Patience, Target
from atoll.stages import QSGD, TopK

DATA = digits()
ISLANDS = iid(DATA, parties=4, seed=0)
X, Y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2


def train(islands: Any = ISLANDS, *, model: Any = None, engine: Any = "inline", **job: Any) -> Any:
    """A training with one thing wrong in it."""
    wanted = {"selection": atoll.Everyone(), "rounds": 1, **job}
    return atoll.simulate(Training(model=linear(64, 10) if model is None else model, **wanted), islands, engine=engine)


def run(step: Callable[..., Any], kind: str = "sum", **more: Any) -> Any:
    """A program of one request, whose task has something wrong in it."""

    async def program(fed: Any) -> Any:
        return await getattr(fed, kind)(fed.parties, step, {"x": 1.0}, **more)

    return atoll.simulate(program, {"a": 1.0, "b": 2.0}, engine="inline")


@task
def forgets_mean(island: Any, message: Any) -> Any:
    return {"x": island.data * message["x"]}


@task
def gives_nothing(island: Any, message: Any) -> Any:
    return None


@task
def asks_for_a_wrong_key(island: Any, message: Any) -> Any:
    return {"x": Mean(message["y"])}


@task
def gives_an_object(island: Any, message: Any) -> Any:
    return {"x": Sum(object())}


@task
def sums(island: Any, message: Any) -> Any:
    return {"x": Sum(island.data)}


@task
def unlike(island: Any, message: Any) -> Any:
    return {"x": Sum(np.zeros(2 if island.name == "a" else 3))}


async def reads_a_wrong_total(fed: Any) -> Any:
    return (await fed.sum(fed.parties, sums, {}))["y"]


async def asks_a_stranger(fed: Any) -> Any:
    return await fed.ask_all(["nobody"], sums, {})


async def forgets_the_message(fed: Any) -> Any:
    return await fed.sum(fed.parties, lambda island, message: {"x": Sum(1.0)}, {})


class NoFinish(atoll.Algorithm):
    def start(self, broadcast: Any, client: Any) -> Any:
        return {"parameters": broadcast["params"]}


class RenamesTheUpdate(FedAvg):
    def finish(self, local: Any, broadcast: Any, client: Any, work: Any) -> Any:
        reply, state = super().finish(local, broadcast, client, work)
        return {"delta": reply["update"]}, state


class ForgetsTheState(FedAvg):
    def finish(self, local: Any, broadcast: Any, client: Any, work: Any) -> Any:
        return super().finish(local, broadcast, client, work)[0]


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    # settings of parts
    "learning_rate": (lambda: FedAvg(learning_rate=0.1), "learning_rate.*[Dd]id you mean 'lr'"),
    "a misspelt part": (lambda: Training(model=linear(4, 2), algoritm=FedAvg()), "algoritm.*[Dd]id you mean 'algorithm'"),
    "no model": (lambda: Training(algorithm=FedAvg()), "model"),
    "a setting too many": (lambda: Target("test/accuracy", 0.9, 3, 4, 5), "Target"),
    "text for a number": (lambda: FedAvg(lr="0.1"), "lr='0.1'"),
    "a list for a number": (lambda: FedAvg(lr=[0.1]), r"lr=\[0.1\]"),
    "a negative rate": (lambda: FedAvg(lr=-0.1), "lr=-0.1"),
    "no epochs": (lambda: FedAvg(epochs=0), "epochs=0"),
    "a fraction of an epoch": (lambda: FedAvg(epochs=1.5), "epochs=1.5"),
    "an empty batch": (lambda: FedAvg(batch_size=0), "batch_size=0"),
    "no rounds": (lambda: train(rounds=0), "rounds=0"),
    "a class for a part": (lambda: train(algorithm=FedAvg), "FedAvg is a class"),
    "a name for a part": (lambda: train(algorithm="FedAvg"), "'FedAvg' is not an instance of Algorithm"),
    "a number for a selection": (lambda: train(selection=10), "10 is not an instance of Selection"),
    "one stage, no list": (lambda: train(uplink=atoll.Clip(1.0)), "uplink=Clip"),
    "a metric for a stop rule": (lambda: train(stop=["test/accuracy"]), "stop="),
    "a loss nobody knows": (lambda: train(loss="cross_entrpy"), "cross_entrpy"),
    "a share above one": (lambda: TopK(1.5), "1.5"),
    "no bits": (lambda: QSGD(0), "0"),
    "mu below zero": (lambda: algorithms.FedProx(mu=-1.0), "mu=-1.0"),
    "a deadline below zero": (lambda: atoll.Synchronous(deadline=-1.0), "deadline=-1.0"),
    "patience of nothing": (lambda: Patience("test/loss", evaluations=0), "evaluations=0"),
    # names
    "a part that lives elsewhere": (lambda: atoll.FedProx, r"FedProx.*atoll\.learn\.algorithms\.FedProx"),
    "another part that lives elsewhere": (lambda: atoll.Gossip, r"Gossip.*atoll\.learn\.topology\.Gossip"),
    "a misspelt part of atoll": (lambda: atoll.FedAverage, "FedAverage.*[Dd]id you mean"),
    "a misspelt algorithm": (lambda: algorithms.Scafold, "Scafold.*[Dd]id you mean 'Scaffold'"),
    "a misspelt partitioner": (lambda: atoll.data.dirichlett, "dirichlett.*[Dd]id you mean 'dirichlet'"),
    "an engine nobody knows": (lambda: train(engine="bached"), "'bached'.*'batched'"),
    "a metric nobody measured": (lambda: train().metrics.last("test/acc"), "'test/acc'"),
    # data
    "more clients than rows": (lambda: iid(DATA, parties=100_000), "100,?000"),
    "no clients": (lambda: iid(DATA, parties=0), "0"),
    "an alpha of zero": (lambda: dirichlet(DATA, parties=4, alpha=0.0), "alpha"),
    "islands forgotten": (lambda: train(DATA), "partition|divided|iid"),
    "arrays in place of islands": (lambda: train((X, Y)), "."),
    "columns of unequal length": (lambda: Dataset({"x": X, "y": Y[:-1]}, task="classification", classes=2), "39|40"),
    "a task nobody knows": (lambda: Dataset({"x": X, "y": Y}, task="classify", classes=2), "classify"),
    "a class too many": (lambda: Dataset({"x": X, "y": Y + 5}, task="classification", classes=2), "6|5"),
    "fractions as classes": (lambda: Dataset({"x": X, "y": Y + 0.5}, task="classification", classes=2), "0.5|float|class"),
    "islands of unlike columns": (
        lambda: train([Dataset({"x": X, "y": Y}, task="classification", classes=2), Dataset({"x": X[:, :2], "y": Y}, task="classification", classes=2)]),
        "x",
    ),
    "a model of another width": (lambda: train(model=linear(63, 10)), "63|64"),
    "a model with too few outputs": (lambda: train(model=linear(64, 9)), "9|10"),
    "rows of a client that is not there": (lambda: ISLANDS.subset([4]), "4"),
    # what goes with what
    "accuracy as a target without test rows": (
        lambda: train(ISLANDS.with_test(None), stop=[Target("test/accuracy", 0.9)]),
        "test/accuracy",
    ),
    "a target that is never measured": (lambda: train(stop=[Target("test/acuracy", 0.9)]), "test/acuracy"),
    "resume without a folder": (lambda: atoll.simulate(Training(model=linear(64, 10)), ISLANDS, resume=True), "resume"),
    # programs and tasks
    "a forgotten Mean": (lambda: run(forgets_mean), "Mean|Sum"),
    "a task that gives nothing": (lambda: run(gives_nothing), "None"),
    "a wrong key of the message": (lambda: run(asks_for_a_wrong_key), "'y'"),
    "an object as a reply": (lambda: run(gives_an_object), "object"),
    "sums of unlike shapes": (lambda: run(unlike), "a|b"),
    "a total that nobody sent": (lambda: atoll.simulate(reads_a_wrong_total, {"a": 1.0}, engine="inline"), "'y'"),
    "a party that is not there": (lambda: atoll.simulate(asks_a_stranger, {"a": 1.0}, engine="inline"), "nobody"),
    "a lambda as a task": (lambda: atoll.simulate(forgets_the_message, {"a": 1.0}, engine="inline"), "lambda|task"),
    "a program that is not async": (lambda: atoll.simulate(lambda fed: 1, {"a": 1.0}, engine="inline"), "async"),
    "a job class, not a job": (lambda: atoll.simulate(Training, ISLANDS), "Training"),
    "a step without params": (lambda: train(algorithm=NoFinish()), "params"),
    "a reply under another name": (lambda: train(algorithm=RenamesTheUpdate()), "fold found no 'update'.*delta"),
    "a reply without the client's state": (lambda: train(algorithm=ForgetsTheState()), "finish returns a dict.*return"),
    "too small a quorum": (lambda: run(sums, quorum=5), "5"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gives_value_place_and_remedy(name: str) -> None:
    make, text = MISTAKES[name]
    with pytest.raises(AtollError, match=text) as caught:
        make()
    assert caught.value.where, "no place"
    assert caught.value.remedy, "no remedy"
