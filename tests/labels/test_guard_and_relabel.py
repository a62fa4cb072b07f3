"""Labels that some losses do not see: those that the global model denies, and those that a guard holds out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import atoll
import atoll.data
from atoll.algorithms import FedAvg
from atoll.core.errors import ConfigError
from atoll.data import Dataset
from atoll.labels import FixMatch, Guard, Method, Relabel, SelfTraining, SemiFL, Supervised
from atoll.labels.losses import cross_entropy_of_rows, mean_of
from atoll.labels.methods.guard import PLAIN, HeldOutLabels, WithoutHeldOut, held_out
from atoll.labels.methods.relabel import DeniedLabels
from atoll.labels.methods.supervised import SupervisedLoss
from atoll.labels.streams import Trailing
from atoll.learn import Training
from atoll.learn.local.own_loss import OwnLoss
from tests.support.label_toys import CLASSES, gap, images, islands, net, same, trained

WORK: dict[str, Any] = {"lr": 0.1, "steps": 3, "batch_size": 8}


def fixmatch(**settings: Any) -> FixMatch:
    return FixMatch(**{"tau": 0.3, **WORK, **settings})


def changed(data: Any, columns: Any) -> Any:
    """Return the same clients, each with columns that a function makes of its rows and of which of them are held out."""
    made = []
    for i in range(len(data)):
        rows = {name: data.shard(i)[name] for name in data.columns}
        apart = held_out(torch.arange(len(rows["y"])), 0.3).numpy()
        made.append(Dataset({**rows, **columns(rows, apart)}, classes=CLASSES))
    return atoll.data.Islands.from_datasets(made)


def history(algorithm: Any, data: Any, rounds: int = 4, engine: str = "inline") -> Any:
    job = Training(model=net(), algorithm=algorithm, rounds=rounds)
    return atoll.simulate(job, data, engine=engine, seed=3, progress=False)


# --- wrong labels --------------------------------------------------------------------------------------------------------------


def test_labels_that_the_global_model_denies_are_hidden_after_some_rounds() -> None:
    x = torch.eye(3).repeat(2, 1)
    target = torch.tensor([0, 1, 2, 1, 2, 0])  # the last three are wrong
    given = {"x": x, "target": target, "labelled": torch.ones(6, dtype=torch.bool), "keys": torch.arange(6)}

    def model(rows: Any, params: Any = None, *, training: bool = True) -> Any:
        # The global model knows the truth; the one that trains says nothing.
        return rows * 4.0 if params == "sent" else torch.zeros_like(rows, requires_grad=True)

    def verdict(round_: int, sure: float = 0.0) -> list[bool]:
        seen = {**given, "model": model, "real": torch.ones(6), "broadcast": {"params": "sent"}, "round": round_}
        return DeniedLabels(SupervisedLoss(), None, after=2, sure=sure).hidden(seen).tolist()

    assert verdict(2) == [False] * 6
    assert verdict(3) == [False] * 3 + [True] * 3
    assert verdict(3, sure=0.99) == [False] * 6  # it is sure of .965


def test_before_the_first_verdict_it_is_the_method_inside_to_the_bit() -> None:
    assert same(trained(Relabel(base=fixmatch(), after=2)), trained(fixmatch()))
    assert not same(trained(Relabel(base=fixmatch(), after=1)), trained(fixmatch()))


@pytest.mark.slow
@pytest.mark.parametrize("base", [fixmatch(), Supervised(**WORK)], ids=["fixmatch", "supervised"])
def test_verdicts_are_the_same_in_blocks_of_clients(base: Any) -> None:
    one, many = (trained(Relabel(base=base, after=1), engine=engine) for engine in ("inline", "batched"))
    assert gap(one, many) < 1e-5


@pytest.mark.slow  # the tests above hold the verdicts and what follows from them
def test_relabelling_mends_what_wrong_labels_spoil() -> None:
    clean = images(240, share=2.0)
    wrong = np.random.default_rng(4).random(240) < 0.4
    spoilt = clean.with_columns({"y": np.where(wrong, (clean.y + 1) % CLASSES, clean.y)})
    work: dict[str, Any] = {"base": FedAvg(lr=0.3, steps=20, batch_size=20)}
    reached = {}
    for name, method in {
        "believed": Supervised(**work),
        "relabelled": Relabel(base=FixMatch(tau=0.6, strong=None, weak=None, **work), after=5, view=None),
    }.items():
        data = islands(spoilt).with_test(images(200, share=2.0, seed=9))
        reached[name] = history(method, data, rounds=11).metrics.last("test/accuracy")
    assert reached["relabelled"] > reached["believed"] + 0.15


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Relabel(base=FedAvg()), "FedAvg has no loss of its own.*Supervised"),
        (lambda: Relabel(after=-1), "after=-1"),
        (lambda: Relabel(sure=1.5), "sure=1.5"),
        (lambda: Guard(base=_Blind()), "does not ask for `labelled`"),
        (lambda: Guard(base=fixmatch(), plain=FedAvg()), "FedAvg has no loss of its own"),
        (lambda: Guard(share=1.0), "share=1.0"),
        (lambda: Guard(z=float("nan")), "z=nan"),
        (lambda: Guard(slack=-1.0), "slack=-1"),
    ],
)
def test_settings_without_sense_are_refused(make: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()


# --- the guard -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _BlindLoss(OwnLoss):
    def __call__(self, *, model: Any, x: Any, real: Any) -> Any:
        return ((model(x) ** 2).mean(1) * real).sum()


class _Blind(Method):
    @property
    def losses(self) -> tuple[Any, ...]:
        return (_BlindLoss(),)


@dataclass(frozen=True)
class _HarmfulLoss(OwnLoss):
    """What rows without labels teach is wrong: class 0, always."""

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, real: Any) -> Any:
        outputs = model(x)
        good = mean_of(cross_entropy_of_rows(outputs, target), labelled * real)
        return good + 3.0 * mean_of(cross_entropy_of_rows(outputs, torch.zeros_like(target)), ~labelled * real)


class _Harmful(Method):
    @property
    def losses(self) -> tuple[Any, ...]:
        return (_HarmfulLoss(),)


def guard(base: Any, **settings: Any) -> Guard:
    plain = Supervised(base=FedAvg(**{**WORK, "steps": 6}))
    return Guard(base=base, plain=plain, **{"share": 0.3, "after": 1, **settings})


def test_what_does_harm_is_given_up_for_labelled_rows_alone() -> None:
    data = islands(images(160))
    made = history(guard(_Harmful(**{**WORK, "steps": 6})), data, rounds=6)
    on = [row.get("guard_on") for row in made.metrics]
    assert made.metrics.last("guard_gain") < 0
    tripped = next(i for i, row in enumerate(made.metrics) if row.get("guard_gain", 0.0) < 0)
    assert all(value is None for value in on[tripped + 1 :])  # nothing more to compare
    # The model is now that of labelled rows alone, from the first round on: whatever did the harm left no trace in it.
    other = history(guard(_Harmful(**{**WORK, "steps": 4})), data, rounds=6)
    assert other.metrics.last("guard_gain") < 0
    assert same(made.params, other.params)


@pytest.mark.slow
def test_marked_labels_judge_in_place_of_a_share() -> None:
    """A column holds out whole parties' labels: they teach nobody, and their number says who was compared."""
    marked = changed(islands(images(160)), lambda rows, apart: {"apart": apart})
    spoilt = changed(marked, lambda rows, apart: {"y": np.where(rows["apart"], (rows["y"] + 1) % CLASSES, rows["y"])})
    assert float(np.mean(spoilt.pooled().y != marked.pooled().y)) > 0.1
    one, two = (history(guard(fixmatch(), column="apart", after=9), data).params for data in (marked, spoilt))
    assert same(one, two)
    share, column = (history(guard(fixmatch(), z=9.0, **more), marked, rounds=2) for more in ({}, {"column": "apart"}))
    assert column.metrics.last("guard_gain") == share.metrics.last(
        "guard_gain"
    )  # the column marks what the share draws


