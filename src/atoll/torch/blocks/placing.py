"""Leaves as tensors on the device and in the form that programs need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..client import without_buffers
from ..leaves import Layout, flatten, to_tensor

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree

    from ..network import FunctionalModule

__all__ = ["place", "sent_leaves"]

Tensor = torch.Tensor


def sent_leaves(
    network: FunctionalModule, broadcast: Tree, *, channels_last: bool = False
) -> tuple[list[Tensor], Layout]:
    """Return the broadcast as tensors."""
    leaves, layout = flatten(without_buffers(broadcast))
    return [place(network, leaf, channels_last=channels_last) for leaf in leaves], layout


def place(network: FunctionalModule, leaf: Any, *, channels_last: bool = False) -> Tensor:
    """Return a leaf as a tensor on the model's device."""
    tensor = to_tensor(leaf, network.device, network.dtype)
    if channels_last and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor
