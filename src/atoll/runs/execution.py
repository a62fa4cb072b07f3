"""Run a configuration in a folder on this machine, so that it can be killed at any moment and resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from atoll.core.errors import TaskError

from .config import RunConfig, to_job
from .folder import RunFolder
from .kept import Listener, keeping
from .log import logger
from .policy import policies_of
from .stopping import Stopping

if TYPE_CHECKING:
    from atoll.simulation import Result

__all__ = ["execute"]


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
    """Run it, and keep everything in the run's folder.

    Args:
        config: the settings.
        folder: where; made if it is not there.
        resume: continue what the folder holds; begin when nothing was begun there.
        stopping: asks the run to stop after the current round.
        on_record: called with every round's record.
        on_start: called with the number of rounds that were already done.
        report: write the HTML report at the end.

    Returns:
        The result; ``result.reason`` is ``"interrupted"`` when it was stopped in order.

    Raises:
        CheckpointError: the folder holds another run, or cannot be read or written.
        ConfigError: the settings are not those of the run to resume.
    """
    from atoll.simulation import simulate

    stopping = stopping or Stopping()
    with keeping(config, folder, resume=resume, on_record=on_record, on_start=on_start) as kept:
        job, islands = to_job(config)
        kept.begin(job, islands, stopping)
        logger.info("the run begins", extra={"run": folder.name, "engine": config.engine, "resume": resume})
        with _stopped_workers(stopping):
            result: Result = simulate(
                job, islands, engine=config.engine, seed=config.seed, workers=config.workers, folder=folder.checkpoints, results=folder.results,
                resume=resume, errors=config.errors, on_record=kept.record, on_restore=kept.restore,
                devices=None if config.devices is None else config.devices.build("devices"),
                policy=policies_of(config.policy, config.policies, islands.names),
            )  # fmt: skip
        kept.finish(result)
        if report:
            kept.report()
        return result


@contextlib.contextmanager
def _stopped_workers(stopping: Stopping) -> Iterator[None]:
    """A SIGTERM to the whole group ends the workers too: that is no error, and the last checkpoint counts."""
    try:
        yield
    except TaskError as error:
        if stopping.asked and error.where == "engine":
            raise KeyboardInterrupt from error
        raise
