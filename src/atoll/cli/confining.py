"""How jobs are confined, from the command line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from atoll.core.requests.policy import SitePolicy
    from atoll.runtime.confinement.confining import Confinement

__all__ = ["Confine", "NetworkOfJobs", "Show", "confined_as"]

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


def confined_as(mode: str, show: list[Path] | None, network: bool, policy: SitePolicy | None = None) -> Confinement:
    """Return how jobs are confined, and say it in the first line of the log.

    Args:
        mode: see ``Confine``.
        show: see ``Show``.
        network: see ``NetworkOfJobs``.
        policy: the site's.

    Raises:
        ConfigError: jobs must be confined, and cannot be.
    """
    from atoll.runtime.confinement.confining import confinement

    insists = policy is not None and policy.confined
    where = "policy of the site" if insists else "--confine"
    made = confinement("always" if insists else mode, network=network, show=show or (), where=where)
    _LOG.log(logging.INFO if made.confined else logging.WARNING, "%s", made)
    return made