def test_labels_that_judge_no_more_teach() -> None:
    loss, index = WithoutHeldOut(SupervisedLoss(), HeldOutLabels(0.3)), torch.arange(40)
    judging, over = (loss.hidden({"index": index, "broadcast": {"judging": on}}) for on in (1.0, 0.0))
    assert torch.equal(judging, held_out(index, 0.3))
    assert not over.any()
    method = guard(_Harmful(**{**WORK, "steps": 6}))
    state = method.init({"w": np.zeros((2, 4), np.float32)})
    fallen = {**state, "guard": {**state["guard"], "on": False}}
    assert [method.broadcast(one, PLAIN)["judging"] for one in (state, fallen)] == [1.0, 0.0]


@pytest.mark.slow
def test_who_has_the_burden_of_proof() -> None:
    """At z = 0 the method stays if it is no worse; far below 0 it must be better by more than it is; slack forgives."""
    terms: dict[str, Any] = {"base": fixmatch(steps=6, weak=None, strong=None)}
    found = [
        history(guard(**terms, **more), islands(images(160)), rounds=4)
        for more in ({"z": -1e3}, {"z": -1e3, "slack": 1e4})
    ]
    counts = [sum("guard_gain" in row for row in one.metrics) for one in found]
    assert counts == [1, 3]  # given up at the first verdict, and never
    assert all(one.metrics.last("guard_error") > 0 for one in found)


