"""All native layers of images at once."""

from __future__ import annotations

from torch.fx import GraphModule

from ..tracing.fuse import tidy
from .convolution import convolutions, replace_convolutions
from .live import Live
from .normal import norms, replace_norms
from .pooling import pools, replace_pools

__all__ = ["count_layers", "replace_layers"]


def count_layers(gm: GraphModule) -> int:
    """Return how many operations native code can take over; if it leaves a convolution to PyTorch, then pooling alone."""
    found = list(convolutions(gm))
    pooled = sum(1 for _ in pools(gm))
    if not all(shape is not None for _, shape in found):
        return pooled
    return pooled + len(found) + sum(1 for _ in norms(gm))


def replace_layers(gm: GraphModule) -> Live | None:
    """Let native code take what it can of layers of images; ``recompile`` writes the module's code.

    Returns:
        What tells these layers how many rows are real; ``None`` if there are none.
    """
    live = Live()
    whole = all(shape is not None for _, shape in convolutions(gm))
    replaced = [replace_norms(gm, live), replace_pools(gm), whole and replace_convolutions(gm, live)]
    tidy(gm)
    return live if any(replaced) else None
