"""Server and sites on hosts of their own, as far as the network can tell: cables pulled, packets swallowed, lost and late."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENTER = ["unshare", "--user", "--map-root-user", "--net"]
PATHS = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
TRIAL = "ip link add try0 type veth peer name try1 && tc qdisc add dev try0 root tbf rate 1mbit burst 16kb limit 24kb && unshare --net true"


def why_not() -> str:
    """What this machine lacks for network namespaces; nothing if it lacks nothing."""
    try:
        done = subprocess.run(
            [*ENTER, "sh", "-c", TRIAL], env={**os.environ, "PATH": PATHS}, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no network namespaces here: {error}"
    return "" if done.returncode == 0 else f"no network namespaces here: {done.stderr.strip()[:200]}"


def test_hosts_that_lose_each_other_go_on(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(f"{reason}; test_proxied.py does the same through a proxy")
    play = [sys.executable, str(Path(__file__).with_name("apart.py")), str(tmp_path)]
    done = subprocess.run(
        [*ENTER, *play], env={**os.environ, "PATH": PATHS}, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    assert "packets lost" in done.stdout
