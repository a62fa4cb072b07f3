"""Thresholds for each client and class, against a loop; and FreeMatch on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from atoll.core.errors import ConfigError
from atoll.labels import FixMatch, FreeMatch, Supervised
from atoll.labels.objectives import free_thresholds
from atoll.views import weak
from tests.support.label_toys import gap, images, islands, same, trained

WORK: dict[str, Any] = {"lr": 0.1, "steps": 3, "batch_size": 8}


def test_thresholds_are_those_of_a_loop() -> None:
    p = np.random.default_rng(0).dirichlet(np.array([4.0, 1.0, 0.3]), 12)
    counts = np.arange(12) % 3 > 0
    rows = p[counts]
    q = rows.mean(axis=0)
    wanted = [min(0.7, q[c] / q.max() * rows.max(axis=1).mean()) for c in range(3)]
    made = free_thresholds(torch.from_numpy(p), torch.from_numpy(counts), 0.7)
    np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-12)
    assert free_thresholds(torch.from_numpy(p), torch.zeros(12), 0.7).tolist() == [0.7] * 3
    # A model that believes nothing has thresholds of 1/C, one that is sure of all classes alike the ceiling.
    assert free_thresholds(torch.full((4, 4), 0.25), torch.ones(4)).tolist() == pytest.approx([0.25] * 4)
    assert free_thresholds(torch.eye(4), torch.ones(4), 0.95).tolist() == pytest.approx([0.95] * 4)


def test_a_class_that_is_hardly_named_has_the_lowest_threshold() -> None:
    logits = torch.tensor([[3.0, 0, 0], [3.0, 0, 0], [0, 2.0, 0], [0.5, 0, 1.0]])
    made = free_thresholds(torch.softmax(logits, 1), torch.ones(4))
    assert made[0] > made[1] > made[2]


@pytest.mark.slow
def test_it_is_fixmatch_with_other_thresholds() -> None:
    one, many = (trained(FreeMatch(**WORK), engine=engine) for engine in ("inline", "batched"))
    assert gap(one, many) < 1e-5
    assert gap(one, trained(FixMatch(**WORK))) > 1e-5  # a young model is below .95, but above its own mean
    assert same(trained(FreeMatch(weight=0.0, **WORK)), trained(Supervised(view=weak("images"), **WORK)))
    known = islands(images(share=2.0))
    assert same(trained(FreeMatch(**WORK), known), trained(Supervised(view=weak("images"), **WORK), known))


def test_a_ceiling_that_keeps_every_row_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tau=0\.2 with 4 classes"):
        trained(FreeMatch(tau=0.2, **WORK))
