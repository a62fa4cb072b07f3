"""Mistakes that people make in Python: each gives an ``AtollError`` that names the value, the place and the remedy."""

from __future__ import annotations

import importlib
import inspect
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import atoll
from atoll import FedAvg, Mean, Sum, Training, algorithms, task
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.errors import AtollError
from atoll.core.validation import Checked
from atoll.data import Dataset, digits, dirichlet, iid
from atoll.mechanisms import DPFTRL, CentralDP, DistributedDP, ExampleDP
from atoll.models import linear
from atoll.privacy import Budget
from atoll.reducers import SecureAggregation
from atoll.rounds import Patience, Target
from atoll.selection import SizeProportional
from atoll.stages import QSGD, Clip, GaussianNoise, TopK

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


@task
def text(island: Any, message: Any) -> Any:
    return {"x": Sum("a")}


@task
def nothing(island: Any, message: Any) -> Any:
    return {"x": Sum(None)}


@task
def weighs_less_than_nothing(island: Any, message: Any) -> Any:
    return {"x": Mean(1.0, examples=-1)}


class NeedsAWidth:
    def __init__(self, width: int) -> None:
        self.width = width


def no_run_finished() -> Any:
    job = Training(model=linear(63, 10), rounds=1)
    with tempfile.TemporaryDirectory() as folder:
        return str(atoll.sweep(job, ISLANDS, seeds=1, folder=folder, tell=lambda line: None))


def private(**parts: Any) -> Any:
    """A training with differential privacy, and one thing wrong in it."""
    mechanism = parts.pop("mechanism", {})
    wanted = {"noise": 1.0, "clip": 1.0, "accountant": "rdp", **mechanism}
    return train(selection=parts.pop("selection", atoll.Uniform(2)), privacy=CentralDP(**wanted), **parts)


