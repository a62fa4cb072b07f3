"""A leaf of columns that stay on the device: trained as any leaf, answered and joined there, from what the server sends of the others.

The features of the other leaves are public, so the server runs these. Some columns of a user may be private: one more leaf takes these alone, and all clients train
it. To answer a row, the server sends the outputs of its leaves, and the device adds its own leaf's and joins them. Nothing made of private columns leaves the
device but updates of trainings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll.core.errors import CompositionError, ConfigError, DataError, nearest
from atoll.core.validation import Checked

from .joining import join_logs, log_probabilities, over_arch_inputs, over_arch_network, probabilities_of

__all__ = ["DEVICE_AGGREGATES", "DeviceEnsemble", "OnColumns", "PrivateLeaf", "over_arch_of", "split_columns"]

DEVICE_AGGREGATES = ("mean", "median", "max", "over_arch")
"""How a device may join leaves: opt-in users keep their private columns, so nothing is learned from these at the server."""


@dataclass(frozen=True, kw_only=True)
class PrivateLeaf(Checked):
    """The leaf of columns that never leave the device.

    Attributes:
        columns: names of features of the data set; the other leaves do not see these.
        model: the model of these columns, ``(B, len(columns))``, in the data set's order; a module, or a function that makes one.
    """

    columns: Sequence[str]
    model: Any

    def __post_init__(self) -> None:
        if isinstance(self.columns, str) or not self.columns:
            raise ConfigError(
                f"columns={self.columns!r}",
                where="PrivateLeaf",
                remedy="name the columns that stay on the device, such as columns=['income']",
            )


class OnColumns(nn.Module):
    """A model of some columns of its input.

    Args:
        model: takes ``(B, columns)``.
        places: places of the columns.
    """

    def __init__(self, model: nn.Module, places: Sequence[int]) -> None:
        super().__init__()
        self.model, self.places = model, list(places)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the model's answer to its columns of ``(B, features)``."""
        made: torch.Tensor = self.model(x[:, self.places])
        return made

    @staticmethod
    def of(model: Any, places: Sequence[int]) -> Callable[[], nn.Module]:
        """Return what makes the model on its columns: the weights are those that it has alone."""
        return functools.partial(_make, model, tuple(places))


def _make(model: Any, places: tuple[int, ...]) -> nn.Module:
    return OnColumns(deepcopy(model) if isinstance(model, nn.Module) else model(), places)


def split_columns(leaf: PrivateLeaf, features: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the places of public and of private columns.

    Raises:
        DataError: a private column is no feature.
        CompositionError: no column is public.
    """
    for name in leaf.columns:
        if name not in features:
            raise DataError(
                f"there is no feature {name!r}.{nearest(name, features)}",
                where="PrivateLeaf.columns",
                remedy="name features of the data set: Dataset(..., features=[...])",
            )
    private = [place for place, name in enumerate(features) if name in leaf.columns]
    public = [place for place, name in enumerate(features) if name not in leaf.columns]
    if not public:
        raise CompositionError(
            "all columns are private, so the server's leaves have no input",
            where="PrivateLeaf.columns",
            remedy="train one model with Training",
        )
    return public, private


class DeviceEnsemble(nn.Module):
    """What a device holds of an ensemble: its own leaf, and what joins this with the answers that the server sends.

    Args:
        private: the leaf of private columns.
        aggregate: ``mean``, ``median``, ``max`` or ``over_arch``.
        leaves: how many leaves the server has.
        classes: how many classes there are.
        head: the over-arch, of the server's leaves and the private one.
        inputs: what the over-arch takes, see `OverArch`.
    """

    def __init__(
        self, private: nn.Module, aggregate: str, leaves: int, classes: int, head: nn.Sequential | None, inputs: str
    ) -> None:
        super().__init__()
        self.private, self.head = private, head
        self.aggregate, self.leaves, self.classes = aggregate, leaves, classes
        self.inputs = inputs if head is not None else "predictions"

    def ask(self, members: Sequence[nn.Module], x: NDArray[Any]) -> NDArray[np.float32]:
        """Return what the server sends to answer rows: of each leaf all probabilities but that of the first class, and its last hidden layer where the over-arch takes it.

        Args:
            members: the server's leaves.
            x: public columns, ``(B, public)``.
        """
        with torch.no_grad():
            return np.asarray(over_arch_inputs(members, torch.tensor(x), self.inputs).numpy(), np.float32)

    def forward(self, message: torch.Tensor, private: torch.Tensor) -> torch.Tensor:
        """Return log probabilities, ``(B, classes)``.

        Args:
            message: what the server has sent, ``(B, C (classes - 1 + h))``.
            private: the private columns, ``(B, private)``.
        """
        if self.head is not None:
            own = over_arch_inputs([self.private], private, self.inputs)
            return log_probabilities(self.head(torch.cat([message, own], dim=-1)))
        chances = message.reshape(len(message), self.leaves, self.classes - 1)
        first = 1 - chances.sum(-1, keepdim=True)
        logs = torch.cat([first, chances], dim=-1).clamp_min(1e-12).log().transpose(0, 1)
        return join_logs(torch.cat([logs, log_probabilities(self.private(private))[None]]), self.aggregate)

    def predict_proba(self, message: NDArray[Any], private: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probabilities of the classes, ``(B, classes)``; the arguments are those of ``forward``."""
        with torch.no_grad():
            return probabilities_of(
                self(torch.tensor(np.asarray(message)), torch.tensor(np.asarray(private, np.float32)))
            )


def over_arch_of(
    leaves: Sequence[nn.Module], private: nn.Module | None, x: torch.Tensor, settings: Any
) -> nn.Sequential:
    """Return an over-arch before training. The statistics of its inputs are those of the leaves' answers to public rows; the private leaf's are taken as they are.

    Args:
        leaves: of public columns, which take all columns.
        private: the private leaf, which takes all columns; ``None`` for none.
        x: public rows, with any numbers in private columns, ``(B, features)``.
        settings: an `OverArch`.
    """
    shown = over_arch_inputs(leaves, x, settings.inputs)
    if private is not None:
        own = over_arch_inputs([private], x[:1], settings.inputs).shape[1]
        shown = torch.cat([shown, torch.zeros(len(shown), own)], dim=-1)
    classes = int(log_probabilities(leaves[0](x[:1])).shape[1])
    return over_arch_network(shown, classes, settings)
