"""Several models that answer as one: what stands where nobody can say which of them is best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from atoll.core.calls import checked_call, shown
from atoll.core.errors import ConfigError

__all__ = ["Committee", "committee_weights"]


@checked_call
class Committee(nn.Module):
    """Several classifiers of the same rows as one: ``log sum_m w_m p_m(y | x)`` in place of logits.

    A guard that gives up a method needs something to fall back to. There may be several trainings of labelled rows alone, such as one for each view, and no label of the
    new domain says which is best there. Their committee does not have to choose. On every row its cross-entropy is at most the weighted mean of its members' (Jensen:
    ``-log`` is convex), whatever the row. It may still be worse than the best member. It costs as many trainings, and as many models to evaluate, as it has members.

    Attributes:
        members: the models; each maps rows to logits ``(B, C)``.
        weights: their weights, 0 or more with sum 1, such as those of `committee_weights`; equal ones by default.
    """

    weights: Any

    def __init__(self, members: Sequence[Any], weights: ArrayLike | None = None) -> None:
        super().__init__()
        if isinstance(members, nn.Module) or not all(isinstance(member, nn.Module) for member in members):
            raise ConfigError(
                f"members={shown(members)}",
                where="Committee",
                remedy="give a list of models, such as [one.model, other.model]",
            )
        count = len(members)
        given = np.full(count, 1.0 / max(count, 1)) if weights is None else np.asarray(weights, np.float64)
        if not count or given.shape != (count,) or not (given >= 0).all() or abs(given.sum() - 1) > 1e-6:
            raise ConfigError(
                f"{count} members and the weights {given.tolist()}",
                where="Committee",
                remedy="give it one model at least, and a weight of 0 or more for each, with sum 1",
            )
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", torch.tensor(given))

    def forward(self, x: Any) -> Any:
        """Return the log of the weighted mean of the probabilities, ``(B, C)``."""
        told = torch.stack([member(x).log_softmax(-1) for member in self.members])
        return (told + self.weights.to(told.dtype).log().reshape(-1, 1, 1)).logsumexp(0)


@checked_call
def committee_weights(outputs: Sequence[ArrayLike], labels: ArrayLike, passes: int = 2000) -> NDArray[np.float64]:
    """Return the weights with which a committee fits some labels best: the largest likelihood of a mixture with fixed parts, by expectation maximisation.

    Stacking, as in Breiman 1996, "Stacked regressions", and van der Laan, Polley, Hubbard 2007, "Super learner": no member may have seen the rows. Each pass is
    ``w_m <- mean_i w_m p_m(y_i) / sum_l w_l p_l(y_i)``, from equal weights, and never lowers the likelihood.

    Args:
        outputs: logits of each member for the same rows, ``(n, C)`` each.
        labels: of these rows, ``(n,)``.
        passes: of the maximisation.

    Raises:
        ConfigError: no member or no row.
    """
    y, told = np.asarray(labels, np.int64), [np.asarray(one, np.float64) for one in outputs]
    if not told or not len(y):
        raise ConfigError(
            f"{len(told)} members and {len(y)} labels", where="committee_weights", remedy="give one of each at least"
        )
    logs = [one[np.arange(len(y)), y] - np.logaddexp.reduce(one, axis=1) for one in told]
    fits = np.exp(np.stack(logs) - np.max(logs, axis=0))  # p_m(y_i), up to a factor for each row
    weights = np.full(len(told), 1.0 / len(told))
    for _ in range(passes):
        parts = weights[:, None] * fits
        weights = (parts / parts.sum(0)).mean(1)
    return np.asarray(weights / weights.sum())
