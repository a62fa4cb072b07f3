from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning.losses import NTXentLoss

from atoll.core.errors import ConfigError, DataError
from atoll.labels.objectives import enqueue, info_nce, nt_xent


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def test_four_equal_rows_lose_the_logarithm_of_seven():
    """Golden number: all eight embeddings are equal, so a softmax over seven others is uniform."""
    z = torch.ones(4, 3, dtype=torch.float64)
    assert nt_xent(z, z).tolist() == pytest.approx([math.log(7)] * 4, abs=1e-12)


def test_orthogonal_pairs():
    """Golden number: log(1 + 6 exp(-2)) = .59444 for four orthogonal pairs at temperature 0.5."""
    z = torch.eye(4, dtype=torch.float64)
    assert nt_xent(z, z, 0.5).tolist() == pytest.approx([0.59444] * 4, abs=5e-6)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.sampled_from([0.07, 0.5, 1.0]))
def test_nt_xent_is_the_independent_librarys(seed: int, rows: int, temperature: float):
    first, second = drawn(seed, rows, 5), drawn(seed + 1, rows, 5)
    other = NTXentLoss(temperature)(torch.cat([first, second]), torch.arange(rows).repeat(2))
    assert nt_xent(first, second, temperature).mean().item() == pytest.approx(other.item(), rel=1e-5)


def test_padding_repels_nothing_and_leaves_gradients_finite():
    first, second = drawn(0, 3, 4), drawn(1, 3, 4)
    padded = [torch.cat([view, torch.zeros(2, 4, dtype=view.dtype)]).requires_grad_() for view in (first, second)]
    losses = nt_xent(*padded, real=torch.tensor([1.0, 1, 1, 0, 0]))
    assert torch.allclose(losses[:3], nt_xent(first, second))
    losses[:3].sum().backward()
    assert padded[0].grad is not None
    assert padded[0].grad.isfinite().all()
    assert not padded[0].grad[3:].any()


def test_a_row_that_is_alone_in_a_padded_batch_loses_nothing():
    losses = nt_xent(drawn(0, 3, 4), drawn(1, 3, 4), real=torch.tensor([1.0, 0, 0]))
    assert losses[0].item() == pytest.approx(0, abs=1e-9)


def test_a_batch_of_one_row_is_refused():
    with pytest.raises(DataError, match=r"a batch of 1 row.*at least 2 rows"):
        nt_xent(torch.ones(1, 3), torch.ones(1, 3))


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ConfigError, match="temperature=0"):
        nt_xent(torch.ones(2, 3), torch.ones(2, 3), 0)


@given(st.integers(0, 2**32 - 1))
def test_info_nce_is_a_classification_of_the_key_among_the_queue(seed: int):
    query, key, queue = drawn(seed, 3, 4), drawn(seed + 1, 3, 4), drawn(seed + 2, 5, 4)
    slow = []
    for q, k in zip(query.numpy(), key.numpy(), strict=True):
        candidates = np.stack([k, *queue.numpy()])
        cosines = candidates @ q / np.linalg.norm(q) / np.linalg.norm(candidates, axis=1)
        slow.append(-math.log(math.exp(cosines[0] / 0.2) / np.exp(cosines / 0.2).sum()))
    assert info_nce(query, key, queue, 0.2).tolist() == pytest.approx(slow)


def test_entries_that_nothing_has_entered_do_not_count():
    query, key, queue = drawn(0, 3, 4), drawn(1, 3, 4), drawn(2, 5, 4)
    empty = torch.zeros(2, 4, dtype=torch.float64)
    assert torch.equal(info_nce(query, key, torch.cat([queue, empty])), info_nce(query, key, queue))
    assert info_nce(query, key, empty).tolist() == pytest.approx([0, 0, 0])


def test_only_queries_learn():
    query, key, queue = (drawn(i, 3, 4).requires_grad_() for i in range(3))
    info_nce(query, key, queue).sum().backward()
    assert query.grad is not None
    assert key.grad is None
    assert queue.grad is None


def test_the_queue_takes_new_keys_and_drops_the_oldest_and_takes_no_padding():
    queue = torch.tensor([[1.0, 0], [0, 1.0], [-1.0, 0]])
    keys = torch.tensor([[3.0, 4.0], [0, -2.0]])
    assert torch.allclose(enqueue(queue, keys), torch.tensor([[0.6, 0.8], [0, -1], [1, 0]]))
    assert torch.allclose(enqueue(queue, keys, torch.tensor([0.0, 1.0])), torch.tensor([[0, -1.0], [1, 0], [0, 1]]))
    assert torch.allclose(enqueue(queue[:1], keys), torch.tensor([[0.6, 0.8]]))


def test_a_block_of_clients_is_each_of_them():
    first, second, queue = drawn(0, 2, 4, 3), drawn(1, 2, 4, 3), drawn(2, 2, 6, 3)
    real = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    for fn, args in (
        (lambda a, b, r: nt_xent(a, b, 0.5, r), (first, second, real)),
        (info_nce, (first, second, queue)),
        (lambda u, k, r: enqueue(u, k, r), (queue, first, real)),
    ):
        block = torch.vmap(fn)(*args)
        assert torch.allclose(block, torch.stack([fn(*one) for one in zip(*args, strict=True)]))


def test_further_negatives_repel_every_row_and_zeros_do_not():
    first, second, more = drawn(0, 3, 4), drawn(1, 3, 4), drawn(2, 5, 4)
    made = nt_xent(first, second, 0.5, negatives=more)
    z, u = (torch.nn.functional.normalize(t, dim=1) for t in (torch.cat([first, second]), more))
    slow = []
    for i in range(6):
        others = [math.exp(z[i] @ z[j] / 0.5) for j in range(6) if j != i] + [math.exp(z[i] @ v / 0.5) for v in u]
        slow.append(math.log(sum(others)) - float(z[i] @ z[(i + 3) % 6] / 0.5))
    assert made.tolist() == pytest.approx([(slow[i] + slow[i + 3]) / 2 for i in range(3)])
    assert torch.equal(nt_xent(first, second, negatives=torch.zeros(2, 4, dtype=first.dtype)), nt_xent(first, second))