def test_a_look_before_the_steps_sees_no_held_out_label() -> None:
    """SelfTraining counts labels and guesses in a pass of its own; under a guard these are the labels that teach."""
    data = islands(images(120))
    other = changed(
        data, lambda rows, apart: {"y": np.where(apart & rows["labelled"], (rows["y"] + 1) % CLASSES, rows["y"])}
    )
    method = SelfTraining(tau=0.5, **WORK)
    one, two = (
        history(Guard(base=method, plain=SelfTraining(weight=0.0, **WORK), share=0.3, after=9), d, rounds=2).params
        for d in (data, other)
    )
    assert same(one, two)


def test_what_helps_stays() -> None:
    made = history(guard(fixmatch(steps=6, weak=None, strong=None), z=2.0), islands(images(160)), rounds=4)
    seen = [row["guard_on"] for row in made.metrics if "guard_on" in row]
    assert len(seen) == 3
    assert all(value == pytest.approx(1.0) for value in seen)


@pytest.mark.slow
def test_a_guard_sees_the_same_in_blocks_of_clients() -> None:
    one, many = (history(guard(fixmatch(), z=5.0), islands(), engine=engine) for engine in ("inline", "batched"))
    assert gap(one.params, many.params) < 1e-5
    assert one.metrics.last("guard_gain") == pytest.approx(many.metrics.last("guard_gain"), abs=1e-4)


def test_held_out_labels_teach_nobody() -> None:
    data = islands(images(120))
    other = changed(
        data, lambda rows, apart: {"y": np.where(apart & rows["labelled"], (rows["y"] + 1) % CLASSES, rows["y"])}
    )
    assert 0.1 < float(np.mean(other.pooled().y != data.pooled().y)) < 0.25  # .4 have a label, of which .3 are held out
    one, two = (history(guard(fixmatch(), after=9), d).params for d in (data, other))
    assert same(one, two)


@pytest.mark.slow
def test_a_party_with_labels_compares_and_clients_are_left_alone_once_the_guard_has_tripped() -> None:
    whole = atoll.data.dirichlet(images(200, share=2.0), parties=3, alpha=2.0, seed=1)
    few = atoll.data.unlabel(whole, keep=40, at="server", seed=0)
    plain = Supervised(base=FedAvg(lr=0.3, steps=20, batch_size=8))
    slow: dict[str, Any] = {"warm_up": 1, "label_steps": 1, "label_batch": 6, **WORK, "lr": 1e-3}
    made = history(Guard(base=SemiFL(tau=0.3, **slow), plain=plain, share=0.4, after=1, z=0.0), few)
    rows = list(made.metrics)
    assert [("guard_gain" in row) for row in rows] == [False, True, False, False]
    assert rows[1]["guard_gain"] < -0.1
    assert rows[1]["guard_on"] == pytest.approx(1.0)  # when it was asked
    # Before: the model to three clients, the label party twice. After: the plain model to the label party alone.
    assert rows[0]["bytes_down"] > 4 * rows[3]["bytes_down"] > 0
    alone = history(Guard(base=SemiFL(tau=0.3, **{**slow, "lr": 2e-3}), plain=plain, share=0.4, after=1, z=0.0), few)
    assert same(made.params, alone.params)


def test_methods_whose_clients_keep_something_are_refused() -> None:
    class Remembering(FixMatch):
        @property
        def streams(self) -> tuple[Any, ...]:
            return (Trailing(),)

    with pytest.raises(ConfigError, match="Remembering keeps private state at clients"):
        guard(Remembering(tau=0.3, **WORK)).init({"w": np.zeros(2, np.float32)})


def test_without_held_out_labels_there_is_no_verdict() -> None:
    with pytest.raises(ConfigError, match=r"0 labels are held out.*larger share"):
        history(guard(fixmatch(), share=1e-6), islands(), rounds=2)
