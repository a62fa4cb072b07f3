"""Trained parameters in a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.core.algebra.arrays import safetensors_of
from atoll.core.errors import CheckpointError
from atoll.core.persistence.files import write_bytes

__all__ = ["read_model", "write_model"]


def write_model(path: Path, params: Any) -> None:
    """Write a tree of arrays; the same parameters give the same bytes.

    Raises:
        CheckpointError: the file cannot be written; an earlier model file stays intact.
    """
    write_bytes(path, safetensors_of(params))


def read_model(path: str | Path) -> dict[str, Any]:
    """Read the arrays of a model by name.

    Raises:
        CheckpointError: the file is missing, or is not a safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(load(Path(path).read_bytes()))
    except (OSError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"the model cannot be read: {said}", where=str(path), remedy="resume the run, which writes the model again"
        ) from error
