"""A program with a key holder: masks that it posts, and sums of what it is posted."""

from __future__ import annotations

from typing import Any

import numpy as np

import atoll

HOLDER = "key-holder"


@atoll.task
def key(island: Any, names: list[str]) -> None:
    """A word for everybody, and a memory of it."""
    island.state = {"asked": (island.state or {"asked": 0})["asked"] + 1}
    for name in names:
        island.post(name, "CANARY of the key holder")


@atoll.task
def tell(island: Any, die: str) -> None:
    """A number for the key holder alone."""
    assert island.inbox[HOLDER] == "CANARY of the key holder"
    island.post(HOLDER, np.int64(sum(island.data)))


@atoll.task
def add(island: Any, number: int) -> dict[str, Any]:
    """What the key holder was told, and what it holds itself."""
    return {"sum": int(sum(int(n) for n in island.inbox.values())), "own": island.data, **island.state}


async def total(fed: Any) -> Any:
    """Everybody's numbers, added up by the key holder."""
    holder, everyone = fed.parties.named(HOLDER), fed.parties
    words = await fed.exchange(holder, key, list(everyone.names))
    told = await fed.exchange(everyone, tell, "", mail=words.mail)
    found = await fed.exchange(holder, add, 0, mail=told.mail)
    fed.record({"sum": found.values[0]["sum"]})
    await fed.checkpoint({"done": True})
    return found.values[0]


total.others = {HOLDER: "key holder"}  # type: ignore[attr-defined]


async def nobody(fed: Any) -> Any:
    """Asks a party that no site plays."""
    return (await fed.ask_all(fed.parties.named(HOLDER), add, 0)).values


nobody.others = total.others  # type: ignore[attr-defined]
