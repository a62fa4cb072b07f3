"""The real world: the same program between organisations, over mutual TLS.

Two processes of each organisation's own hold keys and network (the fronts); every job has a process of its own at the server and at each
site. `docs/deploy.md` is the way in; ``atoll poc`` shows all of it on one machine. What a program of one's own may use:

* `Kit`, `ProjectConfig` (and `atoll.runtime.provision.provision`): who takes part, and what each of them holds.
* `JobConfig`, `load_job`: what is to be done.
* `Server`, `Site`, `Poc`: the fronts, and all of them on one machine.
* `Network`, `Resident`: the two halves of the engine, over any links.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fronts.poc import Poc
    from .fronts.server import Server
    from .fronts.site import Site
    from .jobs.spec import JobConfig, load_job
    from .network import Network, Resident
    from .provision import Kit, ProjectConfig

__all__ = [
    "JobConfig",
    "Kit",
    "Network",
    "Poc",
    "ProjectConfig",
    "Resident",
    "Server",
    "Site",
    "load_job",
]

_FROM = {
    "JobConfig": "jobs.spec",
    "Kit": "provision",
    "Network": "network",
    "Poc": "fronts.poc",
    "ProjectConfig": "provision",
    "Resident": "network",
    "Server": "fronts.server",
    "Site": "fronts.site",
    "load_job": "jobs.spec",
}


def __getattr__(name: str) -> Any:
    """Load a part when it is used: fronts need the extra ``net``, the engine does not."""
    if name in _FROM:
        return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
