"""``quick_front.py SETTINGS server|site KIT ...``: the ``atoll`` command, noticing silence sooner.

SETTINGS is JSON: any of the numbers of ``atoll.runtime.line.Settings``, and ``answer_within``, the seconds that a site has to answer an offer.
"""

from __future__ import annotations

import functools
import json
import os
import sys

from atoll.runtime.daemon.child import die_with_parent


def main() -> None:
    """Become the front."""
    numbers = json.loads(sys.argv.pop(1))
    if not die_with_parent(os.getppid()):
        sys.exit("the test has ended")
    from atoll.runtime.server import server
    from atoll.runtime.site import site

    scheduling = {name: numbers.pop(name) for name in ("answer_within",) if name in numbers}
    server.Scheduler = functools.partial(server.Scheduler, **scheduling)
    for module in (server, site):
        module.Settings = functools.partial(module.Settings, **numbers)
    from atoll.cli import main as atoll

    sys.argv[0] = "atoll"
    atoll()


if __name__ == "__main__":
    main()
