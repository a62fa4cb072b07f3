"""FedPU: its limits to the bit, and clients that label one class each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg, FedProx, Scaffold
from atoll.core.errors import ConfigError
from atoll.data import Dataset, Islands
from atoll.labels import Supervised
from atoll.labels.methods.fedpu import FedPU
from tests.support.label_toys import CLASSES, gap, images, islands, same, trained

WORK: dict[str, Any] = {"lr": 0.1, "steps": 2, "batch_size": 8}
BASES = [FedAvg(**WORK), FedProx(mu=0.5, **WORK), Scaffold(**WORK)]


@pytest.mark.quick("base0")
@pytest.mark.parametrize("base", BASES)
def test_with_all_labels_it_is_the_algorithm_inside_to_the_bit(base: Any) -> None:
    known = islands(images(share=2.0))
    assert same(trained(FedPU(base=base), known), trained(base, known))


@pytest.mark.quick("base0")
@pytest.mark.parametrize("base", BASES)
def test_blocks_of_clients_train_as_single_ones(base: Any) -> None:
    assert gap(trained(FedPU(base=base)), trained(FedPU(base=base), engine="batched")) < 1e-5


def test_what_a_hidden_label_holds_is_out_of_reach() -> None:
    one, two = (trained(FedPU(**WORK), islands(images(garbage=seed))) for seed in (5, 6))
    assert same(one, two)


def positive(algorithm: Any) -> tuple[float, float]:
    """Train one client with labels of classes 0 and 1 for half of their rows; return accuracy on these classes, and the share of other rows that it calls others."""
    data = images(200, share=2.0)
    there = (data.y < 2) & (np.random.default_rng(0).random(200) < 0.5)
    one = Islands.from_datasets([Dataset({"x": data.x, "y": data.y, "labelled": there}, classes=CLASSES)])
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    job = atoll.Training(model=model, algorithm=algorithm, rounds=1)
    params = atoll.simulate(job, one, engine="inline", seed=0, progress=False).params
    fresh = images(300, share=2.0, seed=99)
    said = (fresh.x.reshape(300, -1) @ params["1.weight"].T + params["1.bias"]).argmax(1)
    return float((said == fresh.y)[fresh.y < 2].mean()), float((said >= 2)[fresh.y >= 2].mean())


class Undeterred(Supervised):
    """Cross-entropy of labelled rows, also where a class has none."""

    needs_every_class = False


def test_the_whole_risk_tells_others_from_its_own_classes_and_cross_entropy_cannot() -> None:
    work: dict[str, Any] = {"lr": 0.5, "steps": 80, "batch_size": 50}
    (own, others), (alone, none) = positive(FedPU(priors=(0.25,) * 4, **work)), positive(Undeterred(**work))
    assert own > 0.9
    assert others > 0.8
    assert alone > 0.9
    assert none < 0.3


def test_priors_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"class priors \[0\.5, 0\.2\] add up to 0\.7 \(in FedPU\.priors\)"):
        FedPU(priors=(0.5, 0.2))
    with pytest.raises(ConfigError, match="2 priors for a model with 4 outputs"):
        trained(FedPU(priors=(0.5, 0.5), **WORK))
