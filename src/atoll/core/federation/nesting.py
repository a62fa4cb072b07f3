"""Programs inside programs: scopes, and parties that are servers to other parties."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from .. import message as M
from ..algebra.tree import Tree
from ..errors import ConfigError
from ..job import Job, Prepared, as_job, members_of, prepared
from ..persistence.checkpoint import within
from ..requests.party import Parties, among
from ..requests.policy import admit_job
from ..world import RunningJob
from .scope import Scope

__all__ = ["end", "nest", "run", "scope"]

Own = TypeVar("Own", bound=Scope)
"""The program's own kind of scope: its federation."""


def scope(fed: Own, name: str, parties: Parties | None) -> Own:
    """See ``Federation.scope``."""
    _require_name(name)
    child = fed.member(f"{fed.slot}/{name}")
    child.settle_at(fed.parties if parties is None else parties, fed.hub, child.slot)
    child.opened = True
    return child


def _require_name(name: Any) -> None:
    if not isinstance(name, str) or not name or "/" in name or name.startswith("nest:"):
        raise ConfigError(f"scope name {name!r}", remedy="use a name without '/', which does not begin with 'nest:'")


async def run(fed: Scope, given: Any, parties: Parties | Sequence[str] | None, name: str) -> Any:
    """See ``Federation.run``."""
    _require_name(name)
    slot, world = f"{fed.slot}/{name}", fed.world
    if slot in world.running or (slot in fed.family and fed.family[slot].opened):
        raise ConfigError(
            f"the scope {name!r} is used by a second job",
            where=fed.slot,
            remedy="give each job a scope of its own: its requests, random numbers and checkpoints are named by it",
        )
    job = as_job(given)
    chosen = _members(fed, parties, job)
    _require_helpers(fed, job, len(chosen), name)
    admit_job(world.policy, job.names())
    ready = _ready(fed, given, job, chosen, slot)
    world.running[slot] = RunningJob(slot)
    await _begin_afresh(fed, slot)
    child = fed.member(slot)
    child.settle_at(chosen, fed.hub, slot)
    child.kept = child.opened = True  # whatever it leaves is in its own checkpoints, or made again
    return ready.outcome(await ready.program(child))


def _members(fed: Scope, parties: Parties | Sequence[str] | None, job: Job) -> Parties:
    """The parties of a job, in the order of the federation.

    Raises:
        ConfigError: one is not of the federation, is named twice, or there are none.
    """
    if parties is None:
        return fed.parties
    where = f"fed.run({job.title})"
    if isinstance(parties, Parties):
        if parties.roster is not fed.world.roster:
            raise ConfigError("these parties are of another federation", where=where, remedy="choose among fed.parties")
        chosen = parties
    elif isinstance(parties, str) or not all(isinstance(one, str) for one in parties):
        raise ConfigError(f"parties={parties!r}", where=where, remedy="give fed.parties, some of them, or their names")
    else:
        chosen = fed.parties.named(*parties)
    there = among(chosen.positions, fed.parties.positions)
    if not there.all():
        raise ConfigError(
            f"{chosen[int(np.argmin(there))].name!r} is not one of this federation's parties",
            where=where,
            remedy="choose among fed.parties; a helper is not asked as a client",
        )
    unique = np.unique(chosen.positions)
    if len(unique) < len(chosen) or not len(chosen):
        what = f"{len(chosen) - len(unique)} parties are named twice" if len(chosen) else "it has no parties"
        raise ConfigError(what, where=where, remedy="name each party once, and at least one")
    return Parties(fed.world.roster, unique)


def _require_helpers(fed: Scope, job: Job, clients: int, name: str) -> None:
    there = fed.world.roster.others
    for helper, role in job.others(clients).items():
        if there.get(helper) != role:
            what = "nobody plays it here" if helper not in there else f"it is {there[helper]} here"
            raise ConfigError(
                f"{job.title} needs {helper!r} as {role}, and {what}",
                where=f"fed.run, scope {name!r}",
                remedy=f'declare the job, program.jobs = {{"{name}": job}}, or the helper: program.others = {{"{helper}": "{role}"}}',
            )


def _ready(fed: Scope, given: Any, job: Job, chosen: Parties, slot: str) -> Prepared:
    """The job, prepared for its parties: as the program has declared it, or now.

    Raises:
        ConfigError: the program has declared another job for the scope, or other organisations have not been told of this one.
    """
    world = fed.world
    population = np.arange(len(world.roster.names))
    names = None if np.array_equal(chosen.positions, population) else tuple(chosen.names)
    declared = world.jobs.get(slot)
    if declared is not None:
        own = declared.job is job or getattr(declared.job, "program", None) is given
        if not own or sorted(declared.parties or world.roster.names) != sorted(names or world.roster.names):
            raise ConfigError(
                f"the program has declared {'another job' if not own else 'other parties'} for this scope",
                where=slot,
                remedy="run the very job of program.jobs, with the parties that stand there",
            )
        return declared.prepared
    if getattr(world.engine, "live", False):
        raise ConfigError(
            f"the sites do not know {job.title}, which the program has not declared for this scope",
            where=slot,
            remedy=f'declare it, so that sites can admit and prepare it: program.jobs = {{"{slot.partition("/")[2]}": job}}',
        )
    ready = prepared(job, members_of(world.population, names))
    world.install(ready, slot)
    return ready


async def _begin_afresh(fed: Scope, slot: str) -> None:
    """Forget what a surrounding checkpoint has of a job's scope: the job goes on from its own checkpoint, or begins anew."""
    known = [one for one in fed.family if within(one, slot)]
    for one in known:
        del fed.family[one]
        fed.world.traffics.pop(one, None)
    if known or fed.world.resume:
        await fed.world.engine.drop(slot)
        for home in [home for home in fed.world.checkpoints.chains if within(home, slot)]:
            del fed.world.checkpoints.chains[home]


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
