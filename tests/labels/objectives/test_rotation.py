from __future__ import annotations

import numpy as np
import pytest
import torch

from atoll.core.errors import DataError
from atoll.labels.objectives import predict_rotation, quarter_turns


def test_every_image_has_its_own_turn():
    images = torch.arange(4 * 2 * 9.0).reshape(4, 2, 3, 3)
    turned = quarter_turns(images, torch.tensor([3, 0, 1, 2]))
    for row, k in enumerate([3, 0, 1, 2]):
        assert np.array_equal(turned[row], np.rot90(images[row].numpy(), k, (1, 2)))


def test_oblong_images_are_refused():
    with pytest.raises(DataError, match=r"rows of shape \(1, 3, 4\)"):
        quarter_turns(torch.zeros(2, 1, 3, 4), torch.zeros(2))


def test_the_loss_is_pytorchs_cross_entropy():
    logits, turns = torch.tensor([[1.0, 0, 2, -1], [0, 0, 0, 0]]), torch.tensor([2, 1])
    assert torch.allclose(
        predict_rotation(logits, turns), torch.nn.functional.cross_entropy(logits, turns, reduction="none")
    )
