"""Run a configuration in a folder on this machine, so that you can kill it at any moment and resume it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import TaskError

from .config import DEFAULT_JOB, RunConfig, to_job
from .folder import RunFolder
from .kept import Listener, keeping
from .log import logger
from .policy import policies_of
from .stopping import Stopping

if TYPE_CHECKING:
    from atoll.simulation import Result

__all__ = ["execute", "result_of"]


def execute(
    config: RunConfig,
    folder: RunFolder,
    *,
    resume: bool = False,
    stopping: Stopping | None = None,
    on_record: Listener | None = None,
    on_start: Callable[[int], None] | None = None,
    report: bool = True,
    islands: Any = None,
) -> Result:
    """Run a configuration, and keep everything in the run folder.

    Args:
        config: the settings.
        folder: the run folder; created if it does not exist.
        resume: continue the run in the folder, or begin one if there is none.
        stopping: asks the run to stop after the current round.
        on_record: called with each round's record.
        on_start: called with the number of rounds that were already done.
        report: whether to write the HTML report at the end.
        islands: the configuration's data, if they are loaded already.

    Returns:
        The result; ``result.reason`` is ``"interrupted"`` if it was stopped in order.

    Raises:
        CheckpointError: the folder contains another run, or cannot be read or written.
        ConfigError: the settings differ from those of the run to resume.
    """
    from atoll.core.requests.policy import AllowAll
    from atoll.core.requests.results import Free
    from atoll.simulation import make_engine, simulated

    from .spending import spending_of

    stopping = stopping or Stopping()
    with keeping(config, folder, resume=resume, on_record=on_record, on_start=on_start) as kept:
        job, islands = to_job(config) if islands is None else (config.made(), islands)
        kept.begin(job, islands, stopping)
        logger.info("the run begins", extra={"run": folder.name, "engine": config.engine, "resume": resume})
        ledger = None if config.ledger is None else Path(config.ledger)
        spends = spending_of(folder.name, ledger, folder.checkpoints, resume=resume)
        with _stopped_workers(stopping):
            result, _ = simulated(
                job, islands, engine=make_engine(config.engine, config.workers), seed=config.seed, folder=folder.checkpoints, results=folder.results,
                spends=spends, resume=resume, errors=config.errors, on_record=kept.record, on_restore=kept.restore, shown=folder.path,
                cost=Free() if config.devices is None else config.devices.build("devices"),
                policy=policies_of(config.policy, config.policies, islands.names) or AllowAll(),
            )  # fmt: skip
        kept.finish(result)
        if report:
            kept.report()
        return result


@contextlib.contextmanager
def _stopped_workers(stopping: Stopping) -> Iterator[None]:
    """Let a SIGTERM to the whole process group end the workers without an error; the last checkpoint counts."""
    try:
        yield
    except TaskError as error:
        if stopping.asked and error.where == "engine":
            raise KeyboardInterrupt from error
        raise


# The results of a run in one small record.


def result_of(folder: RunFolder) -> dict[str, Any]:
    """The results of a run, read from its folder; with ``"result"`` for a program whose result is short and plain."""
    manifest, rows = folder.manifest(), folder.metrics()

    def total(way: str) -> int:
        if rows and any(way in row for row in rows):
            return sum(int(row.get(way) or 0) for row in rows)
        return int((manifest.get("bytes") or {}).get(way) or 0)  # the records of a program may lack it

    return {
        "run": folder.name,
        "folder": str(folder.path),
        "status": manifest["status"],
        "reason": manifest.get("reason"),
        "rounds": len(rows),
        "job": folder.settings().get("job", DEFAULT_JOB),
        **folder.reached(),
        "rejected": sum(int(row.get("rejected") or 0) for row in rows),
        "bytes_up": total("bytes_up"),
        "bytes_down": total("bytes_down"),
        "seconds": manifest.get("seconds"),
        "engine": manifest.get("engine"),
        "devices": manifest.get("devices"),
        "model": str(folder.model_file) if folder.model_file.exists() else None,
        "report": str(folder.report_file) if folder.report_file.exists() else None,
        **({"notices": manifest["notices"]} if manifest.get("notices") else {}),
        **({"result": manifest["result"]} if "result" in manifest else {}),
    }
