"""Rounds in TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.core.extras import need

from .scalars import scalars

__all__ = ["TensorBoard"]


class TensorBoard:
    """A callback that writes all numbers of a round as scalars, with the round as the step.

    ``atoll.Training(..., callbacks=[TensorBoard("logs")])``, or ``trackers: [TensorBoard]`` in a configuration, which writes the events
    below the run folder. A resumed run overwrites the rounds that a crash lost.

    Args:
        folder: folder of the events; by default the run folder.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self._writer: Any = None
        self._module = need("tensorboardX", "tensorboard", "the TensorBoard writer", where="atoll.report.tensorboard")

    def attach(self, folder: Path, settings: dict[str, Any]) -> None:
        """Start writing: a run begins or resumes in this folder."""
        del settings
        self.folder = self.folder or str(folder / "tensorboard")

    def __call__(self, row: dict[str, Any]) -> None:
        """Write one round."""
        if self._writer is None:
            # Event files of a run are named by the second, and a resumed part may begin within the same second.
            first = int(row["round"])
            where = self.folder or "tensorboard"
            self._writer = self._module.SummaryWriter(where, purge_step=first, filename_suffix=f".{first}")
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, int(row["round"]))
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
