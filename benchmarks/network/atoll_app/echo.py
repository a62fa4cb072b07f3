"""What the server and the clients do with the model."""

from __future__ import annotations

import time

import numpy as np
from atoll.core.algebra.aggregate import Mean
from atoll.core.requests.task import task


@task
def echo(island, message):
    """Send the model back with a number added, different at every client."""
    k = int(island.name.rpartition("-")[2]) - 1
    step = np.float32(1 + (k - 4.5) / 8)
    return {"model": Mean({name: leaf + step for name, leaf in message.items()}, examples=1.0)}


async def program(fed, rounds, layers, numbers):
    """Average ``rounds`` times; return when."""
    start = np.random.default_rng(0).normal(size=numbers).astype(np.float32)
    model = {f"layer-{i}": part for i, part in enumerate(np.split(start, layers))}
    averaged_at = []
    for _ in range(rounds):
        model = (await fed.sum(fed.parties, echo, model))["model"]
        averaged_at.append(time.perf_counter())
    error = float(np.abs(np.concatenate(list(model.values())) - start - rounds).max())
    return {"averaged_at": averaged_at, "worst_error": error}
