"""The real world: the same program between organisations, over mutual TLS.

The daemons, long-lived processes at the server and at each site, hold the keys and the network. Each job runs in a
process of its own at the server and at each site. `docs/deploy.md` is where to start; ``atoll poc`` shows all of it on
one machine. Your own programs may use:

* `Kit`, `ProjectConfig` (and `atoll.runtime.provision.provision`): who takes part, and what each party holds.
* `JobConfig`, `load_job`: what a job does.
* `Server`, `Site`, `Poc`: the daemons, and all of them on one machine.
* `Network`, `SiteEngine`: the two halves of the engine, over any links.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
