"""Trackers of other tools: MLflow and TensorBoard, which get the scalars of every round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.core.extras import need

__all__ = ["MLflow", "TensorBoard", "flat", "scalars"]


# ------------------------------------------------------------------ the numbers of a record that a tracker can plot


_NOT_METRICS = frozenset({"round", "slot"})


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of one round by name."""
    return {
        name: float(value)
        for name, value in row.items()
        if name not in _NOT_METRICS and isinstance(value, int | float) and not isinstance(value, bool)
    }


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Nested settings as a flat dict with keys ``a.b.c``."""
    if isinstance(tree, dict) and tree:
        found: dict[str, Any] = {}
        for key, value in tree.items():
            found |= flat(value, f"{path}.{key}" if path else str(key))
        return found
    if isinstance(tree, list) and tree:
        found = {}
        for i, value in enumerate(tree):
            found |= flat(value, f"{path}.{i}")
        return found
    return {path: tree}


# ------------------------------------------------------------------ rounds in MLflow


_LONGEST = 500
"""Maximum length of a parameter's value that every MLflow store accepts."""


class MLflow:
    """A callback that logs all numbers of a round to MLflow, and the settings as parameters.

    Args:
        experiment: the experiment's name.
        run_name: the run's name; by default that of the run folder.
        tracking_uri: where MLflow keeps runs; by default MLflow's own setting.

    Raises:
        MissingExtraError: MLflow is not installed.
    """

    def __init__(self, experiment: str = "atoll", run_name: str | None = None, tracking_uri: str | None = None) -> None:
        self.experiment = experiment
        self.run_name = run_name
        self.tracking_uri = tracking_uri
        self._settings: dict[str, Any] = {}
        self._run: Any = None
        self._client: Any = None
        self._module = need("mlflow", "mlflow", "the MLflow tracker", where="atoll.report.trackers")

    def attach(self, folder: Path, settings: dict[str, Any]) -> None:
        """Start logging: a run begins or resumes in this folder."""
        self.run_name = self.run_name or folder.resolve().name
        self._settings = settings

    def _begin(self) -> None:
        self._client = self._module.MlflowClient(tracking_uri=self.tracking_uri)
        known = self._client.get_experiment_by_name(self.experiment)
        where = known.experiment_id if known is not None else self._client.create_experiment(self.experiment)
        self._run = self._client.create_run(where, run_name=self.run_name)
        for name, value in flat(self._settings).items():
            self._client.log_param(self._run.info.run_id, name, str(value)[:_LONGEST])

    def __call__(self, row: dict[str, Any]) -> None:
        """Log one round."""
        if self._run is None:
            self._begin()
        for name, value in scalars(row).items():
            self._client.log_metric(self._run.info.run_id, name, value, step=int(row["round"]))

    def close(self) -> None:
        """Close the MLflow run."""
        if self._run is not None:
            self._client.set_terminated(self._run.info.run_id)
            self._run = None


# ------------------------------------------------------------------ rounds in TensorBoard


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
        self._module = need("tensorboardX", "tensorboard", "the TensorBoard writer", where="atoll.report.trackers")

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
