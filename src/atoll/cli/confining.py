"""How jobs are confined, from the command line."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from atoll.core.requests.policy import SitePolicy
    from atoll.runtime.confinement.confining import Confinement

__all__ = ["Confine", "NetworkOfJobs", "Scratch", "Show", "confined_as"]

_LOG = logging.getLogger("atoll.runtime")

Confine = Annotated[
    str,
    typer.Option(
        "--confine",
        envvar="ATOLL_CONFINE",
        help="Confine jobs in a sandbox: auto (where possible), always (or do not start), never.",
        metavar="MODE",
    ),
]
Show = Annotated[
    list[Path] | None,
    typer.Option("--show", help="File or folder that confined jobs may read, beside the data.", metavar="PATH"),
]
NetworkOfJobs = Annotated[bool, typer.Option("--network", help="Let confined jobs use this machine's network.")]

Scratch = Annotated[
    str | None,
    typer.Option(
        "--scratch", help="Most that a job may write in total, such as 200GiB; by default 64GiB.", metavar="SIZE"
    ),
]


def confined_as(
    mode: str,
    show: list[Path] | None,
    network: bool,
    policy: SitePolicy | None = None,
    *,
    scratch: str | None = None,
) -> Confinement:
    """Return how jobs are confined, and say it in the first line of the log.

    Args:
        mode: see ``Confine``.
        show: see ``Show``.
        network: see ``NetworkOfJobs``.
        policy: the site's.
        scratch: see ``Scratch``.

    Raises:
        ConfigError: jobs must be confined, and cannot be; or the size is none.
    """
    from atoll.runtime.confinement.confining import SCRATCH, confinement
    from atoll.runtime.scheduling.amounts import bytes_of

    most = SCRATCH if scratch is None else bytes_of(int(scratch) if scratch.isdigit() else scratch, "--scratch")

    insists = policy is not None and policy.confined
    where = "policy of the site" if insists else "--confine"
    made = confinement("always" if insists else mode, network=network, show=show or (), where=where)
    _LOG.log(logging.INFO if made.confined else logging.WARNING, "%s", made)
    return replace(made, scratch=most)
