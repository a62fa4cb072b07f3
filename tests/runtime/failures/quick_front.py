"""``quick_front.py SETTINGS server|site KIT ...``: the ``atoll`` command with a line that notices silence sooner, and perhaps another clock.

SETTINGS is JSON: any of the numbers of ``atoll.runtime.line.Settings``, and ``skew``, seconds that this process's clock is ahead.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time

from atoll.runtime.fronts.child import die_with_parent


def main() -> None:
    """Become the front."""
    numbers = json.loads(sys.argv.pop(1))
    if not die_with_parent(int(os.environ.get("TEST_PARENT", os.getppid()))):
        sys.exit("the test has ended")
    ahead, clock = numbers.pop("skew", 0.0), time.time
    if ahead:
        time.time = lambda: clock() + ahead
    from atoll.runtime.fronts import server, site

    for module in (server, site):
        module.Settings = functools.partial(module.Settings, **numbers)
    from atoll.cli import main as atoll

    sys.argv[0] = "atoll"
    atoll()


if __name__ == "__main__":
    main()
