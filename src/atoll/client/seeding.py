"""Seeds for the generators that a user's script draws from."""

from __future__ import annotations

import importlib
import sys

import numpy as np

__all__ = ["seed_all"]

_PYTHON = "random"
"""The module of Python's global generator, which Atoll itself never draws from."""


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and, if it is loaded, PyTorch: a script is no part of Atoll, and draws from these.

    Args:
        seed: 63 bits.
    """
    importlib.import_module(_PYTHON).seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
