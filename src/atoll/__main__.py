"""``python -m atoll``: the command, where the scripts folder is not on the path."""

from __future__ import annotations

from atoll.cli import main

if __name__ == "__main__":
    main()
