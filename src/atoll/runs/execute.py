"""Run a configuration in a folder, so that it can be killed at any moment and resumed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from atoll.core.errors import AtollError, CheckpointError, ConfigError, MissingExtraError, TaskError

from .config import RunConfig
from .folder import RunFolder
from .log import logger, logging_to
from .model import write_model
from .stopping import INTERRUPTED, Stopping
from .versions import versions

if TYPE_CHECKING:
    from atoll.simulation import Result

__all__ = ["CHANGEABLE", "execute"]

CHANGEABLE = ("name", "folder", "rounds", "stop", "trackers")
"""Settings that a resumed run may change: the others would make it another run."""

Listener = Callable[[dict[str, Any]], None]


def execute(
    config: RunConfig,
    folder: RunFolder,
    *,
    resume: bool = False,
    stopping: Stopping | None = None,
    on_record: Listener | None = None,
    on_start: Callable[[int], None] | None = None,
    report: bool = True,
) -> Result:
    """Train, and keep everything in the run's folder.

    Args:
        config: the settings.
        folder: where; made if it is not there.
        resume: continue what the folder holds; begin when nothing was begun there.
        stopping: asks the training to stop after the current round.
        on_record: called with every round's record.
        on_start: called with the number of rounds that were already done.
        report: write the HTML report at the end.

    Returns:
        The result; ``result.reason`` is ``"interrupted"`` when it was stopped in order.

    Raises:
        CheckpointError: the folder holds another run, or cannot be read or written.
        ConfigError: the settings are not those of the run to resume.
    """
    stopping = stopping or Stopping()
    _prepare(config, folder, resume)
    with folder.lock() as free, logging_to(folder.log_file):
        if not free:
            raise CheckpointError(
                "another process runs in this folder", where=str(folder.path), remedy="wait for it, or stop it"
            )
        with _recorded(config, folder, resume):
            return _train(config, folder, resume, stopping, on_record, on_start, report)


def _prepare(config: RunConfig, folder: RunFolder, resume: bool) -> None:
    if folder.begun:
        if not resume:
            raise CheckpointError(
                "the folder already holds a run",
                where=str(folder.path),
                remedy="resume it (--resume), or choose another",
            )
        changed = [p for p in folder.config().differences(config) if p.split(".")[0] not in CHANGEABLE]
        if changed:
            raise ConfigError(
                f"{', '.join(changed)} differ from the run in the folder",
                where=str(folder.config_file),
                remedy=f"resume it as it was begun (atoll run {folder.path} --resume), or begin a new run",
            )
    elif folder.path.is_dir() and any(not p.name.startswith(".") for p in folder.path.iterdir()):
        raise CheckpointError(
            "the folder holds other files and no run", where=str(folder.path), remedy="choose an empty or a new folder"
        )
    folder.write_config(config)


@contextlib.contextmanager
def _recorded(config: RunConfig, folder: RunFolder, resume: bool) -> Iterator[None]:
    """Keep the manifest's status true, whatever happens."""
    now = _now()
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
        seed=config.seed,
        digest=config.digest(),
        versions=versions(),
    )
    try:
        yield
    except BaseException as error:
        status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else "failed"
        logger.error("the run ended early", extra={"error": f"{type(error).__name__}: {error}"})
        with contextlib.suppress(CheckpointError):  # the disk may be full: the first error is the one to tell
            folder.write_manifest(status=status, ended=_now(), error=_told(error))
        raise


def _told(error: BaseException) -> dict[str, Any]:
    if isinstance(error, AtollError):
        return {"kind": type(error).__name__, "what": error.what, "where": error.where, "remedy": error.remedy}
    return {"kind": type(error).__name__, "what": str(error), "where": None, "remedy": None}


