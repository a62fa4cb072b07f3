"""A program that uses every verb of a federation, for laws about all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atoll.core.federation.federation import Federation
from atoll.core.federation.reducer import TreeReducer

from . import tasks as K

__all__ = ["SIZE", "every_verb", "letters"]

SIZE = 7
"""Clients of the population that it runs with."""


async def every_verb(fed: Federation) -> Any:
    """Run a program that uses all verbs, with a checkpoint after each."""
    everyone = fed.parties
    state = await fed.restore({})
    steps: dict[str, Callable[[], Any]] = {
        "ask": lambda: fed.ask("client-2", K.echo.with_args(tag="one"), {"x": [1, "two", b"3"]}),
        "hub": lambda: fed.ask("hub", K.echo, None),
        "ask_all": lambda: _values(fed.ask_all(everyone[::-1], K.echo, np.arange(3), deadline=4.5)),
        "sum": lambda: _sums(fed.sum(everyone, K.scale, {"w": np.arange(3.0) - 1})),
        "again": lambda: _sums(fed.sum(everyone[2:], K.scale, {"w": np.ones(3)}, uplink=[K.Dither(0.5)])),
        "tree": lambda: _sums(fed.sum(everyone, K.scale, {"w": np.ones(2)}, reducer=TreeReducer(2))),
        "parts": lambda: _sums(fed.sum(everyone, K.count, {"round": 1})),
        "exchange": lambda: letters(fed),
        "relay": lambda: fed.relay(everyone[1:4], K.pass_on, []),
        "session": lambda: fed.session({"caller": ("client-0", K.caller), "responder": ("client-3", K.responder)}),
        "flight": lambda: _flight(fed),
        "scope": lambda: _sums(fed.scope("inner", everyone[:3]).sum(everyone[:3], K.count, {"round": 2})),
        "nest": lambda: fed.nest("hub", _nested, everyone[3:], {"w": np.ones(2)}),
        "release": lambda: _runs(fed),
    }
    for name, step in steps.items():
        if name not in state:
            state = {**state, name: await step()}
            fed.record({"step": name})
            await fed.checkpoint(state)
    return state


async def _values(asked: Any) -> Any:
    return (await asked).by_name()


async def _sums(asked: Any) -> Any:
    got = await asked
    values = {k: [p.value for p in v] if isinstance(v, list) else v for k, v in got.value.items()}
    return {"value": values, "n": got.n, "weight": got.weight, "who": got.senders.names}


async def letters(fed: Federation) -> Any:
    """Let every party write letters; deliver those of some."""
    names = fed.parties.names
    first = await fed.exchange(fed.parties, K.letters, names[:4])
    mail = first.mail.only_from(set(names[1:6]))
    second = await fed.exchange(fed.parties[:4], K.gather, mail=mail)
    return {"read": second.by_name(), "notes": first.notes, "routes": mail.routes}


async def _flight(fed: Federation) -> Any:
    await fed.send(fed.parties, K.count, {"round": 3}, version=3)
    await fed.send(fed.parties[:2], K.echo, {"round": 4}, version=4)
    first = await fed.arrivals(count=3)
    values = await first.results()
    rest = await fed.arrivals(count=SIZE + 2)
    combined = await _sums(fed.combine([h for h in rest.handles() if h.version == 3]))
    others = [await h.result() for h in rest.handles() if h.version == 4]
    return {"first": [sorted(v) for v in values], "when": first.time, "rest": combined, "others": others}


async def _nested(edge: Federation, message: Any) -> Any:
    return await _sums(edge.sum(edge.parties, K.scale, message))


async def _runs(fed: Federation) -> Any:
    return [reply["runs"] for reply in await fed.ask_all(fed.parties, K.release)]
