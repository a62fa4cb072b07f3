"""A job whose parties tell each other what nobody else may read: shares by letter, a sealed value in a reply, and a conversation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import atoll
from atoll.core.requests.request import Mailboxes

CANARY = "-".join(["the", "canary", "sings", "in", "the", "mine"])  # as it stands in no file of the job
OPEN = "everybody may read this line"


@atoll.task
def deals(island: Any, message: Any) -> Any:
    """A number in two shares, one for each of two others, and the same again in a reply."""
    share = np.arange(8) * 1.5 + island.party.name.__len__()
    for sign, to in zip((1.0, -1.0), (n for n in message["names"] if n != island.name), strict=True):
        island.post(to, {"canary": CANARY, "share": sign * share + 7.0})
    return {"open": OPEN, "sealed": island.seal(message["names"][0], [CANARY, share])}


@atoll.task
def adds(island: Any, message: Any) -> Any:
    """The shares of both others; whoever is to die does so the first time, in the middle of the exchange."""
    dies = message["dies"]
    if dies and Path(dies, "dies-" + island.name).exists():
        Path(dies, "dies-" + island.name).unlink()
        os.kill(os.getpid(), 9)
    assert all(letter["canary"] == CANARY for letter in island.inbox.values())
    return sum(letter["share"] for letter in island.inbox.values())


@atoll.task
def opens(island: Any, message: Any) -> Any:
    """What others have sealed in their replies."""
    return sum(island.open(sender, sealed)[1] for sender, sealed in sorted(message.items()))


@atoll.task
async def asks(island: Any, peers: Any, rounds: int) -> Any:
    """One end of a conversation."""
    x = np.arange(3.0)
    for i in range(rounds):
        await peers.send("host", {"canary": CANARY, "x": x, "i": i})
        x = x + (await peers.recv("host"))["x"]
    return x


@atoll.task
async def hosts(island: Any, peers: Any, rounds: int) -> Any:
    """The other end."""
    for i in range(rounds):
        heard = await peers.recv("guest")
        assert (heard["i"], heard["canary"]) == (i, CANARY)
        await peers.send("guest", {"canary": CANARY, "x": np.tanh(heard["x"])})
    return rounds


async def whisper(fed: Any, names: list[str], rounds: int = 5, dies: str = "", again: bool = False) -> Any:
    """All three ways in which one party tells another something."""
    state = await fed.restore({"step": 0})
    if state["step"] == 0:
        first = await fed.exchange(fed.parties, deals, {"names": names})
        sealed = {r.name: v["sealed"] for r, v in zip(first.senders, first.values, strict=True)}
        state = {"step": 1, "mail": first.mail.sealed(), "sealed": sealed}
        await fed.checkpoint(state)
    mail = Mailboxes(state["mail"])
    second = await fed.exchange(fed.parties, adds, {"dies": dies}, mail=mail, at="adds")
    if again:
        await fed.exchange(fed.parties, adds, {"dies": ""}, mail=mail, at="adds again")
    opened = await fed.ask(names[0], opens, state["sealed"], at="opens")
    roles = {"guest": (names[0], asks.with_args(rounds=rounds)), "host": (names[1], hosts.with_args(rounds=rounds))}
    for i in range(2):
        told = await fed.session(roles, at=i)
    shares = {party.name: value for party, value in zip(second.senders, second.values, strict=True)}
    meters = {k: v for k, v in fed.bytes().items() if k.startswith(("bytes", "messages"))}
    return {
        "shares": [shares[name].tolist() for name in names],
        "opened": opened.tolist(),
        "guest": told["guest"].tolist(),
        "bytes": meters,
    }
