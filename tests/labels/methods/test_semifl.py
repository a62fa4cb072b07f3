"""SemiFL: labels at a party of their own, on every engine; and what is left of it without its extras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
import atoll.data
from atoll.algorithms import FedProx
from atoll.core.errors import CompositionError, ConfigError
from atoll.data import Islands
from atoll.labels import SemiFL, Supervised
from atoll.labels.methods.base import local_sgd
from atoll.learn import Training
from atoll.topology import Hierarchical
from atoll.views import weak
from tests.support.label_toys import gap, images, islands, net, same, trained

WORK: dict[str, Any] = {
    "lr": 0.1,
    "steps": 3,
    "batch_size": 8,
    "tau": 0.3,
    "warm_up": 4,
    "label_steps": 2,
    "label_batch": 6,
}


def few(at: Any = "server", keep: int = 12) -> Islands:
    whole = atoll.data.dirichlet(images(share=2.0), parties=3, alpha=2.0, seed=1)
    return atoll.data.unlabel(whole, keep=keep, at=at, seed=0)


def semifl(**settings: Any) -> SemiFL:
    return SemiFL(**{**WORK, **settings})


@pytest.mark.network
def test_labels_at_the_server_train_the_same_model_on_every_engine() -> None:
    one = trained(semifl(), few())
    assert gap(one, trained(semifl(), few(), engine="batched")) < 1e-5
    assert same(one, trained(semifl(), few(), engine="processes"))


def test_the_server_alone_is_what_is_left_without_weight() -> None:
    """Every client then sends a zero update, and the label party's rows train a federation of one to the same model."""
    data = few()
    left = trained(semifl(weight=0.0, warm_up=2), data)
    alone = Islands.from_datasets({"labels": data.others["labels"]})
    settings = {"base": local_sgd(0.1, 2, 6), "view": weak("images")}
    assert gap(left, trained(Supervised(**settings), alone)) > 0  # another key: another order of rows, other views
    nothing = trained(semifl(tau=1.0, warm_up=2), data)
    assert same(left, nothing)


def test_with_all_labels_at_clients_it_is_labelled_rows_alone_to_the_bit() -> None:
    known = islands(images(share=2.0))
    plain = {name: WORK[name] for name in ("lr", "steps", "batch_size")}
    for settings in ({}, {"mix": 0.75}):
        made = trained(semifl(labels_at="clients", **settings), known)
        assert same(made, trained(Supervised(view=weak("images"), **plain), known))


def test_labels_at_clients_train_with_the_global_models_pseudo_labels() -> None:
    data = few("rows", keep=30)
    one, many = (
        trained(semifl(labels_at="clients", mix=0.75), data, engine=engine) for engine in ("inline", "batched")
    )
    assert gap(one, many) < 1e-5
    assert gap(one, trained(semifl(labels_at="clients", weight=0.0), data)) > 1e-4


def test_what_goes_around_its_steps_acts_on_clients_alone() -> None:
    pulled = trained(semifl(base=FedProx(mu=1.0, lr=0.1, steps=3, batch_size=8)), few())
    assert gap(pulled, trained(semifl(base=atoll.FedAvg(lr=0.1, steps=3, batch_size=8)), few())) > 1e-5


def test_a_run_that_is_cut_off_continues_to_the_same_bits(tmp_path: Path) -> None:
    job = Training(model=net(), algorithm=semifl(horizon=3), rounds=3)
    whole = atoll.simulate(job, few(), engine="inline", seed=3, progress=False).params

    class StopError(Exception):
        pass

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise StopError("cut off")

    with pytest.raises(StopError, match="cut off"):
        atoll.simulate(job, few(), engine="inline", seed=3, progress=False, folder=tmp_path, on_record=stop)
    resumed = atoll.simulate(job, few(), engine="inline", seed=3, progress=False, folder=tmp_path, resume=True).params
    assert same(whole, resumed)


def test_the_first_round_warms_up_and_later_ones_take_fewer_steps() -> None:
    made = semifl()
    state = made.init({"w": np.zeros(2, np.float32)})
    assert made.plan(state) == ("warm", "train")
    assert made.plan({**state, "turn": 1}) == ("labels", "train")
    assert [made.passes(phase)[0].steps for phase in ("warm", "labels", "train")] == [4, 2, 3]
    assert made.helpers == {"labels": "labels"}
    assert semifl(labels_at="clients").helpers == {}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="labels_at='nowhere'"):
        semifl(labels_at="nowhere")
    with pytest.raises(ConfigError, match="warm_up=0"):
        semifl(warm_up=0)
    with pytest.raises(CompositionError, match=r"asks labels in every round.*missing: central server"):
        trained(semifl(), few(), topology=Hierarchical(groups=2))
    with pytest.raises(ConfigError, match=r"'labels'.*has no rows"):
        trained(semifl(), islands(images(share=2.0)))
