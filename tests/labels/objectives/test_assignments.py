from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.labels.objectives import assignment_loss, balanced_centroids, refined_centroids, sinkhorn
from atoll.labels.objectives.contrastive import _dominated_by_none


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(2, 5))
def test_rows_sum_to_one_and_clusters_are_of_equal_size(seed: int, rows: int, clusters: int):
    made = sinkhorn(drawn(seed, rows, clusters), sharpness=1.0, iterations=300)
    assert torch.allclose(made.sum(1), torch.ones(rows, dtype=made.dtype))
    assert torch.allclose(made.sum(0), torch.full((clusters,), rows / clusters, dtype=made.dtype), atol=1e-6)


def test_it_scales_the_exponential_as_the_slow_loop_does():
    scores = drawn(0, 6, 3)
    plan = np.exp(2.0 * scores.numpy())
    for _ in range(50):
        plan = plan / plan.sum(0) * 2
        plan = plan / plan.sum(1)[:, None]
    assert np.allclose(sinkhorn(scores, 2.0, 50), plan)


def test_a_sharpness_of_zero_is_refused():
    with pytest.raises(ConfigError, match="sharpness=0, iterations=100"):
        sinkhorn(torch.zeros(2, 2), 0)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_no_row_weighs_more_in_a_centroid_than_in_clusters_of_equal_size(seed: int, clusters: int):
    weights = _dominated_by_none(sinkhorn(drawn(seed, 8, clusters), 25.0, 3))
    assert (weights <= clusters / 8 + 1e-12).all()


def test_separate_directions_become_the_centroids():
    directions = torch.eye(3, dtype=torch.float64)
    rows = directions.repeat_interleave(4, 0) + 0.05 * drawn(0, 12, 3)
    made = balanced_centroids(rows, directions + 0.3 * drawn(1, 3, 3))
    assert torch.allclose(made.norm(dim=1), torch.ones(3, dtype=made.dtype))
    assert (made @ directions.T).diagonal().min() > 0.99


def test_too_few_rows_for_the_clusters_are_refused():
    with pytest.raises(DataError, match="5 rows for 3 clusters"):
        balanced_centroids(torch.zeros(5, 2), torch.zeros(3, 2))


def test_the_loss_is_least_where_both_networks_agree():
    centroids, target = torch.eye(3), torch.tensor([[1.0, 0, 0], [0, 2, 0]])
    right, wrong = assignment_loss(target, target, centroids), assignment_loss(target.flip(1), target, centroids)
    assert right.max() < 0.01
    assert wrong[0] == pytest.approx(10, abs=0.01)  # the logit of the true cluster is 10 below the largest


def test_only_the_online_network_learns():
    online, target, centroids = (drawn(i, 3, 3).requires_grad_() for i in range(3))
    assignment_loss(online, target, centroids).sum().backward()
    assert online.grad is not None
    assert target.grad is None
    assert centroids.grad is None


def test_global_centroids_come_close_to_the_clusters_of_local_ones():
    directions = torch.eye(4, dtype=torch.float64)
    local = directions.repeat_interleave(3, 0) + 0.05 * drawn(0, 12, 4)
    start = directions + 0.4 * drawn(5, 4, 4)
    before = torch.nn.functional.cosine_similarity(start, directions).min()
    made = refined_centroids(local, start, steps=100)
    assert torch.allclose(made.norm(dim=1), torch.ones(4, dtype=made.dtype))
    assert (made @ directions.T).diagonal().min() > before
    assert not made.requires_grad
