"""Models that take several inputs by name, as those of Hugging Face's libraries do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from atoll.core.errors import DataError

__all__ = ["NamedInputs"]


class NamedInputs(nn.Module):
    """A model that takes ``input_ids``, ``attention_mask``, ... by name, as one that takes the rows of `atoll.data.from_tokens`.

    Scores of each token, ``(rows, length, classes)`` as those libraries give them, become ``(rows, classes, length)``, as PyTorch's losses take them.

    Args:
        model: the model, called as ``model(input_ids=..., attention_mask=...)``.
        names: the names of its inputs, in the order in which they are stacked in ``x``, ``(rows, inputs, length)``.
        output: what of its output is the prediction: an attribute or a key; a tensor is taken as it is.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str] = ("input_ids", "attention_mask"), output: str = "logits"
    ) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)
        self.output = output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the predictions of some rows.

        Raises:
            DataError: the rows have another number of inputs, or the output lacks what was named.
        """
        if x.dim() < 2 or x.shape[1] != len(self.names):
            raise DataError(
                f"rows of shape {tuple(x.shape[1:])} for {len(self.names)} inputs ({', '.join(self.names)})",
                where="NamedInputs",
                remedy="make the data set with atoll.data.from_tokens, with the same inputs in the same order",
            )
        made: Any = self.model(**dict(zip(self.names, x.unbind(1), strict=True)))
        if isinstance(made, torch.Tensor):
            return _classes_second(made)
        found = made.get(self.output) if isinstance(made, Mapping) else getattr(made, self.output, None)
        if not isinstance(found, torch.Tensor):
            raise DataError(
                f"the output, a {type(made).__name__}, has no tensor {self.output!r}",
                where="NamedInputs",
                remedy="name another with output=",
            )
        return _classes_second(found)


def _classes_second(scores: torch.Tensor) -> torch.Tensor:
    return scores.transpose(1, 2) if scores.dim() == 3 else scores
