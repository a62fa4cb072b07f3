"""Count what written pages state, for ``atoll reproduce --list``: ``python -m atoll_papers papers/docs`` rewrites ``tally.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from atoll.reproduce import read_tallies

__all__: list[str] = []

if __name__ == "__main__":
    text = json.dumps(read_tallies(Path(sys.argv[1])), indent=2)
    Path(__file__).with_name("tally.json").write_text(text + "\n", encoding="utf-8")
