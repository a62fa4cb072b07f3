"""``python -m atoll.testing.hostile site KIT --data FILE ...``: the command line of Atoll, whose site misbehaves in jobs that are named after an attack."""

from __future__ import annotations

from atoll.cli import main
from atoll.runtime.daemon import job_start

job_start.MODULE = "atoll.testing.hostile.worker"

if __name__ == "__main__":
    main()
