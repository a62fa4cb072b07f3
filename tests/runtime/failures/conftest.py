"""What ``make test`` leaves out of these tests.

Some kills and stuck processes are tried by ``make test``. More kills, and faults of networks, disks and clocks, take minutes of processor time:
``make faults`` tries them too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ALWAYS = {
    "test_kill_nine.py",
    "test_large_messages.py",
    "test_spending.py",
    "test_standby.py",
    "test_stuck.py",
    "test_watching.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the long ones to ``make faults``. Processes that tests look for and kill are no forks: each has another beside it."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.anew)
    if os.environ.get("ATOLL_FAULTS"):
        return
    for item in items:
        if item.path.parent == here and item.path.name not in ALWAYS:
            item.add_marker(pytest.mark.skip(reason="takes minutes of processor time: make faults"))
