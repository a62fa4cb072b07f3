"""Programs inside programs: scopes, and parties that are servers to other parties."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np

from .. import message as M
from ..algebra.tree import Tree
from ..errors import ConfigError
from ..persistence.checkpoint import within
from ..requests.party import Parties
from .scope import Scope

__all__ = ["end", "nest", "scope"]

Own = TypeVar("Own", bound=Scope)
"""The program's own kind of scope: its federation."""


def scope(fed: Own, name: str, parties: Parties | None) -> Own:
    """See ``Federation.scope``."""
    if not name or "/" in name or name.startswith("nest:"):
        raise ConfigError(f"scope name {name!r}", remedy="use a name without '/', which does not begin with 'nest:'")
    child = fed.member(f"{fed.slot}/{name}")
    child.settle_at(fed.parties if parties is None else parties, fed.hub, child.slot)
    return child


async def nest(fed: Scope, name: str, program: Callable[..., Awaitable[Any]], parties: Parties, message: Tree) -> Any:
    """See ``Federation.nest``."""
    position = np.array([fed.world.roster.position(name)], dtype=np.int64)
    count = fed.counts[f"nest:{name}"]
    fed.counts[f"nest:{name}"] += 1
    home = f"{fed.home}/nest:{name}"  # the members' private state is kept between visits
    slot = f"{fed.slot}/nest:{name}/{count}"
    if slot not in fed.world.checkpoints.slots:
        fed.family.pop(slot, None)
    child = fed.member(slot)
    child.settle_at(parties, name, home)
    child.nested = True
    down = M.nbytes(message)
    fed.meter.down(fed.hub, position, down)
    transfer, clock = fed.world.cost.transfer, fed.world.clock
    await clock.sleep_until(clock.now() + transfer(fed.hub, name, down))
    try:
        reply = await program(child, message)
    except Exception:
        await end(fed, child)
        raise
    up = M.nbytes(reply)
    fed.meter.up(fed.hub, position, np.array([up], dtype=np.int64))
    await clock.sleep_until(clock.now() + transfer(name, fed.hub, up))
    await end(fed, child)
    return reply


async def end(fed: Scope, child: Scope) -> None:
    """End a program inside this one: keep what it metered, and what its members keep between visits.

    The states of its own scopes are removed now: a later visit has new scopes, and after a crash this one runs again from the checkpoint. That
    checkpoint is removed with the next one of the surrounding program.
    """
    fed.homes |= {home for home in (child.home, *child.homes) if not within(home, child.slot)}
    await fed.world.engine.drop(child.slot)
    chains = fed.world.checkpoints.chains
    for home in [home for home in chains if within(home, child.slot)]:
        del chains[home]
    for member in [child, *child.below()]:
        fed.meter.absorb(member.meter)
        fed.traffic.draws.extend(member.traffic.draws)
        del fed.family[member.slot], fed.world.traffics[member.slot]
    fed.world.checkpoints.end(fed.slot, child.slot)
