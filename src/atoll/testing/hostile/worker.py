"""The job process of a hostile site: that of every site, behind a `Mouth`. The job's name says which attack it carries out."""

from __future__ import annotations

from typing import Any

from atoll.runtime.worker import process
from atoll.runtime.worker.at_site import serve_job

from .attack import ATTACKS, Mouth

__all__ = ["start"]


def start() -> None:
    """Carry out the order of the command line, as `atoll.runtime.worker.process.start` does."""
    honest = serve_job

    async def serve(channel: Any, job: Any, *rest: Any, **more: Any) -> None:
        attack = ATTACKS.get(job.name)
        await honest(channel if attack is None else Mouth(channel, attack), job, *rest, **more)

    setattr(process, "serve_job", serve)  # noqa: B010 - a name that the module imports
    process.start()


if __name__ == "__main__":
    start()
