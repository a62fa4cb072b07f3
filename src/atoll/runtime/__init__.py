"""The real world: the same program between organisations, over mutual TLS.

The daemons, long-lived processes at the server and at each site, hold the keys and the network. Each job runs in a
process of its own at the server and at each site. `docs/deploy.md` is where to start; ``atoll poc`` shows all of it on
one machine. Your own programs may use:

* `Kit`, `ProjectConfig` (and `atoll.runtime.provision.provision`): who takes part, and what each party holds.
* `JobConfig`, `load_job`: what a job does.
* `Server`, `Site`, `Poc`: the daemons, and all of them on one machine.
* `Network`, `SiteEngine`: the two halves of the engine, over any links.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.poc import Poc
    from .jobs.spec import JobConfig, load_job
    from .network import Network, SiteEngine
    from .provision import Kit, ProjectConfig
    from .server.server import Server
    from .site.site import Site

__all__ = [
    "JobConfig",
    "Kit",
    "Network",
    "Poc",
    "ProjectConfig",
    "Server",
    "Site",
    "SiteEngine",
    "load_job",
]

_FROM = {
    "JobConfig": "jobs.spec",
    "Kit": "provision",
    "Network": "network",
    "Poc": "client.poc",
    "ProjectConfig": "provision",
    "SiteEngine": "network",
    "Server": "server.server",
    "Site": "site.site",
    "load_job": "jobs.spec",
}


def __getattr__(name: str) -> Any:
    """Load a part when it is used: daemons need the extra ``net``, the engine does not."""
    if name in _FROM:
        return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