def by_example(**parts: Any) -> Any:
    """A training with differential privacy for examples, and one thing wrong in it."""
    wanted = {"noise": 1.0, "clip": 1.0, "accountant": "rdp", **parts.pop("mechanism", {})}
    return train(privacy=ExampleDP(**wanted), **parts)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    # differential privacy
    "no clip": (lambda: CentralDP(epsilon=1.0, delta=1e-5), "missing.*'clip'"),
    "an endless clip": (lambda: CentralDP(epsilon=1.0, delta=1e-5, clip=float("inf")), "clip=inf"),
    "no delta": (lambda: CentralDP(epsilon=1.0, clip=1.0), "epsilon=1.0 without a delta"),
    "epsilon and noise": (lambda: private(mechanism={"epsilon": 1.0}), "epsilon=1.0, noise=1.0"),
    "a server that sees": (lambda: private(mechanism={"adversary": "server"}), "adversary='server'.*before the server"),
    "examples at the server": (lambda: private(mechanism={"unit": "example"}), "unit='example'"),
    "noise without a bound": (lambda: private(uplink=[QSGD()]), "QSGD acts after the clip.*no bound"),
    "a public sample": (lambda: private(selection=atoll.selection.Schedule([[0]])), "Schedule invites clients that others can"),
    "a sample by size": (lambda: private(selection=SizeProportional(2)), "SizeProportional invites"),
    "noise twice": (lambda: private(uplink=[Clip(1.0), GaussianNoise(1.0)]), "GaussianNoise protects the replies already"),
    "a mechanism twice": (
        lambda: private(algorithm=algorithms.OutputPerturbation(base=FedAvg(), tau=1.0, sigma=1.0)),
        "OutputPerturbation protects the replies already",
    ),
    "a budget for others": (lambda: private(budget=Budget(9.0)), "budget counts for adversary 'server'"),
    "a budget of less than a round": (
        lambda: private(budget=Budget(0.1, adversary="model", method="rdp")),
        "privacy budget of .* is epsilon=0.1.*another release would make it",
    ),
    "a user by its examples": (lambda: by_example(mechanism={"unit": "user"}), "unit='user'.*CentralDP"),
    "replaced examples": (lambda: by_example(mechanism={"neighbours": "replace-one"}), "'replace-one'.*OutputPerturbation"),
    "all rows as a sample": (lambda: by_example(algorithm=FedAvg(batch_size=None)), "the expected size of a mini-batch"),
    "one rate for epochs": (lambda: by_example(mechanism={"rate": 0.1}), "rate=0.1 with epochs=1.*set steps="),
    "a loss without noise": (lambda: by_example(algorithm=algorithms.IFCA(FedAvg())), "no step along gradients"),
    "losses told beside noise": (lambda: by_example(selection=atoll.selection.AFL()), "AFL"),
    "gossip with central noise": (lambda: private(topology=atoll.topology.Gossip()), "Gossip"),
    "late replies with central noise": (lambda: private(pacing=atoll.pacing.FedBuff(buffer=2)), "FedBuff"),
    "a cache with central noise": (lambda: private(pacing=atoll.pacing.SAFA()), "SAFA"),
    "weights by size": (lambda: private(aggregation=atoll.aggregation.Rescaled()), "Rescaled weights them in its own way"),
    "measurements beside noise": (lambda: private(algorithm=algorithms.FedNova()), "FedNova sends measurements"),
    "votes with noise": (lambda: private(algorithm=algorithms.SignSGD()), "SignSGD combines 'vote' as vote"),
    "no mechanism": (lambda: train(privacy=Clip(1.0)), "privacy: .*is not an instance of Mechanism"),
    "shared noise in the open": (
        lambda: train(privacy=DistributedDP(noise=1.0, clip=1.0, least=2)),
        "Plain shows the server single replies.*SecureAggregation",
    ),
    "shared noise of nobody": (lambda: DistributedDP(noise=1.0, clip=1.0), "least=None.*smallest number of replies"),
    "shared noise below the quorum": (
        lambda: train(
            privacy=DistributedDP(noise=1.0, clip=1.0, least=2), reducer=SecureAggregation(), selection=atoll.Everyone()
        ),
        "a quorum of 1 replies, fewer than the 2",
    ),
    "losses of vectors": (
        lambda: DistributedDP(noise=1.0, clip=1.0, least=2, accountant="pld"), "accountant.*'rdp'",
    ),
    "a sample without need": (lambda: DPFTRL(noise=1.0, clip=1.0, amplified=True), "amplified=True.*CentralDP"),
    "bands too close": (
        lambda: train(privacy=DPFTRL(noise=1.0, clip=1.0, bands=9), selection=atoll.Uniform(2), rounds=6), "bands=9.*CyclicGroups",
    ),
    # settings of parts
    "learning_rate": (lambda: FedAvg(learning_rate=0.1), "learning_rate.*[Dd]id you mean 'lr'"),
    "a misspelt part": (lambda: Training(model=linear(4, 2), algoritm=FedAvg()), "algoritm.*[Dd]id you mean 'algorithm'"),
    "no model": (lambda: Training(algorithm=FedAvg()), "missing.*'model'"),
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
    "a share above one": (lambda: TopK(1.5), "fraction=1.5"),
    "no bits": (lambda: QSGD(0), "levels=0"),
    "mu below zero": (lambda: algorithms.FedProx(mu=-1.0), "mu=-1.0"),
    "a deadline below zero": (lambda: atoll.Synchronous(deadline=-1.0), "deadline=-1.0"),
    "patience of nothing": (lambda: Patience("test/loss", evaluations=0), "evaluations=0"),
    # names
    "a part that lives elsewhere": (lambda: atoll.FedProx, r"FedProx.*atoll\.algorithms\.FedProx"),
    "another part that lives elsewhere": (lambda: atoll.Gossip, r"Gossip.*atoll\.topology\.Gossip"),
    "a misspelt part of atoll": (lambda: atoll.FedAverage, "FedAverage.*[Dd]id you mean"),
    "a misspelt algorithm": (lambda: algorithms.Scafold, "Scafold.*[Dd]id you mean 'Scaffold'"),
    "a misspelt partitioner": (lambda: atoll.data.dirichlett, "dirichlett.*[Dd]id you mean 'dirichlet'"),
    "an engine nobody knows": (lambda: train(engine="bached"), "'bached'.*'batched'"),
    "a metric nobody measured": (lambda: train().metrics.last("test/acc"), "'test/acc'"),
    # data
    "more clients than rows": (lambda: iid(DATA, parties=100_000), "100,?000"),
    "no clients": (lambda: iid(DATA, parties=0), "parties=0"),
    "an alpha of zero": (lambda: dirichlet(DATA, parties=4, alpha=0.0), "alpha=0.0"),
    "islands forgotten": (lambda: train(DATA), "partition|divided|iid"),
    "arrays in place of islands": (lambda: train((X, Y)), "a tuple of ndarray.*iid"),
    "columns of unequal length": (lambda: Dataset({"x": X, "y": Y[:-1]}, task="classification", classes=2), "'x' has 40, 'y' has 39"),
    "a task nobody knows": (lambda: Dataset({"x": X, "y": Y}, task="classify", classes=2), "classify"),
    "a class too many": (lambda: Dataset({"x": X, "y": Y + 5}, task="classification", classes=2), "label .?5.? at row 0.*classes=2"),
    "fractions as classes": (lambda: Dataset({"x": X, "y": Y + 0.5}, task="classification", classes=2), "float64.*astype"),
    "islands of unlike columns": (
        lambda: train([Dataset({"x": X, "y": Y}, task="classification", classes=2), Dataset({"x": X[:, :2], "y": Y}, task="classification", classes=2)]),
        r"column 'x' is float64\[3\] in part 0 and float64\[2\] in part 1",
    ),
    "a model of another width": (lambda: train(model=linear(63, 10)), "63 features.*have 64"),
    "a model with too few outputs": (lambda: train(model=linear(64, 9)), "label .?9.? does not fit a model with 9 outputs"),
    "rows of a client that is not there": (lambda: ISLANDS.subset([4]), r"clients \[4\].*0\.\.3"),
    # what goes with what
    "accuracy as a target without test rows": (
        lambda: train(ISLANDS.with_test(None), stop=[Target("test/accuracy", 0.9)]),
        r"'test/accuracy' is not measured.*no test rows.*with_test",
    ),
    "a target that is never measured": (lambda: train(stop=[Target("test/acuracy", 0.9)]), "test/acuracy.*[Dd]id you mean 'test/accuracy'"),
    "resume without a folder": (lambda: atoll.simulate(Training(model=linear(64, 10)), ISLANDS, resume=True), "resume=True.*folder"),
    # programs and tasks
    "a forgotten Mean": (lambda: run(forgets_mean), r"'x': 'float'.*Mean\("),
    "a task that gives nothing": (lambda: run(gives_nothing), "NoneType.*Mean"),
    "a wrong key of the message": (lambda: run(asks_for_a_wrong_key), "'y'.*the message has x$"),
    "an object as a reply": (lambda: run(gives_an_object), r"builtins\.object.*send numbers"),
    "sums of unlike shapes": (lambda: run(unlike), r"'x'.*\(2,\) \(3,\).*same shapes"),
    "a total that nobody sent": (lambda: atoll.simulate(reads_a_wrong_total, {"a": 1.0}, engine="inline"), "'y'.*use one of x"),
    "a party that is not there": (lambda: atoll.simulate(asks_a_stranger, {"a": 1.0}, engine="inline"), "nobody.*fed.parties"),
    "a lambda as a task": (lambda: atoll.simulate(forgets_the_message, {"a": 1.0}, engine="inline"), "lambda.*@atoll.task"),
    "a program that is not async": (lambda: atoll.simulate(lambda fed: 1, {"a": 1.0}, engine="inline"), "is not async.*async def"),
    "a job class, not a job": (lambda: atoll.simulate(Training, ISLANDS), "Training is a class"),
    "a step without params": (lambda: train(algorithm=NoFinish()), "start returns parameters, and no 'params'.*NoFinish.start"),
    "a reply under another name": (lambda: train(algorithm=RenamesTheUpdate()), "fold found no 'update'.*delta"),
    "a reply without the client's state": (lambda: train(algorithm=ForgetsTheState()), "finish returns a dict.*return"),
    "too small a quorum": (lambda: run(sums, quorum=5), "2 of 2.*quorum of 5"),
    # calls
    "islands forgotten in the call": (lambda: atoll.simulate(Training(model=linear(64, 10))), "simulate.*missing.*'islands'"),
    "rounds given to simulate": (lambda: atoll.simulate(Training(model=linear(64, 10)), ISLANDS, rounds=5), "rounds=5: simulate has no setting"),
    "a misspelt keyword of simulate": (lambda: atoll.simulate(Training(model=linear(64, 10)), ISLANDS, engin="inline"), "[Dd]id you mean 'engine'"),
    "text as a number of workers": (lambda: atoll.simulate(Training(model=linear(64, 10)), ISLANDS, workers="two"), "workers='two'.*whole number"),
    "a number as a folder": (lambda: atoll.simulate(Training(model=linear(64, 10)), ISLANDS, folder=5), "folder=5"),
    "text as a seed": (lambda: atoll.simulate(Training(model=linear(64, 10)), ISLANDS, seed="a"), "seed='a'.*simulate.*seed=0"),
    "an engine that is none": (lambda: train(engine=5), "engine=5.*batched"),
    "another library's word for clients": (lambda: iid(DATA, clients=5), "clients=5.*[Dd]id you mean 'parties'"),
    "text as a parameter of a partition": (lambda: dirichlet(DATA, parties=3, alpha="0.5"), "alpha='0.5'.*use a number"),
    "tables without a target": (lambda: atoll.data.from_dataframes({"a": None}), "missing.*'target'"),
    "a model's other argument": (lambda: linear(in_features=64, out_features=10), "[Dd]id you mean 'features'"),
    "a sweep without a folder": (lambda: atoll.sweep(Training(model=linear(64, 10)), ISLANDS), "missing.*'folder'"),
    "another word for a weight": (lambda: Mean(1.0, weight=3), "weight=3.*[Dd]id you mean 'examples'"),
    "a keyword that a request lacks": (lambda: run(sums, timeout=3), "timeout=3.*[Dd]id you mean 'deadline'"),
    "text as a deadline": (lambda: run(sums, deadline="soon"), "deadline='soon'"),
    "a number as an uplink": (lambda: run(sums, uplink=5), "uplink=5 is not a list of stages"),
    "text in a sum": (lambda: run(text), r"'x' is Sum\('a'\).*text at a.*numbers"),
    "nothing in a sum": (lambda: run(nothing), r"'x' is Sum\(None\)"),
    "a weight below zero": (lambda: run(weighs_less_than_nothing), r"examples=-1.*0 or more"),
    "a class for a model": (lambda: train(model=NeedsAWidth), r"model=NeedsAWidth needs arguments.*model=NeedsAWidth\(\.\.\.\)"),
    "text for a model": (lambda: train(model="mlp"), "type str cannot be trained.*Training.model"),
    "a float label under a classification loss": (
        lambda: train(iid(Dataset({"x": X, "y": X[:, 0]}, task="regression"), parties=2), model=linear(3, 2, loss="cross_entropy")),
        "'cross_entropy' needs whole-number labels, not float64.*encode|use",
    ),
    # results
    "a metric by its name": (lambda: train().metrics["test/accuracy"], r"metrics\.column\('test/accuracy'\)"),
    "an attribute that a result lacks": (lambda: train().accuracy, r"no 'accuracy'.*result\.metrics\.last"),
    "a sweep of which nothing ran": (no_run_finished, "no run has a result: the model takes 63 features"),
}  # fmt: skip


