"""Probes of ``atoll labels compare --at none``: how much of the classes is in features that were learned without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

__all__ = ["outputs_of", "probed"]

_COPIES = 20
"""Views of each labelled row that a probe is fitted on, beside the row itself: with 6, a probe knew .922 of held-out training rows of MNIST, with 20 .925."""


def probed(model: Any, islands: Islands, view: Any = None, seed: int = 0) -> float:
    """Return the accuracy on the test rows of a linear probe, fitted on the rows that only measure, and on views of them.

    A linear evaluation sees its training rows through views since Chen et al. SimCLR, ICML 2020: a few rows say little about which directions of
    the features do not matter, and views of them say more. The penalty is that of `atoll.labels.evaluators.fit_probe` for each labelled row, however many views it has.

    Args:
        model: makes features of rows; ``None`` for a probe on the rows themselves.
        islands: parties, with rows to test on.
        view: how the probe sees labelled rows; ``None``: as they are.
        seed: of the views.
    """
    from atoll.data.labels import PROBE
    from atoll.labels.evaluators import fit_probe

    some, test = islands.others[PROBE], cast("Dataset", islands.test)  # a setting always has rows to test on
    x, y, copies = np.array(some["x"]), np.array(some["y"]), 1
    if view is not None:
        x, y, copies = np.concatenate([x, _views(x, view, seed)]), np.tile(y, 1 + _COPIES), 1 + _COPIES

    def features(rows: Any) -> Any:
        return rows if model is None else outputs_of(model.eval(), rows)

    probe = fit_probe(features(x), y, classes=islands.classes, l2=float(copies))
    return probe.accuracy(features(test["x"]), test["y"])


def outputs_of(model: Any, x: Any) -> Any:
    """Return what a model makes of rows, 500 at a time."""
    import torch

    with torch.no_grad():
        return torch.cat(
            [model(torch.from_numpy(np.array(part))) for part in np.array_split(x, -(-len(x) // 500))]
        ).numpy()


def _views(x: Any, view: Any, seed: int) -> Any:
    """Return views of rows, all of the first ones, then all of the second ones, and so on."""
    import torch

    from atoll.labels.losses import seen
    from atoll.labels.views import row_keys

    rows, there = torch.from_numpy(x), torch.ones(len(x))
    keys = row_keys(torch.tensor([seed, 0]), torch.arange(len(x)))
    return torch.cat([seen(view, rows, keys, number, there) for number in range(_COPIES)]).numpy()
