"""What a run keeps, so that you can kill it at any moment and resume it: settings, records, parameters."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.algebra.form import safetensors_of
from atoll.core.errors import AtollError, CheckpointError, ConfigError, MissingExtraError
from atoll.core.federation.scope import MAIN
from atoll.core.persistence.files import as_json, write_bytes

from .config import RunConfig
from .folder import RunFolder, write_devices
from .from_python import PythonRun
from .log import logger, logging_to
from .stopping import INTERRUPTED
from .versions import versions

if TYPE_CHECKING:
    from atoll.core.job import Job
    from atoll.simulation import Result

__all__ = ["Kept", "Listener", "keeping", "not_the_same", "read_model", "write_model"]


# Trained parameters in a safetensors file.


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


SECTIONS = "sections.json"
"""The file of what a kind of job shows in its report."""
_CHANGEABLE = ("name", "folder", "trackers")

Listener = Callable[[dict[str, Any]], None]


class Kept:
    """The writer of a run under way: metrics.jsonl never contains a round twice.

    Args:
        config: the settings of the run.
        folder: the run folder.
        on_record: called with each record.
        on_start: called with the number of rounds that were already done.
    """

    def __init__(
        self,
        config: RunConfig | PythonRun,
        folder: RunFolder,
        on_record: Listener | None = None,
        on_start: Callable[[int], None] | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.on_record = on_record
        self.on_start = on_start
        self.trackers: list[Any] = []
        self._begin = time.perf_counter()
        self._begun = False
        self._listeners: tuple[Listener, ...] = ()

    def begin(self, job: Job, data: Any, *listeners: Listener) -> None:
        """Write the facts of the data, and the citations.

        Args:
            job: the job.
            data: its data.
            listeners: called with each record, after the trackers; one that raises ``StopRun`` ends the run.
        """
        from atoll.report import cite, summarise_data

        if not self.folder.data_file.exists():
            summarise_data(data, self.folder.data_file)
        self.trackers = _make_trackers(self.config, self.folder)
        self._listeners = (*self.trackers, *listeners)
        self.folder.write_manifest(citations=cite(job, data))

    def restore(self, rows: Sequence[dict[str, Any]]) -> None:
        """Continue from these records; later records in the file are discarded."""
        self.folder.write_metrics(rows)
        self.folder.devices_file.unlink(missing_ok=True)  # it is from an end that did not last
        self._begun = True
        if rows:
            logger.info("the run goes on", extra={"rounds_done": len(rows)})
        if self.on_start is not None:
            self.on_start(len(rows))

    def record(self, row: dict[str, Any]) -> None:
        """Append a record; records of nested programs are left out."""
        if row.get("slot", MAIN) != MAIN:
            return
        if not self._begun:
            self.restore([])
        self.folder.append_metrics(row)
        shown = {k: v for k, v in row.items() if isinstance(v, int | float | str)}
        logger.info("round", extra={"record": shown})
        if row.get("rejected_clients"):
            logger.warning("%s", _tell_rejected(row), extra={"round": row["round"], "clients": row["rejected_clients"]})
        if self.on_record is not None:
            self.on_record(row)
        measures = {name: value for name, value in row.items() if name not in ("slot", "clock")}
        for listener in self._listeners:
            listener(measures)

    def finish(self, result: Result) -> None:
        """Write the results, and complete the manifest."""
        for name, content in result.prepared.files(result.outcome).items():
            write_bytes(self.folder.path / name, content)
        sections = list(result.prepared.sections(result.outcome))
        if sections:
            write_bytes(self.folder.path / SECTIONS, as_json(sections).encode())
        write_devices(self.folder.devices_file, result.devices)
        self.end(
            reason=result.reason,
            rounds=len(result.metrics),
            engine=result.engine,
            bytes=result.bytes,
            devices=result.devices.summary(),
            notices=list(result.notices),
            **result.prepared.facts(result.outcome),
        )
        for tracker in self.trackers:
            if hasattr(tracker, "close"):
                tracker.close()

    def end(self, *, reason: str, **facts: Any) -> None:
        """Write to the manifest that the run has ended, and why."""
        seconds = time.perf_counter() - self._begin
        # The seconds before a resume are added.
        before = float(self.folder.manifest().get("seconds") or 0.0)
        status = INTERRUPTED if reason == INTERRUPTED else "finished"
        self.folder.write_manifest(
            status=status, ended=_format_now(), seconds=round(before + seconds, 3), reason=reason, **facts
        )
        logger.info("the run ends", extra={"run": self.folder.name, "reason": reason, "seconds": round(seconds, 3)})

    def report(self) -> None:
        """Write the report; a missing plotting library must not lose a training."""
        from atoll.report import write_report

        try:
            write_report(self.folder)
        except MissingExtraError as error:
            logger.warning("no report was written", extra={"what": error.what, "remedy": error.remedy})


def not_the_same(before: RunConfig, config: RunConfig) -> list[str]:
    """The paths of the settings that differ, except those that a resumed run may change."""
    kind = type(before).makes
    free = {*_CHANGEABLE, *(() if kind is None else kind.changeable)}
    return [path for path in before.differences(config) if path.split(".")[0] not in free]


@contextlib.contextmanager
def keeping(
    config: RunConfig | PythonRun,
    folder: RunFolder,
    *,
    resume: bool = False,
    on_record: Listener | None = None,
    on_start: Callable[[int], None] | None = None,
) -> Iterator[Kept]:
    """Lock a run folder while the run is under way, and keep its manifest true in any event.

    Args:
        config: the settings of the run.
        folder: the run folder; created if it does not exist. A run there that ended without any result starts again.
        resume: continue the run in the folder, or begin one if there is none.
        on_record: called with each record.
        on_start: called with the number of rounds that were already done.

    Raises:
        CheckpointError: the folder contains another run, or cannot be read or written.
        ConfigError: the settings differ from those of the run to resume.
    """
    _prepare_folder(config, folder, resume)
    with folder.lock() as free, logging_to(folder.log_file):
        if not free:
            raise CheckpointError(
                "another process is running in this folder", where=str(folder.path), remedy="wait for it, or stop it"
            )
        with _keep_status(config, folder, resume):
            yield Kept(config, folder, on_record, on_start)


def _prepare_folder(config: RunConfig | PythonRun, folder: RunFolder, resume: bool) -> None:
    if folder.blank:
        folder.clear()  # the user has corrected refused settings and uses the same folder again
    elif folder.begun:
        if not resume:
            raise CheckpointError(
                "the folder already contains a run",
                where=str(folder.path),
                remedy="continue it with resume=True, or choose another folder",
            )
        # A run from Python is resumed with the objects themselves, which its checkpoint checks.
        changed = [] if isinstance(config, PythonRun) else not_the_same(folder.config(), config)
        if changed:
            raise ConfigError(
                f"{', '.join(changed)} differ from the run in the folder",
                where=str(folder.config_file),
                remedy=f"continue it with its own settings (`atoll run {folder.path} --resume`), or start a new run",
            )
    elif (
        not isinstance(config, PythonRun)
        and folder.path.is_dir()
        and any(not p.name.startswith(".") for p in folder.path.iterdir())
    ):
        raise CheckpointError(
            "the folder contains other files and no run",
            where=str(folder.path),
            remedy="choose an empty or a new folder",
        )
    folder.write_settings(config.plain())


@contextlib.contextmanager
def _keep_status(config: RunConfig | PythonRun, folder: RunFolder, resume: bool) -> Iterator[None]:
    """Keep the manifest's status true in any event."""
    now = _format_now()
    begun: dict[str, Any] = {}
    with contextlib.suppress(CheckpointError):
        begun = folder.manifest() if resume else {}
    folder.write_manifest(
        name=config.name,
        status="running",
        started=begun.get("started", now),
        resumed=[*begun.get("resumed", []), now] if begun else [],
        ended=None,
        error=None,
        devices=None,
        seed=config.seed,
        digest=config.digest(),
        versions=versions(),
    )
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)  # by a person, or with the job
        status = INTERRUPTED if stopped else "failed"
        if stopped:
            logger.info("the run was stopped")
        else:
            logger.error("the run ended early", extra={"error": f"{type(error).__name__}: {error}"})
        with contextlib.suppress(CheckpointError):  # the disk may be full: report the first error
            folder.write_manifest(status=status, ended=_format_now(), error=_describe_error(error))
        raise


def _describe_error(error: BaseException) -> dict[str, Any]:
    if isinstance(error, AtollError):
        return {"kind": type(error).__name__, "what": error.what, "where": error.where, "remedy": error.remedy}
    return {"kind": type(error).__name__, "what": str(error), "where": None, "remedy": None}


def _make_trackers(config: RunConfig | PythonRun, folder: RunFolder) -> list[Any]:
    made = [part.build(f"trackers[{i}]") for i, part in enumerate(config.trackers)]
    for tracker in made:
        if hasattr(tracker, "attach"):
            tracker.attach(folder.path, config.plain())
    return made


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


_NAMED = 3
"""Most clients that a line of the log names."""


def _tell_rejected(row: Mapping[str, Any]) -> str:
    """Say whose replies a round has rejected, and why; a log of a job keeps words alone."""
    clients = dict(row["rejected_clients"])
    named = "; ".join(f"{name}: {why}" for name, why in list(clients.items())[:_NAMED])
    more = f"; and {len(clients) - _NAMED} more" if len(clients) > _NAMED else ""
    return f"replies were rejected in round {row['round']}: {named}{more}"