PROCESSES = {"a sweep of which nothing ran"}
"""They start some."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.network if name in PROCESSES else ()) for name in MISTAKES]
)
def test_a_mistake_gives_value_place_and_remedy(name: str) -> None:
    make, text = MISTAKES[name]
    with pytest.raises(AtollError, match=text) as caught:
        make()
    assert caught.value.where, "no place"
    assert caught.value.remedy, "no remedy"


def test_the_table_is_long_enough() -> None:
    assert len(MISTAKES) >= 80


def entries() -> list[Any]:
    """Every function and every class of parts that people call first."""
    rooms = (
        "",
        ".data",
        ".models",
        ".devices",
        ".privacy",
        ".stages",
        ".rounds",
        ".algorithms",
        ".selection",
        ".pacing",
        ".topology",
        ".labels",
        ".views",
    )
    found = {}
    for room in rooms:
        package = importlib.import_module(f"atoll{room}")
        for name in package.__all__:
            one = getattr(package, name)
            made = (
                inspect.isclass(one) and issubclass(one, Checked | Aggregate | Dataset) and not inspect.isabstract(one)
            )
            if (inspect.isfunction(one) and one is not atoll.task) or made:
                found[f"{package.__name__}.{name}"] = one
    return [pytest.param(one, id=name) for name, one in found.items() if name not in NOT_CHECKED]


NOT_CHECKED = {
    # called by those who write a part, with what Atoll hands them
    "atoll.selection.unbiased_alphas", "atoll.topology.check_matrix", "atoll.topology.components",
    "atoll.views.row_keys", "atoll.views.ImageView", "atoll.views.SeriesView", "atoll.views.TableView", "atoll.views.TextView",
    "atoll.topology.contraction", "atoll.topology.metropolis", "atoll.rounds.each_round", "atoll.rounds.run_rounds",
}  # fmt: skip


@pytest.mark.parametrize("entry", entries())
def test_a_keyword_that_an_entry_lacks_is_named(entry: Any) -> None:
    with pytest.raises(AtollError, match=r"no_such_setting=7|no_such_setting") as caught:
        entry(no_such_setting=7)
    assert caught.value.where, "no place"
    assert caught.value.remedy, "no remedy"
