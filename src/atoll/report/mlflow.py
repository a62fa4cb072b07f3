"""Rounds in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.core.extras import need

from .scalars import flat, scalars

__all__ = ["MLflow"]

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
        self._module = need("mlflow", "mlflow", "the MLflow tracker", where="atoll.report.mlflow")

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
