"""Write Atoll's own batch orders into a workload's plan, so that every peer follows them.

A client's mini-batches in Atoll are keyed by (seed, task, round, client); the other peers take any order. So the plan
takes Atoll's order: a task with the name of its local training, requested in the rounds of the schedule, returns its
random key.

    python -m peers.atoll_order WORKLOAD
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from atoll.core.algebra.rng import shuffles
from atoll.core.requests.task import Task
from atoll.core.world import World
from atoll.simulation import make_engine, run_in

from peers.atoll_bench import SEED, islands
from workloads import load, prepare


def tell(island: Any, message: Any) -> dict[str, str]:
    """Return the island's random key, as text because it has 64 bits."""
    return {"key": str(island.rng.key)}


def main() -> None:
    """Replace `order.npy` of the workload named."""
    plan = load(sys.argv[1])
    w = plan.workload
    task = Task("atoll.torch:train", tell)

    async def program(fed: Any) -> list[list[int]]:
        keys = []
        for number, row in enumerate(plan.schedule, 1):
            replies = await fed.ask_all(fed.parties[row], task, {}, at=(number, "train"))
            keys.append([int(reply["key"]) for reply in replies])
        return keys

    world = World(islands(plan), make_engine("inline"), seed=SEED)
    world.registry[task.name] = task
    keys, _ = run_in(world, program)
    order = np.stack([shuffles(np.array(row, np.uint64), w.epochs, w.examples) for row in keys])
    folder = prepare(w.name)
    for stale in folder.glob("reference_*.npz"):
        stale.unlink()
    np.save(folder / "order.npy", order.astype(np.int16))
    (folder / "order_by_atoll").touch()


if __name__ == "__main__":
    main()
