"""Trained parameters in a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from atoll.core import tree as T
from atoll.core.errors import CheckpointError
from atoll.core.files import write_bytes

__all__ = ["read_model", "write_model"]


def write_model(path: Path, params: Any) -> None:
    """Write a tree of arrays; the same parameters give the same bytes.

    Raises:
        CheckpointError: it cannot be written; a model that was there before is still there.
    """
    from safetensors.numpy import save

    arrays = {name: _array(leaf) for name, leaf in T.items(params)}
    write_bytes(path, save(arrays))


def _array(leaf: Any) -> Any:
    if type(leaf).__module__.partition(".")[0] == "torch":
        leaf = leaf.detach().cpu().numpy()
    return np.ascontiguousarray(leaf)


def read_model(path: str | Path) -> dict[str, Any]:
    """Read the arrays of a model by name.

    Raises:
        CheckpointError: the file is missing, or is no safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(Path(path).read_bytes()))
    except (OSError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"the model cannot be read: {said}", where=str(path), remedy="resume the run, which writes it anew"
        ) from error
