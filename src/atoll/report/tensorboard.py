"""Rounds in TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ._extra import need
from .scalars import scalars

__all__ = ["TensorBoard"]


class TensorBoard:
    """A callback that writes every number of a round as a scalar, the round as the step.

    ``atoll.Training(..., callbacks=[TensorBoard("logs")])``, or ``trackers: [TensorBoard]`` in a configuration, which puts the events
    below the run's folder. A resumed run overwrites the rounds that a crash threw away.

    Args:
        folder: where the events go; the run's folder by default.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self._writer: Any = None
        self._module = need("tensorboardX", "tensorboard", "the TensorBoard writer")

    def attach(self, folder: Path, settings: dict[str, Any]) -> None:
        """A run begins or goes on in this folder."""
        del settings
        self.folder = self.folder or str(folder / "tensorboard")

    def __call__(self, row: dict[str, Any]) -> None:
        """Write one round."""
        if self._writer is None:
            # Two parts of a run may begin within one second, which is all that the file's name tells apart.
            first = int(row["round"])
            where = self.folder or "tensorboard"
            self._writer = self._module.SummaryWriter(where, purge_step=first, filename_suffix=f".{first}")
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, int(row["round"]))
        self._writer.flush()

    def close(self) -> None:
        """The run has ended."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
