"""FedSSL: a generator under DP-SGD with its ledger, made rows that are the same on every engine, and the method's limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll.algorithms import FedAvg, FedProx
from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Ledger
from atoll.labels import Supervised
from atoll.labels.methods.fedssl import FedSSL
from atoll.labels.methods.generator import Generator, RowDecoder
from atoll.mechanisms import ExampleDP
from atoll.privacy import spent
from tests.support.label_toys import gap, images, islands, same, trained

WORK: dict[str, Any] = {"lr": 0.1, "steps": 2, "batch_size": 8}
GENERATOR = Generator(shape=(1, 8, 8), latent=4, hidden=16)


def decoder() -> RowDecoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return GENERATOR.decoder({name: leaf.detach().numpy() for name, leaf in GENERATOR.model().named_parameters()})


def fedssl(**settings: Any) -> FedSSL:
    given = {"decoder": decoder(), "tau": 0.3, "weak": None, "strong": None, **settings}
    return FedSSL(**(given if "base" in given else {**WORK, **given}))


def test_the_generator_trains_under_dp_sgd_and_the_ledger_has_its_cost(tmp_path: Path) -> None:
    job = atoll.Training(
        model=GENERATOR.model,
        loss=GENERATOR.loss,
        algorithm=FedAvg(lr=0.5, steps=4, batch_size=16),
        privacy=ExampleDP(epsilon=8.0, delta=1e-3, clip=0.2),
        selection=atoll.Everyone(),
        rounds=2,
    )
    data, ledger = islands(images(96)), tmp_path / "ledger.jsonl"
    made = atoll.simulate(job, data, engine="inline", seed=0, progress=False, ledger=ledger)
    assert 7.0 < max(spent(list(Ledger(ledger)), 1e-3, "pld").values()) <= 8.0
    rows = GENERATOR.decoder(made.params).rows(torch.randn(50, 4, generator=torch.Generator().manual_seed(0)))
    assert rows.shape == (50, 1, 8, 8)
    assert 0 <= float(rows.min()) <= float(rows.max()) <= 1


@pytest.mark.slow
def test_without_noise_the_generator_learns_the_rows() -> None:
    job = atoll.Training(
        model=GENERATOR.model,
        loss=GENERATOR.loss,
        algorithm=FedAvg(lr=1.0, steps=40, batch_size=32),
        selection=atoll.Everyone(),
        rounds=3,
    )
    data = islands(images(192, share=2.0))
    params = atoll.simulate(job, data, engine="inline", seed=0, progress=False).params
    rows = GENERATOR.decoder(params).rows(torch.randn(400, 4, generator=torch.Generator().manual_seed(0))).numpy()
    truth = images(400, share=2.0, seed=5).x
    started = decoder().rows(torch.zeros(1, 4)).detach().numpy()
    assert np.abs(rows.mean(0) - truth.mean(0)).mean() < 0.3 * np.abs(started[0] - truth.mean(0)).mean()


def test_blocks_of_clients_train_as_single_ones() -> None:
    assert gap(trained(fedssl()), trained(fedssl(), engine="batched")) < 1e-5


def test_made_rows_and_own_rows_count() -> None:
    every = [trained(fedssl(**some)) for some in ({}, {"synthetic": 0.0}, {"weight": 0.0})]
    assert min(gap(every[0], every[1]), gap(every[0], every[2]), gap(every[1], every[2])) > 1e-6


def test_what_a_hidden_label_holds_is_out_of_reach() -> None:
    one, two = (trained(fedssl(), islands(images(garbage=seed))) for seed in (5, 6))
    assert same(one, two)


def test_its_limits_are_the_algorithm_inside_to_the_bit() -> None:
    known = islands(images(share=2.0))
    assert same(trained(fedssl(), known), trained(Supervised(**WORK), known))
    assert same(trained(fedssl(weight=0.0, synthetic=0.0)), trained(Supervised(**WORK)))
    base = FedProx(mu=0.5, **WORK)
    assert same(trained(fedssl(base=base, tau=1.0)), trained(base)), "nothing is above 1"


def test_what_is_no_decoder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"decoder=Generator, synthetic=0\.5 \(in FedSSL\)"):
        FedSSL(decoder=GENERATOR)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="not those of Generator"):
        GENERATOR.decoder({"decode.0.weight": np.zeros((2, 2))})
    with pytest.raises(ConfigError, match="latent=0"):
        Generator(shape=(3,), latent=0)
    with pytest.raises(ConfigError, match="kind='text'"):
        Generator(shape=(3,), kind="text")
