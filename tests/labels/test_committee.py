"""Several models that answer as one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from atoll.core.errors import ConfigError
from atoll.labels import Committee, committee_weights


def members(count: int, seed: int) -> list[nn.Module]:
    draw, made = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        model = nn.utils.skip_init(nn.Linear, 4, 3, dtype=torch.float64)
        model.load_state_dict({name: torch.randn(p.shape, generator=draw) for name, p in model.named_parameters()})
        made.append(model)
    return made


def some_rows(seed: int) -> torch.Tensor:
    return torch.randn(20, 4, generator=torch.Generator().manual_seed(seed)).double()


@given(st.integers(1, 5), st.integers(0, 1000), st.floats(0.1, 30.0))
def test_it_answers_the_mean_probability_and_never_loses_more_than_its_members_on_average(count, seed, scale):
    models = members(count, seed)
    rows, target = some_rows(seed) * scale, torch.arange(20) % 3
    told = Committee(models)(rows)
    expected = torch.stack([model(rows).softmax(1) for model in models]).mean(0)
    assert torch.allclose(told.exp(), expected, atol=1e-12)
    losses = torch.stack([nn.functional.cross_entropy(model(rows), target, reduction="none") for model in models])
    assert (nn.functional.nll_loss(told, target, reduction="none") <= losses.mean(0) + 1e-9).all()


def test_a_committee_of_one_model_is_that_model_and_without_any_it_is_refused():
    (model,) = members(1, 0)
    rows = some_rows(1)
    assert torch.equal(Committee([model])(rows), model(rows).log_softmax(1))
    for bad in ([], None), ([model], [0.5]), ([model], [0.5, 0.5]), ([model, model], [1.5, -0.5]):
        with pytest.raises(ConfigError, match="with sum 1"):
            Committee(*bad)
    with pytest.raises(ConfigError, match="1 members and 0 labels"):
        committee_weights([np.zeros((0, 3))], [])


def test_weights_are_those_of_the_largest_likelihood():
    """Oracle: a fine grid over the weights of two members; a member that is right more surely takes all."""
    draw = np.random.default_rng(0)
    y, outputs = draw.integers(0, 3, 90), draw.normal(size=(2, 90, 3))
    outputs[0, np.arange(90), y] += 1.0
    outputs[1, np.arange(45), y[:45]] += 2.0
    fits = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
    each = fits[:, np.arange(90), y]
    grid = np.linspace(0, 1, 2001)
    best = grid[np.argmax([np.log(w * each[0] + (1 - w) * each[1]).sum() for w in grid])]
    assert 0 < best < 1
    assert committee_weights(outputs, y) == pytest.approx([best, 1 - best], abs=2e-3)
    sure = np.eye(3)[y] * 9
    assert committee_weights([sure, -sure], y) == pytest.approx([1, 0])
    told = Committee([nn.Identity(), nn.Identity()], [0.0, 1.0])(torch.tensor(outputs[0]))
    assert torch.allclose(told, torch.tensor(outputs[0]).log_softmax(1))
