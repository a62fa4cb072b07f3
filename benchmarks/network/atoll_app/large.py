"""A large model goes to the sites and back; its server keeps one model, and the sum."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from atoll.core.requests.task import task


@task
def stub(island, message):
    """Raise: stub sites only pretend to run it; see stub_sites.py."""
    raise RuntimeError("this benchmark needs stub sites")


def peak() -> dict[str, int]:
    """Return the peak memory of this process in bytes, and the bytes in files now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {k: int(v.split()[0]) * 1024 for k, v in (line.split(":") for line in lines) if k in ("VmHWM", "RssFile")}


async def program(fed, rounds, layers, numbers):
    """Average ``rounds`` times; return the cost."""
    before = peak()
    model = {f"layer-{i:03d}": np.ones(numbers // layers, dtype=np.float32) for i in range(layers)}
    averaged_at = []
    for _ in range(rounds):
        got = await fed.sum(fed.parties, stub, model)
        model = got.value.pop("model")
        averaged_at.append(time.perf_counter())
    mean = (len(fed.parties) + 1) / 2
    error = float(max(max(leaf.max() - mean, mean - leaf.min()) for leaf in model.values()))  # without its own arrays
    return {"averaged_at": averaged_at, "worst_error": error, "before": before, **peak()}