def _train(
    config: RunConfig,
    folder: RunFolder,
    resume: bool,
    stopping: Stopping,
    on_record: Listener | None,
    on_start: Callable[[int], None] | None,
    report: bool,
) -> Result:
    from atoll.report import cite, summarise_data
    from atoll.simulation import simulate

    begin = time.perf_counter()
    job, islands = config.job()
    if not folder.data_file.exists():
        summarise_data(islands, folder.data_file)
    trackers = _trackers(config, folder)
    job = job.replace(callbacks=(*trackers, stopping))
    folder.write_manifest(citations=cite(job, islands))
    keeper = _Keeper(folder, on_record, on_start)
    logger.info("the run begins", extra={"run": folder.name, "engine": config.engine, "resume": resume})
    with _stopped_workers(stopping):
        result: Result = simulate(
            job, islands, engine=config.engine, seed=config.seed, workers=config.workers, folder=folder.checkpoints,
            resume=resume, errors=config.errors, on_record=keeper.record, on_restore=keeper.restore,
            devices=None if config.devices is None else config.devices.build("devices"),
        )  # fmt: skip
    _finish(folder, result, trackers, time.perf_counter() - begin)
    if report:
        _report(folder)
    return result


def _report(folder: RunFolder) -> None:
    """Write the page; a training is not lost because nothing can draw it."""
    from atoll.report import write_report

    try:
        write_report(folder)
    except MissingExtraError as error:
        logger.warning("no report was written", extra={"what": error.what, "remedy": error.remedy})


@contextlib.contextmanager
def _stopped_workers(stopping: Stopping) -> Iterator[None]:
    """A SIGTERM to the whole group ends the workers too: that is no error, and the last checkpoint counts."""
    try:
        yield
    except TaskError as error:
        if stopping.asked and error.where == "engine":
            raise KeyboardInterrupt from error
        raise


class _Keeper:
    """Writes the records of a run down, so that metrics.jsonl never holds a round twice."""

    def __init__(self, folder: RunFolder, on_record: Listener | None, on_start: Callable[[int], None] | None) -> None:
        self.folder = folder
        self.on_record = on_record
        self.on_start = on_start
        self._begun = False

    def restore(self, rows: list[dict[str, Any]]) -> None:
        """The run goes on from these records; what else the file holds never happened."""
        self.folder.write_metrics(rows)
        self._begun = True
        logger.info("the run goes on", extra={"rounds_done": len(rows)})
        if self.on_start is not None:
            self.on_start(len(rows))

    def record(self, row: dict[str, Any]) -> None:
        """One more round."""
        if not self._begun:
            self.restore([])
        self.folder.append_metrics(row)
        shown = {k: v for k, v in row.items() if isinstance(v, int | float | str)}
        logger.info("round", extra={"record": shown})
        if row.get("rejected_clients"):
            logger.warning("replies were rejected", extra={"round": row["round"], "clients": row["rejected_clients"]})
        if self.on_record is not None:
            self.on_record(row)


def _finish(folder: RunFolder, result: Result, trackers: Sequence[Any], seconds: float) -> None:
    write_model(folder.model_file, result.params)
    stopped = result.reason == INTERRUPTED
    # Seconds of an earlier part of a resumed run are kept.
    before = float(folder.manifest().get("seconds") or 0.0)
    folder.write_manifest(
        status=INTERRUPTED if stopped else "finished",
        ended=_now(),
        seconds=round(before + seconds, 3),
        reason=result.reason,
        rounds=len(result.metrics),
        model_round=result.round,
        engine=result.engine,
        bytes=result.bytes,
    )
    for tracker in trackers:
        if hasattr(tracker, "close"):
            tracker.close()
    logger.info("the run ends", extra={"run": folder.name, "reason": result.reason, "seconds": round(seconds, 3)})


def _trackers(config: RunConfig, folder: RunFolder) -> list[Any]:
    made = [part.build(f"trackers[{i}]") for i, part in enumerate(config.trackers)]
    for tracker in made:
        if hasattr(tracker, "attach"):
            tracker.attach(folder.path, config.plain())
    return made


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
