from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from atoll.core.errors import ConfigError
from atoll.labels.objectives import beta_vae, code_divergence, reconstruction_error, sampled_code

DRAWS = torch.Generator().manual_seed(0)
MEAN, SPREAD = torch.randn(3, 2, generator=DRAWS), torch.randn(3, 2, generator=DRAWS)


def test_the_divergence_is_pytorchs_and_zero_for_the_prior():
    slow = kl_divergence(Normal(MEAN, (SPREAD / 2).exp()), Normal(0.0, 1.0)).sum(1)
    assert torch.allclose(code_divergence(MEAN, SPREAD), slow)
    assert code_divergence(torch.zeros(1, 4), torch.zeros(1, 4)).item() == 0


def test_reconstruction_is_minus_the_log_likelihood():
    rows, made = torch.rand(3, 1, 2, 2, generator=DRAWS).round(), torch.randn(3, 1, 2, 2, generator=DRAWS)
    images = -Bernoulli(logits=made).log_prob(rows).flatten(1).sum(1)
    assert torch.allclose(reconstruction_error(made, rows), images, atol=1e-6)
    table = -Normal(made, 1.0).log_prob(rows).flatten(1).sum(1) - 2 * math.log(2 * math.pi)
    for kind in ("series", "table"):
        assert torch.allclose(reconstruction_error(made, rows, kind), table, atol=1e-5)
    words, logits = torch.tensor([[0, 2], [1, 1]]), torch.randn(2, 2, 3, generator=DRAWS)
    text = -Categorical(logits=logits).log_prob(words).sum(1)
    assert torch.allclose(reconstruction_error(logits, words, "text"), text)


def test_beta_weighs_the_divergence():
    rows = torch.zeros(3, 4)
    losses = [beta_vae(rows + 1, rows, MEAN, SPREAD, beta, "table") for beta in (0.0, 1.0, 4.0)]
    assert losses[0].tolist() == [2.0] * 3
    assert torch.allclose(losses[2] - losses[0], 4 * (losses[1] - losses[0]))


def test_a_code_follows_its_distribution():
    noise = torch.randn(20_000, 2, generator=DRAWS)
    codes = sampled_code(MEAN[:1].expand(20_000, 2), SPREAD[:1].expand(20_000, 2), noise)
    assert torch.allclose(codes.mean(0), MEAN[0], atol=0.05)
    assert torch.allclose(codes.var(0), SPREAD[0].exp(), rtol=0.05)


def test_bad_settings_are_refused():
    rows = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match=r"kind='tables' is not known.*table"):
        reconstruction_error(rows, rows, "tables")
    with pytest.raises(ConfigError, match="beta=-1"):
        beta_vae(rows, rows, rows, rows, beta=-1)
