"""``quick_front.py SETTINGS server|site KIT ...``: the ``atoll`` command with a line that notices silence sooner.

SETTINGS is JSON: any of the numbers of ``atoll.runtime.line.Settings``.
"""

from __future__ import annotations

import functools
import json
import os
import sys

from atoll.runtime.fronts.child import die_with_parent


def main() -> None:
    """Become the front."""
    numbers = json.loads(sys.argv.pop(1))
    if not die_with_parent(os.getppid()):
        sys.exit("the test has ended")
    from atoll.runtime.fronts import server, site

    for module in (server, site):
        module.Settings = functools.partial(module.Settings, **numbers)
    from atoll.cli import main as atoll

    sys.argv[0] = "atoll"
    atoll()


if __name__ == "__main__":
    main()
