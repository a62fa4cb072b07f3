"""Trees of arrays as a safetensors file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import tree as T

if TYPE_CHECKING:
    from .tree import Tree

__all__ = ["safetensors_of"]


def safetensors_of(tree: Tree) -> bytes:
    """The content of a safetensors file with each array under its path; equal arrays give equal bytes."""
    from safetensors.numpy import save

    return bytes(save({name: _array(leaf) for name, leaf in T.items(tree)}))


def _array(leaf: Any) -> Any:
    if type(leaf).__module__.partition(".")[0] == "torch":
        leaf = leaf.detach().cpu().numpy()
    return np.ascontiguousarray(leaf)
