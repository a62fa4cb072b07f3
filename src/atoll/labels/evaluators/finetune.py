"""Fine-tuning with few labels: how far an encoder carries 1 or 10 % of them."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError
from atoll.data.labels.hiding import quotas

__all__ = ["FineTuned", "fine_tune", "labelled_share"]

_BLOCK = 1024


@dataclass(frozen=True)
class FineTuned:
    """What came of fine-tuning.

    Attributes:
        accuracy: on the test rows.
        labels: number of labels that were used.
        model: the encoder with its new head, tuned.
    """

    accuracy: float
    labels: int
    model: nn.Module


@checked_call
def labelled_share(labels: ArrayLike, share: float, seed: int) -> NDArray[np.int64]:
    """Return row numbers of a share of the labels, by seed, with as equal numbers of each class as there are and at least one of each.

    Raises:
        ConfigError: a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ConfigError(f"share={share}", where="fine-tuning", remedy="use a share above 0 and up to 1, such as 0.01")
    y = np.asarray(labels, np.int64)
    rng = Rng.of(seed).child("fine-tune").generator()
    counts = np.bincount(y)
    total = max(round(share * len(y)), int((counts > 0).sum()))
    rows = [rng.permutation(np.flatnonzero(y == c))[:n] for c, n in enumerate(quotas(counts, total, rng))]
    return np.sort(np.concatenate(rows))


@checked_call
def fine_tune(
    encoder: nn.Module,
    x: ArrayLike,
    y: ArrayLike,
    test_x: ArrayLike,
    test_y: ArrayLike,
    *,
    share: float = 0.01,
    lr: float = 0.01,
    steps: int = 200,
    batch: int = 64,
    seed: int = 0,
) -> FineTuned:
    """Train a copy of an encoder with a new linear head on a share of the labels, all weights, and measure it.

    SGD with Nesterov's momentum .9 at a cosine rate, without dropout. The given encoder stays as it is.

    Args:
        encoder: maps rows to features ``(n, d)``.
        x: rows with labels, ``(n, ...)``.
        y: their classes.
        test_x: rows to measure on.
        test_y: their classes.
        share: share of the labels to use, such as 0.01 or 0.1.
        lr: first learning rate.
        steps: mini-batches.
        batch: rows of each.
        seed: chooses labels, mini-batches and the head.

    Raises:
        DataError: no rows, or other numbers of rows than of labels.
        ConfigError: a share outside (0, 1].
    """
    rows, labels = torch.as_tensor(np.array(x), dtype=torch.float32), torch.as_tensor(np.array(y), dtype=torch.int64)
    if not len(rows) or len(rows) != len(labels):
        raise DataError(
            f"{len(rows)} rows with {len(labels)} labels", where="fine-tuning", remedy="give each row one label"
        )
    chosen = labelled_share(labels.numpy(), share, seed)
    rng = Rng.of(seed).child("fine-tune", "steps").generator()
    own = copy.deepcopy(encoder).eval()
    with torch.no_grad():
        width = own(rows[:1]).numel()
    classes = int(max(labels.max(), np.max(test_y))) + 1
    # Its own first weights would come from PyTorch's global generator.
    head: nn.Linear = nn.utils.skip_init(nn.Linear, width, classes)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(rng.uniform(-1, 1, head.weight.shape) / np.sqrt(width)))
        head.bias.zero_()
    model = nn.Sequential(own, nn.Flatten(), head).requires_grad_(True).train()
    solver = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(solver, steps)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):  # its draws come from PyTorch's global generator
            module.eval()
    for _ in range(steps):
        picked = torch.from_numpy(rng.choice(chosen, min(batch, len(chosen)), replace=False))
        solver.zero_grad()
        nn.functional.cross_entropy(model(rows[picked]), labels[picked]).backward()  # type: ignore[no-untyped-call]
        solver.step()
        schedule.step()
    model.eval()
    asked = torch.as_tensor(np.array(test_x), dtype=torch.float32)
    with torch.no_grad():
        guess = torch.cat([model(asked[at : at + _BLOCK]).argmax(1) for at in range(0, len(asked), _BLOCK)])
    return FineTuned(float((guess.numpy() == np.asarray(test_y)).mean()), len(chosen), model)
