from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from atoll.labels.objectives import jensen_shannon, relational, relations


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.1, 1.0]))
def test_js_is_scipys_and_between_zero_and_ln_2(seed: int, temperature: float):
    draws = np.random.default_rng(seed)
    z, other, reference = (torch.from_numpy(draws.normal(size=(5, 3))) for _ in range(3))
    p, q = relations(z, reference, temperature), relations(other, reference, temperature)
    made = jensen_shannon(p, q)
    with np.errstate(invalid="ignore"):  # scipy takes the root of a 0 that rounding made negative
        slow = [np.nan_to_num(jensenshannon(a, b)) ** 2 for a, b in zip(p.numpy(), q.numpy(), strict=True)]
    assert made.tolist() == pytest.approx(slow, abs=1e-9)
    assert (made >= -1e-15).all()
    assert (made <= math.log(2) + 1e-12).all()


def test_the_bounds_are_reached():
    one, other = torch.tensor([[1.0, 0]]), torch.tensor([[0, 1.0]])
    assert jensen_shannon(one, one).item() == 0
    assert jensen_shannon(one, other).item() == pytest.approx(math.log(2))


def test_views_that_relate_alike_lose_nothing_and_others_do():
    reference = torch.eye(3)
    first = torch.tensor([[1.0, 2, 3], [1, 0, 0]])
    assert relational(first, 2 * first, reference).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert relational(first, first.flip(1), reference).min() > 0.1


def test_relations_are_those_of_equation_96():
    z, reference = torch.tensor([[3.0, 0]]), torch.tensor([[1.0, 0], [0, 5.0]])
    e = math.exp(1)
    assert relations(z, reference, 1.0)[0].tolist() == pytest.approx([e / (e + 1), 1 / (e + 1)])


def test_padding_is_no_reference_and_references_do_not_learn():
    z, reference = torch.tensor([[3.0, 1], [0, 1]]), torch.tensor([[1.0, 0], [0, 5], [0, 0]], requires_grad=True)
    real = torch.tensor([1.0, 1, 0])
    assert torch.allclose(relations(z, reference, real=real)[:, :2], relations(z, reference[:2]))
    z.requires_grad_()
    relational(z, z.flip(0), reference, real=real).sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert reference.grad is None
