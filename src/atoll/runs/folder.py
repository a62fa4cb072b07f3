"""A run folder: the settings, the records and the results of a run."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import CheckpointError, ConfigError
from atoll.core.persistence.files import as_json, read_lines, write_bytes

from .yaml import dump, read

if TYPE_CHECKING:
    from atoll.core.job import Job
    from atoll.rounds.by_device import ByDevice

    from .config import RunConfig

__all__ = ["RunFolder", "devices_table", "new_folder", "read_devices", "runs_in", "write_devices"]


FORMAT = 1
FROM_PYTHON = "from Python"
"""The setting ``started`` of a run that ``atoll.simulate`` started."""


class RunFolder:
    """The files of one run.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.manifest_file = self.path / "manifest.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.model_file = self.path / "model.safetensors"
        self.report_file = self.path / "report.html"
        self.log_file = self.path / "log.jsonl"
        self.data_file = self.path / "data.json"
        self.devices_file = self.path / "devices.json"
        self.checkpoints = self.path / "checkpoints"
        self.results = self.path / "results"

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def begun(self) -> bool:
        """Whether a run has begun here."""
        return self.config_file.exists()

    @property
    def blank(self) -> bool:
        """Whether the run here ended before it had any result: no round, no checkpoint, no privacy spent."""
        kept = self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        if not self.begun or kept or self.metrics_file.exists():
            return False
        with contextlib.suppress(CheckpointError):
            return self.status() in ("failed", "interrupted")
        return False

    def clear(self) -> None:
        """Remove a run without results; its log stays."""
        for file in (self.data_file, self.manifest_file, self.config_file):
            file.unlink(missing_ok=True)

    def require(self) -> RunFolder:
        """Return the folder if it contains a run.

        Raises:
            CheckpointError: the folder does not exist, or contains no run.
        """
        if not self.path.is_dir():
            raise CheckpointError(
                "there is no such run folder", where=str(self.path), remedy="list the runs with `atoll runs`"
            )
        if not self.begun:
            raise CheckpointError(
                "the folder contains no run: config.yaml is missing",
                where=str(self.config_file),
                remedy="give a run folder as listed by `atoll runs`, or start the run again",
            )
        return self

    def config(self) -> RunConfig:
        """The settings of the run.

        Raises:
            CheckpointError: the settings cannot be read.
        """
        if self.of_job:
            raise CheckpointError(
                "the folder contains the results of a job between sites, which cannot be resumed here",
                where=str(self.config_file),
                remedy="submit the job, or clone it: atoll clone JOB",
            )
        if self.from_python:
            raise CheckpointError(
                "the run was started from Python, and only the script has its model and its data",
                where=str(self.config_file),
                remedy=f"make the same call again in Python: atoll.simulate(..., folder={str(self.path)!r}, resume=True)",
            )
        from .config import parse_config

        try:
            return parse_config(self.settings(), str(self.config_file))
        except ConfigError as error:
            raise self._unusable(error) from error

    def settings(self) -> dict[str, Any]:
        """The settings as written in the folder, of a run or of a job between sites. Nothing that they name is imported.

        Raises:
            CheckpointError: the settings cannot be read.
        """
        try:
            tree = read(self.require().config_file)
            if not isinstance(tree, dict):
                raise ConfigError(f"expected a mapping, not {type(tree).__name__}", where=str(self.config_file))
        except ConfigError as error:
            raise self._unusable(error) from error
        return tree

    def job(self) -> type[Job]:
        """The class of the job; `Job` itself if the kind is not known here."""
        from atoll.core.job import Job

        from .config import DEFAULT_JOB, job_class

        try:
            return job_class(self.settings().get("job", DEFAULT_JOB))
        except ConfigError:  # a module that was sent with the job, or is not on the path now
            return Job

    def reached(self) -> dict[str, Any]:
        """The newest values of the job's measures; ``None`` for a measure that was never taken."""
        rows = self.metrics()
        measures = self.job().measures(rows).items()
        return {label: next((r[c] for r in reversed(rows) if r.get(c) is not None), None) for label, c in measures}

    @property
    def of_job(self) -> bool:
        """Whether the folder contains results of a job, fetched by ``atoll result``: only a job's settings name sites."""
        return "sites" in self.settings()

    @property
    def from_python(self) -> bool:
        """Whether ``atoll.simulate`` started the run: its settings describe it, and cannot start it again."""
        return self.settings().get("started") == FROM_PYTHON

    @staticmethod
    def _unusable(error: ConfigError) -> CheckpointError:
        return CheckpointError(
            f"the run's settings are invalid: {error.what}",
            where=error.where,
            remedy="restore the file, or start the run again in another folder",
        )

    def manifest(self) -> dict[str, Any]:
        """The run's status, versions and times.

        Raises:
            CheckpointError: the manifest cannot be read.
        """
        path = self.require().manifest_file
        try:
            made = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise CheckpointError(
                f"the run's manifest cannot be read: {said}",
                where=str(path),
                remedy=f"resume the run, which writes the manifest again: atoll run {self.path} --resume",
            ) from error
        if not isinstance(made, dict) or made.get("format") != FORMAT:
            raise CheckpointError(
                "the manifest has another format",
                where=str(path),
                remedy="read the run with the version of Atoll that wrote it",
            )
        return made

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the settings to the folder, except its own path, so that you can move the run."""
        shown = {**settings, "folder": None} if "folder" in settings else settings
        write_bytes(self.config_file, dump(dict(shown)).encode())

    def write_manifest(self, **changes: Any) -> dict[str, Any]:
        """Change entries of the manifest atomically."""
        before: dict[str, Any] = {"format": FORMAT}
        with contextlib.suppress(CheckpointError):
            before = self.manifest()
        made = {**before, **changes}
        write_bytes(self.manifest_file, as_json(made, indent=2).encode() + b"\n")
        return made

    def status(self) -> str:
        """running, finished, interrupted or failed; a run whose process is gone was interrupted."""
        said = str(self.manifest().get("status"))
        if said != "running":
            return said
        with self.lock() as free:
            return "interrupted" if free else "running"

    def metrics(self) -> list[dict[str, Any]]:
        """The records of all rounds.

        Raises:
            CheckpointError: a line is damaged. A last line that a crash cut short is skipped.
        """
        return read_lines(self.metrics_file) if self.metrics_file.exists() else []

    def write_metrics(self, rows: Sequence[dict[str, Any]]) -> None:
        """Replace the records with those of the checkpoint that a run resumes from."""
        write_bytes(self.metrics_file, "".join(f"{as_json(row)}\n" for row in rows).encode())

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append a round's record.

        Raises:
            CheckpointError: the record cannot be written.
        """
        try:
            with self.metrics_file.open("a", encoding="utf-8") as file:
                file.write(f"{as_json(row)}\n")
        except OSError as error:
            raise CheckpointError(
                f"could not write round {row.get('round')}: {error.strerror or error}",
                where=str(self.metrics_file),
                remedy="free space or fix the permissions, then resume; the last checkpoint is intact",
            ) from error

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Lock the folder for this process; yields whether it was free. The system releases the lock when the process dies."""
        try:
            import fcntl
        except ImportError:  # not on POSIX: no lock, so users must not run two runs in one folder
            yield True
            return
        with (self.path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True


def new_folder(root: str | Path, name: str, today: datetime | None = None) -> RunFolder:
    """Make a folder with a readable name that is still free: ``2026-03-14-digits-1``.

    Args:
        root: the folder of the runs.
        name: a short name; characters other than letters and digits become hyphens.
        today: the date; by default now, in UTC.
    """
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    stem = f"{(today or datetime.now(UTC)):%Y-%m-%d}-{word}"
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        taken = {path.name for path in Path(root).glob(f"{stem}-*")}
        number = 1
        while True:
            if f"{stem}-{number}" not in taken:
                with contextlib.suppress(FileExistsError):
                    (Path(root) / f"{stem}-{number}").mkdir()
                    return RunFolder(Path(root) / f"{stem}-{number}")
            number += 1
    except OSError as error:
        raise CheckpointError(
            f"could not make a run folder: {error.strerror or error}", where=str(root), remedy="choose another folder"
        ) from error


def runs_in(root: str | Path) -> list[RunFolder]:
    """All runs below a folder, sorted by name."""
    found = Path(root).glob("*/config.yaml") if Path(root).is_dir() else ()
    return [RunFolder(path.parent) for path in sorted(found)]


# The record of a run's devices in its folder: written at the end, read by reports and commands.


def write_devices(path: Path, devices: ByDevice) -> None:
    """Write the columns to a file.

    Raises:
        CheckpointError: the file cannot be written.
    """
    write_bytes(path, as_json(devices.packed()).encode() + b"\n")


def read_devices(path: Path) -> ByDevice | None:
    """Read the columns; ``None`` without a file: the run has not ended, or is not a training.

    Raises:
        CheckpointError: the file cannot be read, or is damaged.
    """
    from atoll.rounds.by_device import ByDevice

    if not path.exists():
        return None
    try:
        return ByDevice.unpacked(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise CheckpointError(
            f"the record of the devices cannot be read: {getattr(error, 'what', error)}",
            where=str(path),
            remedy="restore the file, or remove it: it is not needed for the rest of the run",
        ) from error


def devices_table(devices: ByDevice) -> str:
    """One line per device, separated by commas, below a line with the names of the columns."""
    rows, text = list(devices.rows()), io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
