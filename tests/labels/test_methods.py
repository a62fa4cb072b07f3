"""The base of methods: what a method's loss may depend on, on every engine, and what is left of a method without its extras."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
import atoll.models
from atoll.algorithms import FedAvg, FedProx, Scaffold
from atoll.core.errors import CompositionError, ConfigError
from atoll.labels import FixMatch, Method, Supervised
from atoll.labels.losses import mix_rows, seen
from atoll.labels.methods.base import local_sgd
from atoll.labels.methods.fixmatch import FixMatchLoss
from atoll.labels.methods.freematch import FreeMatchLoss
from atoll.labels.methods.semifl import SemiFLLoss
from atoll.labels.methods.supervised import SupervisedLoss
from atoll.labels.streams import Frozen, Local, Trailing
from atoll.learn import Training
from atoll.learn.algorithm import LocalWork
from atoll.learn.local.own_loss import OwnLoss
from atoll.views import Translate, weak
from tests.support.label_toys import CLASSES, gap, images, islands, net, same, trained

WORK: dict[str, Any] = {"lr": 0.1, "steps": 3, "batch_size": 8}
ALONE: Any = Supervised(view=weak("images"), labelled_share=0.125, **WORK)


def fixmatch(**settings: Any) -> FixMatch:
    return FixMatch(**{"tau": 0.3, **WORK, **settings})


def test_blocks_of_clients_train_as_single_ones() -> None:
    assert gap(trained(fixmatch()), trained(fixmatch(), engine="batched")) < 1e-5


def test_what_a_hidden_label_holds_is_out_of_reach() -> None:
    one, two = (trained(fixmatch(), islands(images(garbage=seed))) for seed in (5, 6))
    assert same(one, two)


def test_without_weight_a_method_is_labelled_rows_alone_to_the_bit() -> None:
    assert same(trained(fixmatch(weight=0.0)), trained(ALONE))


def test_with_all_labels_a_method_is_labelled_rows_alone_to_the_bit() -> None:
    known = islands(images(share=2.0))
    assert same(trained(fixmatch(), known), trained(ALONE, known))


def test_with_nothing_above_the_threshold_a_method_is_labelled_rows_alone_to_the_bit() -> None:
    assert same(trained(fixmatch(tau=1.0)), trained(ALONE))


@pytest.mark.parametrize("kind", [FixMatchLoss, FreeMatchLoss, SemiFLLoss])
def test_one_pass_shows_labelled_rows_weakly_and_the_others_strongly(kind: Any) -> None:
    """One pass makes the pseudo-labels, and one has the gradient: a pass of its own for the few labelled rows would double the work."""
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    keys, real = torch.arange(6), torch.ones(6)
    labelled = torch.tensor([True, False] * 3)
    passes: list[torch.Tensor] = []

    def model(rows: Any, params: Any = None, *, training: bool = True) -> Any:
        passes.append(rows)
        return rows.flatten(1)[:, :CLASSES]

    views = {"weak": weak("images"), "strong": Translate(0.5)}
    more = {"mix": 0.0} if kind is SemiFLLoss else {}
    given = {"x": x, "target": torch.zeros(6, dtype=torch.int64), "labelled": labelled, "keys": keys, "real": real}
    given |= {"broadcast": {"params": {}}} if kind is SemiFLLoss else {}
    kind(**views, tau=0.3, weight=1.0, **more)(model=model, **given)
    near, far = (seen(view, x, keys, number, real) for number, view in enumerate(views.values()))
    assert len(passes) == 2
    assert torch.equal(passes[0], near)
    assert torch.equal(passes[1][labelled], near[labelled])
    assert torch.equal(passes[1][~labelled], far[~labelled])
    assert not torch.equal(near[~labelled], far[~labelled])


@pytest.mark.every(2)
@pytest.mark.parametrize("base", [FedAvg(**WORK), FedProx(mu=0.5, **WORK), Scaffold(**WORK), local_sgd()])
def test_without_views_labelled_rows_alone_are_the_algorithm_inside_to_the_bit(base: Any) -> None:
    assert same(trained(Supervised(base=base)), trained(base))


@pytest.mark.slow
def test_what_goes_around_the_steps_acts_on_the_methods_loss() -> None:
    plain, pulled = (trained(fixmatch(base=base)) for base in (FedAvg(**WORK), FedProx(mu=1.0, **WORK)))
    assert gap(plain, pulled) > 1e-4


def test_settings_replace_those_of_the_algorithm_inside() -> None:
    made = FixMatch(base=FedProx(mu=0.5, lr=0.5, epochs=2), lr=0.01)
    assert (made.lr, made.epochs, made.base) == (0.01, 2, FedProx(mu=0.5, lr=0.01, epochs=2))
    assert FixMatch(epochs=3).steps is None
    assert FixMatch(steps=5).base.steps == 5


def test_the_rate_falls_along_a_cosine() -> None:
    made = fixmatch(horizon=4)
    assert [round(made.rate(turn), 4) for turn in range(6)] == [1.0, 0.8536, 0.5, 0.1464, 0.1464, 0.1464]
    state = made.init({"w": np.zeros(2, np.float32)})
    assert made.broadcast({**state, "turn": 2}, "train")["lr"] == pytest.approx(0.05)


class _Teacher(Method):
    """A loss that asks for a copy of the model, and for what the server sent."""

    kept: Any = (Trailing(name="teacher", keep=0.5),)

    @property
    def losses(self) -> tuple[Any, ...]:
        return (_Agrees(), SupervisedLoss())

    @property
    def streams(self) -> tuple[Any, ...]:
        return tuple(self.kept)


@dataclass(frozen=True)
class _Agrees(OwnLoss):
    def __call__(self, *, model: Any, x: Any, real: Any, broadcast: Any) -> Any:
        apart = (model(x) - 2.0 * model(x, broadcast["teacher"], training=False).detach()) ** 2
        return (apart.mean(1) * real).sum() / real.sum()


def _teacher(*streams: Any) -> Method:
    made: Method = type("Teacher", (_Teacher,), {"kept": streams})(base=FedAvg(**WORK))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("streams", [(Trailing(keep=0.5),), (Trailing(keep=0.5, memory="round"),)])
def test_a_moving_copy_is_what_losses_read_on_every_engine(streams: Any) -> None:
    one, many = (trained(_teacher(*streams), engine=engine) for engine in ("inline", "batched"))
    assert gap(one, many) < 1e-5
    still = trained(_teacher(*(type(s)(keep=1.0, memory=s.memory) for s in streams)))
    assert gap(one, still) > 1e-6


def test_a_run_that_is_cut_off_finds_what_stays_at_clients_again(tmp_path: Path) -> None:
    """A trailing copy and a local part are private state: the run goes on from them to the same bits."""
    job = Training(model=net(), algorithm=_teacher(Local("4."), Trailing(keep=0.5)), rounds=3)
    settings: dict[str, Any] = {"engine": "inline", "seed": 3, "progress": False}
    whole = atoll.simulate(job, islands(), **settings).params

    class StopError(Exception):
        pass

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise StopError("cut off")

    with pytest.raises(StopError, match="cut off"):
        atoll.simulate(job, islands(), folder=tmp_path, on_record=stop, **settings)
    assert same(whole, atoll.simulate(job, islands(), folder=tmp_path, resume=True, **settings).params)


def test_a_part_that_stays_is_not_sent_up_and_is_part_of_a_clients_own_model() -> None:
    method = _teacher(Local("4."), Trailing())
    params = {name: np.ones((2,), np.float32) * i for i, name in enumerate(["0.weight", "4.weight"])}
    client = method.client_init(params)
    local = method.start({"params": params, "lr": 0.5}, client)
    slopes = {"0.weight": np.ones(2, np.float32), "4.weight": np.full(2, 2.0, np.float32)}

    class Grad:
        def on(self, loss: Any = None, **given: Any) -> Any:
            assert set(given["teacher"]) == set(params)
            return lambda at: slopes

    local = method.step(local, Grad(), {"params": params, "lr": 0.5})  # type: ignore[arg-type]
    reply, kept = method.finish(local, {"params": params, "lr": 0.5}, client, LocalWork(4.0, 1.0))
    assert set(reply["update"].value) == {"0.weight"}
    assert kept["own"]["4.weight"].tolist() == [0.0, 0.0]
    assert kept["copies"]["teacher"]["0.weight"] == pytest.approx(np.full(2, -0.0005), abs=1e-6)
    assert method.personal(params, kept)["4.weight"].tolist() == [0.0, 0.0]
    state = method.fold(method.init(params), {"update": reply["update"].value}, None, "train")  # type: ignore[arg-type]
    assert state["params"]["4.weight"].tolist() == [1.0, 1.0]
    assert state["params"]["0.weight"].tolist() == [-0.5, -0.5]


@pytest.mark.slow
@pytest.mark.parametrize("part", [Local("4."), Frozen("4.")])
def test_parts_with_rules_train_in_blocks_and_stay_at_the_server(part: Any) -> None:
    method = _teacher(part, Trailing())
    one, many = trained(method), trained(method, engine="batched")
    assert gap(one, many) < 1e-5
    assert same(one["4.weight"], net().state_dict()["4.weight"].numpy())
    assert not same(one["0.weight"], net().state_dict()["0.weight"].numpy())


def test_settings_without_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tau=0\.2 with 4 classes: every row is kept"):
        trained(fixmatch(tau=0.2))
    with pytest.raises(ConfigError, match=r"tau=1\.5"):
        fixmatch(tau=1.5)
    with pytest.raises(ConfigError, match=r"weight=-1\.0"):
        fixmatch(weight=-1.0)
    with pytest.raises(ConfigError, match="no parameter whose name begins with 'head'"):
        trained(_teacher(Local("head")))


def test_a_model_in_numpy_has_no_losses_of_a_method() -> None:
    with pytest.raises(CompositionError, match=r"trains on a loss of its own.*knows only the training's loss"):
        trained(fixmatch(), model=atoll.models.linear(64, CLASSES))


def _toy_batch() -> dict[str, Any]:
    """Six rows that are their own logits: sure ones (5, 0, 0) and unsure ones (.1, 0, 0), with labels, without, and as padding."""
    high, low = [5.0, 0.0, 0.0], [0.1, 0.0, 0.0]
    x = torch.tensor([high, [0.0, 2.0, 0.0], high, low, [0.0, 5.0, 0.0], high])
    labelled = torch.tensor([True, True, False, False, False, False])
    return {
        "x": x,
        "target": torch.tensor([1, 1, 0, 0, 0, 0]),
        "labelled": labelled,
        "keys": torch.arange(6),
        "real": torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]),
    }


def _own_logits(rows: Any, params: Any = None, *, training: bool = True) -> Any:
    del params, training
    return rows


def _entropy(logits: Any, label: int) -> float:
    z = np.asarray(logits, np.float64)
    return float(np.log(np.exp(z).sum()) - z[label])


def test_fixmatch_divides_by_all_rows_without_a_label_sure_or_not() -> None:
    """Sohn et al. 2020, equation 4: the sum over sure rows is divided by mu B, the number of unlabelled rows, so that it is small while few are sure."""
    batch = _toy_batch()
    found = FixMatchLoss(None, None, 0.9, 2.0)(model=_own_logits, **batch)
    z = batch["x"].numpy()
    labelled = (_entropy(z[0], 1) + _entropy(z[1], 1)) / 2
    hidden = (_entropy(z[2], 0) + _entropy(z[4], 1)) / 3  # row 3 is unsure, yet counts; row 5 is padding
    assert float(found) == pytest.approx(labelled + 2.0 * hidden, rel=1e-6)


def test_semifl_mixes_the_other_rows_label_in_with_the_rest_of_the_weight() -> None:
    """Diao et al. 2022, section 3.3: the mixed row must say w of its own pseudo-label and 1 - w of the other row's."""
    batch = _toy_batch()
    rows, other, share = (made.numpy() for made in mix_rows(batch["x"], batch["keys"], 2, batch["real"], 0.75))
    z, guess = batch["x"].numpy(), [1, 1, 0, 0, 1, 0]  # labels where there are, else the global model's
    pairs = {i: (guess[i], guess[other[i]], float(share[i])) for i in (2, 4)}  # the sure ones
    assert any(own != its for own, its, _ in pairs.values()), "the draw has two different labels in one mixture"
    assert all(w < 0.99 for *_, w in pairs.values())
    blended = [w * _entropy(rows[i], own) + (1 - w) * _entropy(rows[i], its) for i, (own, its, w) in pairs.items()]
    labelled = (_entropy(z[0], 1) + _entropy(z[1], 1)) / 2
    hidden = (_entropy(z[2], 0) + _entropy(z[4], 1)) / 2  # SemiFL divides by the sure rows
    found = SemiFLLoss(None, None, 0.9, 2.0, 0.75)(model=_own_logits, **batch, broadcast={"params": {}})
    assert float(found) == pytest.approx(labelled + 2.0 * (hidden + sum(blended) / 2), rel=1e-6)
