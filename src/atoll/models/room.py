"""The parts that a configuration names under ``model``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from atoll.core.rooms import PartKind

__all__ = ["PARTS"]


def _made_anew(make: Callable[[], Any]) -> Any:
    """Return a model or, for a PyTorch module, its factory: the initial weights then follow the run's seed, not the process's generator."""
    made = make()
    torch = sys.modules.get("torch")
    return make if torch is not None and isinstance(made, torch.nn.Module) else made


PARTS = (
    PartKind("model", ("atoll.models",), inspect.isfunction, "The model to train.", later=_made_anew, costly=True),
)  # fmt: skip
