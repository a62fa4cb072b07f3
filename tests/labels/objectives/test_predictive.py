from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.labels.objectives import byol, feature_spread, simsiam, standardised

AXES = torch.eye(2, dtype=torch.float64)


def test_byols_loss_is_the_squared_distance_of_unit_vectors():
    """Golden numbers: 0 for the same direction, 2 at a right angle, 4 for opposite ones."""
    aim = AXES[:1].expand(3, 2)
    said = torch.stack([5 * AXES[0], AXES[1], -AXES[0]])
    assert byol(said, aim).tolist() == pytest.approx([0, 2, 4])
    assert simsiam(said, aim).tolist() == pytest.approx([-1, 0, 1])


@given(st.lists(st.lists(st.floats(-2, 2), min_size=3, max_size=3), min_size=1, max_size=4))
def test_byol_is_simsiam_but_for_its_scale(rows: list[list[float]]):
    said = torch.tensor(rows) + torch.tensor([0.1, 0.2, 3.0])
    aim = said.flip(1)
    assert torch.allclose(byol(said, aim), 2 + 2 * simsiam(said, aim), atol=1e-6)


def test_the_target_does_not_learn():
    said, aim = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_(), torch.ones(3, 4)
    aim.requires_grad_()
    (byol(said, aim) + simsiam(said, aim)).sum().backward()
    assert said.grad is not None
    assert aim.grad is None


def test_spread_is_zero_for_a_constant_and_one_for_opposite_directions():
    assert feature_spread(torch.ones(5, 3)).item() == pytest.approx(0, abs=1e-6)
    assert feature_spread(torch.cat([AXES, -AXES])).item() == pytest.approx(1)
    assert feature_spread(AXES).item() == pytest.approx(0.5)
    padded = torch.cat([AXES, torch.full((1, 2), 9.0, dtype=torch.float64)])
    assert feature_spread(padded, torch.tensor([1.0, 1, 0])).item() == pytest.approx(0.5)


def test_standardised_targets_are_batch_normalisation_over_real_rows():
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    slow = torch.nn.functional.batch_norm(rows[:4], None, None, training=True)
    assert torch.allclose(standardised(rows[:4]), slow, atol=1e-6)
    assert torch.allclose(standardised(rows, torch.tensor([1.0, 1, 1, 1, 0, 0]))[:4], slow, atol=1e-6)
    assert not standardised(torch.ones(3, 2)).any()
