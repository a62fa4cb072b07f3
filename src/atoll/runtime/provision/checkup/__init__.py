"""``atoll doctor KIT``: checks everything between a kit and its work, one line per step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atoll.runtime.identity import SITES
from atoll.runtime.provision.kit import Kit

from .finding import Finding
from .machine import check_confinement, check_disk, check_handles, check_own_port
from .paper import check_authority, check_paper
from .reach import check_reach

__all__ = ["Finding", "examine"]


def examine(kit: Kit, work: Path, patience: float = 5.0) -> Iterator[Finding]:
    """Check everything, in the order in which it is needed.

    Args:
        kit: the kit to check.
        work: the folder that the party will work in.
        patience: seconds for each try on the network.
    """
    paper = list(check_paper(kit))
    yield from paper
    yield check_disk(work)
    if kit.role in ("server", *SITES):
        yield check_confinement(kit)
    if kit.role == "server":
        yield check_authority(kit, work)
        yield check_own_port(kit)
        yield check_handles(kit)
    elif any(finding.state == "problem" and finding.step in ("files", "key") for finding in paper):
        yield Finding.skip_step("server", "not tried: this kit cannot prove who it is")
    else:
        yield from check_reach(kit, patience)
