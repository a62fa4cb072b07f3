"""A self-supervised training's encoder becomes the start of another training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import ConfigError
from atoll.labels import FedSimCLR, FixMatch, Pretrained, SemiFL, Siamese
from tests.support.label_toys import images, islands, same

WORK: dict[str, Any] = {"lr": 0.05, "steps": 2, "batch_size": 8}


def siamese() -> nn.Module:
    return Siamese(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), 8, width=4, hidden=6)


def head() -> nn.Module:
    return nn.Linear(8, 4)


def run(model: Any, algorithm: Any, data: Any, rounds: int = 1, **settings: Any) -> Any:
    job = atoll.Training(model=model, algorithm=algorithm, rounds=rounds, selection=atoll.Everyone(), compile="never")
    return atoll.simulate(job, data, **{"engine": "inline", "seed": 3, "progress": False, **settings})


@pytest.fixture(scope="module")
def learned() -> Any:
    """A model that two clients trained without labels."""
    return run(siamese, FedSimCLR(gauge=0.0, **WORK), islands(images(48, share=0.0), 2), rounds=2)


def test_a_training_begins_with_the_encoder_and_a_head_of_its_seed(learned: Any) -> None:
    model = Pretrained(learned.model, head)
    still = FedAvg(lr=1e-30, steps=1)
    one, other = (run(model, still, islands(images(24, share=2.0), 2), seed=seed).params for seed in (3, 4))
    for name, leaf in learned.params.items():
        if name.startswith("encoder."):
            np.testing.assert_array_equal(one["0." + name.removeprefix("encoder.")], leaf)
    assert not np.array_equal(one["1.weight"], other["1.weight"]), "the head follows the seed"
    assert np.array_equal(one["0.1.weight"], other["0.1.weight"])


def test_semifl_goes_on_from_it_and_leaves_it_alone(learned: Any) -> None:
    before = {name: leaf.detach().clone() for name, leaf in learned.model.named_parameters()}
    few = atoll.data.unlabel(islands(images(60, share=2.0), 2), keep=8, at="server", seed=0)
    method = SemiFL(tau=0.3, warm_up=2, label_steps=1, label_batch=4, **WORK)
    made = run(Pretrained(learned.model, head), method, few)
    assert not np.array_equal(made.params["0.1.weight"], learned.params["encoder.1.weight"])
    assert all(torch.equal(leaf, before[name]) for name, leaf in learned.model.named_parameters())
    again = run(Pretrained(learned.model, head), method, few)
    assert same(made.params, again.params)


def test_frozen_layers_of_the_encoder_learn_again(learned: Any) -> None:
    for leaf in learned.model.encoder.parameters():
        leaf.requires_grad_(False)
    made = run(
        Pretrained(learned.model, head),
        FixMatch(weak=None, strong=None, tau=0.3, **WORK),
        islands(images(24, share=2.0), 2),
    )
    assert not np.array_equal(made.params["0.1.weight"], learned.params["encoder.1.weight"])


@pytest.mark.parametrize(
    ("trained", "given", "said"),
    [
        (nn.Linear(3, 4), head, "trained=Linear has no encoder"),
        (siamese(), nn.Linear(8, 4), "head=Linear makes no network"),
        (siamese(), 4, "head=int makes no network"),
    ],
)
def test_what_has_no_encoder_or_makes_no_head_is_refused(trained: Any, given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Pretrained(trained, given)
