"""Rotation prediction: by how many quarter turns was an image turned?"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atoll.core.errors import DataError

__all__ = ["predict_rotation", "quarter_turns"]

Tensor = torch.Tensor


def quarter_turns(images: Tensor, turns: Tensor) -> Tensor:
    """Return images turned counter-clockwise, each by its own number of quarter turns.

    Args:
        images: ``(rows, channels, side, side)``.
        turns: 0, 1, 2 or 3 for each row.

    Raises:
        DataError: images that are not square.
    """
    if images.dim() != 4 or images.shape[2] != images.shape[3]:
        raise DataError(
            f"rows of shape {tuple(images.shape[1:])}",
            where="quarter_turns",
            remedy="give square images, (rows, channels, side, side)",
        )
    made = images
    for k in (1, 2, 3):
        chosen = (turns == k).reshape(-1, 1, 1, 1)
        made = torch.where(chosen, torch.rot90(images, k, (2, 3)), made)
    return made


def predict_rotation(logits: Tensor, turns: Tensor) -> Tensor:
    """Return the cross-entropy of each row over the four turns.

    Args:
        logits: ``(rows, 4)``, of the turned images.
        turns: the true number of quarter turns, ``(rows,)``.

    Source: Gidaris, Singh, Komodakis. Unsupervised Representation Learning by Predicting Image Rotations. ICLR 2018.
    """
    classes = torch.arange(4, device=logits.device)
    true = turns.unsqueeze(1) == classes
    return -torch.where(true, F.log_softmax(logits, 1), 0.0).sum(1)
