"""A program whose messages are long enough to be cut in the middle, and which remembers at the sites."""

BULK = """
import numpy as np

import atoll


@atoll.task
def step(island, message):
    state = island.state if island.state is not None else {"speed": np.zeros(message["size"])}
    island.state = {"speed": 0.9 * state["speed"] + island.rng.generator().normal(size=message["size"])}
    return {"sum": atoll.Sum(message["x"] * 0.5 + island.state["speed"])}


async def walk(fed, rounds=20, size=40_000):
    state = await fed.restore({"x": np.zeros(1), "round": 0})
    while state["round"] < rounds:
        number = state["round"] + 1
        total = await fed.sum(fed.parties, step, {"x": state["x"], "size": size}, at=number)
        state = {"x": total["sum"], "round": number}
        fed.record({"round": number})
        await fed.checkpoint(state)
    return {"x": state["x"]}
"""
