"""A job's folder at the server: a run's folder whose settings are a job's."""

from __future__ import annotations

from pathlib import Path

from atoll.core.errors import AtollError, CheckpointError
from atoll.runs import RunFolder, yaml
from atoll.runtime.jobs.spec import JobConfig, parse_job

__all__ = ["JobFolder"]


class JobFolder(RunFolder):
    """The files of one job, kept across all its attempts: those of a run (see `atoll.runs.folder`) and one more.

    ```
    sites.msg          what the sites said when the job began
    ```

    Args:
        path: the folder.
        source: the folder of the job's modules.
    """

    def __init__(self, path: str | Path, source: Path | None = None) -> None:
        super().__init__(path)
        self.source = source
        self.sites_file = self.path / "sites.msg"

    def config(self) -> JobConfig:
        """Return the settings of the job.

        Raises:
            CheckpointError: they cannot be read.
        """
        try:
            return parse_job(yaml.read(self.require().config_file), str(self.config_file), self.source)
        except AtollError as error:
            raise CheckpointError(
                f"the job's settings cannot be used: {error.what}",
                where=error.where,
                remedy="restore the file, or submit the job again",
            ) from error
