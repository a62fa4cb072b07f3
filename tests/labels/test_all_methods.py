"""Every method of the survey that is marked as here trains a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll import labels
from atoll.data import Dataset, Islands
from atoll.labels.heads import Siamese
from atoll.labels.survey import survey_rows
from tests.support.label_toys import images, islands, net

WORK: dict[str, Any] = {"lr": 0.05, "steps": 1, "batch_size": 8}
PLAIN: dict[str, Any] = {"tau": 0.3, "weak": None, "strong": None, **WORK}
QUIET: dict[str, Any] = {"gauge": 0.0, **WORK}
GENERATOR = labels.Generator(shape=(1, 8, 8), latent=2, hidden=4)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def siamese(**heads: Any) -> nn.Module:
    return seeded(
        lambda: Siamese(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), 8, width=4, hidden=6, **heads)
    )


def parts(**more: Callable[[], nn.Module]) -> nn.Module:
    return seeded(
        lambda: labels.DomainNetwork(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh()),
            nn.Linear(6, 4),
            **{name: make() for name, make in more.items()},
        )
    )


def judge() -> nn.Module:
    return nn.Linear(6, 1)


def some(share: float = 0.5) -> Islands:
    return islands(images(24, share=share), parties=2)


def with_labels(**others: Dataset) -> Islands:
    return some(0.0 if "labels" in others else 2.0).with_others(others)


def domains() -> Islands:
    return Islands.from_datasets({"source": images(12, share=2.0), "target": images(12, share=0.0, seed=1)})


def public() -> Islands:
    made = some(2.0)
    made.public = images(12, seed=3)
    return made


def decoder() -> labels.RowDecoder:
    drawn = np.random.default_rng(0)
    return GENERATOR.decoder(
        {n: drawn.normal(0, 0.1, tuple(p.shape)).astype("f4") for n, p in seeded(GENERATOR.model).named_parameters()}
    )


SERVER: dict[str, Any] = {"warm_up": 1, "label_steps": 1, "label_batch": 4}
FULL, NONE = {"share": 2.0, "seed": 5}, {"share": 0.0, "seed": 5}
METHODS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "RSCFed": lambda: (labels.RSCFed(**PLAIN), net(), some()),
    "FedSSL": lambda: (labels.FedSSL(decoder=decoder(), **PLAIN), net(), some()),
    "FedMatch": lambda: (labels.FedMatch(**PLAIN), net(), some()),
    "FedPU": lambda: (labels.FedPU(**WORK), net(), some()),
    "AdaFedSemi": lambda: (
        labels.AdaFedSemi(pool_steps=1, pool_batch=4, **PLAIN),
        net(),
        with_labels(pool=images(12, **NONE)),
    ),
    "DS-FL": lambda: (labels.DSFL(rows=8, epochs=1), net(), public()),
    "SemiFL": lambda: (labels.SemiFL(**PLAIN, **SERVER), net(), with_labels(labels=images(12, **FULL))),
    "FedCA": lambda: (
        labels.FedCA(dictionary=8, shared=2, aligned=2, **QUIET),
        siamese(),
        with_labels(public=images(12, **NONE)),
    ),
    "SSFL": lambda: (labels.SSFL(**QUIET), siamese(), some(0.0)),
    "FedU": lambda: (labels.FedU(**QUIET), siamese(), some(0.0)),
    "FedEMA": lambda: (labels.FedEMA(**QUIET), siamese(), some(0.0)),
    "Orchestra": lambda: (
        labels.Orchestra(clusters=4, sent=2, memory=8, server_steps=2, **QUIET),
        siamese(predictor=False, turns=True),
        some(0.0),
    ),
    "FedX": lambda: (labels.FedX(base=labels.FedSimCLR(**QUIET)), siamese(), some(0.0)),
    "DualAdapt": lambda: (
        labels.DualAdapt(**WORK),
        parts(second=lambda: nn.Linear(6, 4)),
        with_labels(labels=images(12, **FULL)),
    ),
    "FRuDA": lambda: (labels.FRuDA(lazy=1, lr=0.05, batch_size=8), parts(discriminator=judge), domains()),
    "FADA": lambda: (
        labels.FADA(rows=8, judge_steps=2, **WORK),
        parts(),
        with_labels(target=images(12, **NONE)),
    ),
    "FADE": lambda: (labels.FADE(**WORK), parts(discriminator=judge), domains()),
    "EfficientFDA": lambda: (labels.EfficientFDA(**WORK), parts(), domains()),
}


def test_each_method_that_is_here_is_trained_below() -> None:
    """18 of the survey's 21; three are models over columns at several parties, which have tests of their own."""
    rows = survey_rows()
    assert {row["name"] for row in rows if row["here"]} == {*METHODS, "SFTL", "SFHTL", "PrADA"}
    assert (len(rows), len(METHODS)) == (21, 18)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_a_round(name: str) -> None:
    """One round of one local step moves the model, leaves no NaN, and is the class that the survey's row names."""
    rule, model, data = METHODS[name]()
    row = next(row for row in survey_rows() if row["name"] == name)
    assert f"atoll.labels.{type(rule).__name__}" == row["class"]
    given = (
        {"algorithm": rule}
        if not isinstance(rule, labels.DSFL)
        else {"algorithm": atoll.FedAvg(**WORK), "topology": rule}
    )
    before = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    job = atoll.Training(model=model, selection=atoll.Everyone(), rounds=1, compile="never", **given)
    made = atoll.simulate(job, data, engine="inline", seed=0, progress=False)
    assert "failed" not in made.metrics[-1]
    assert all(np.isfinite(leaf).all() for leaf in made.params.values())
    assert any(not np.array_equal(leaf, before[n]) for n, leaf in made.params.items() if n in before)
