"""Running a session: its roles, their prospects, and its result; see `atoll.core.execution.session` for how roles communicate."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, SessionError
from ..execution.session import Switch
from ..requests.party import Parties, Party
from ..requests.request import Request, TaskResult
from ..requests.results import Terms
from ..requests.task import Task
from ..time.deadline import WHOLE, Deadline, Prospect, Prospects
from ..time.meter import Fate

if TYPE_CHECKING:
    from .scope import Scope

__all__ = ["hold_session"]


@dataclass(frozen=True)
class Cast:
    """The roles of one session.

    Attributes:
        roles: maps a role to its request, and the position of its party.
        parties: the roles' parties, in their order.
        turn: the turn of the session.
    """

    roles: dict[str, tuple[Request, int]]
    parties: Parties
    turn: int

    @property
    def path(self) -> str:
        """The path that identifies the session: that of its first role's request."""
        return next(iter(self.roles.values()))[0].id


async def hold_session(
    scope: Scope,
    roles: Mapping[str, tuple[Party | str, Task]],
    at: Any,
    deadline: float | Deadline | None,
    quorum: int | None,
) -> dict[str, Any]:
    """See ``Federation.session``."""
    if len(roles) < 2:
        raise ConfigError(f"a session of {len(roles)} role(s)", remedy="give at least two roles")
    if quorum is not None and not 1 <= quorum <= len(roles):
        raise ConfigError(f"quorum={quorum} of {len(roles)} roles", where="session", remedy="use 1 to all of them")
    terms, began = Terms(deadline), scope.clock.now()
    cast = _cast(scope, roles, at)
    switch = _switch(scope, cast, deadline, terms.limit(began), quorum)
    switch.agreed = scope.world.decisions.take_step(cast.path)
    switch.note_step = functools.partial(scope.world.decisions.put_step, cast.path)
    # Written by an attempt that crashed. The program may have seen that outcome, so the same roles end well again.
    known = scope.world.decisions.get(cast.path)
    if known is not None:
        switch.known = [list(roles)[i] for i in known.tolist()]
    for request, position in cast.roles.values():
        scope.meter.down(scope.hub, np.array([position], dtype=np.int64), request.argument_bytes)
    try:
        with _expiring(scope, switch, terms.limit(began)):
            ended = await _converse(scope, cast, switch, began)
    except SessionError as error:
        _decide(scope, cast, switch)
        await _over(scope, cast, switch, terms.limit(began), well=[])
        raise SessionError(
            error.what + (terms.within if switch.missed else ""), where=cast.path, remedy=error.remedy
        ) from error
    finally:
        _meter_messages(scope, cast, switch)
    if len(switch.well) < len(roles):
        _decide(scope, cast, switch)
    for role in switch.well:
        reply = ended[role].reply
        scope.meter.up(scope.hub, np.array([reply.party]), np.array([reply.nbytes]))
    await _over(scope, cast, switch, terms.limit(began), well=switch.well)
    return {role: ended[role].reply.value for role in switch.well}


def _cast(scope: Scope, roles: Mapping[str, tuple[Party | str, Task]], at: Any) -> Cast:
    requests: dict[str, tuple[Request, int]] = {}
    turn = None
    for role, (party, task) in roles.items():
        name = party if isinstance(party, str) else party.name
        request = scope._request(task, None, None if at is None else (role, at))
        turn = request.turn if turn is None else turn
        requests[role] = (request, scope.world.roster.position(name))
    label = at[0] if isinstance(at, tuple | list) and at else at
    if isinstance(label, int | np.integer):
        turn = int(label)
    positions = np.array([position for _, position in requests.values()], dtype=np.int64)
    return Cast(requests, Parties(scope.world.roster, positions), turn or 0)


def _switch(scope: Scope, cast: Cast, deadline: Any, until: float, quorum: int | None) -> Switch:
    """The relay of a session, with what the model of devices predicts for its roles."""
    found = _foreseen(scope, cast, deadline, until)
    cost, names = scope.traffic.cost, dict(zip(cast.roles, cast.parties.names, strict=True))
    if not scope.clock.virtual:
        until = math.inf  # on a real clock, the clock decides
    if found is None:
        prospects = {role: Prospect(until=until) for role in cast.roles}
        return Switch(names, cost.transfer, prospects, quorum)
    prospects = {role: replace(one, until=until) for role, one in zip(cast.roles, found.roles, strict=True)}
    place = {role: i for i, role in enumerate(cast.roles)}
    return Switch(names, cost.transfer, prospects, quorum, lambda s, t, n: found.carry(place[s], place[t], n))


def _foreseen(scope: Scope, cast: Cast, deadline: Any, until: float) -> Prospects | None:
    shared = deadline if isinstance(deadline, Deadline) else None
    superstep, risk = (0, WHOLE) if shared is None else (shared.begun, shared.begin())
    ask = getattr(scope.traffic.cost, "session", None)
    if ask is None:
        return None
    now, plans = scope.clock.now(), []
    for i, (request, _) in enumerate(cast.roles.values()):
        plan = scope.traffic.plan(request, cast.parties[i : i + 1], request.argument_bytes, now, 0)
        plans.append(replace(plan, turn=cast.turn, superstep=superstep, risk=risk))
    found: Prospects | None = ask(cast.parties, plans, until)
    return found


async def _converse(scope: Scope, cast: Cast, switch: Switch, began: float) -> dict[str, TaskResult]:
    if (
        switch.known is not None and len(switch.known) < switch.quorum
    ):  # the session ended before a crash, and the program continued
        for role in cast.roles:
            switch.ended(role, "" if role in switch.known else "late", began)
        switch.require_quorum()
    return await scope.world.engine.converse(cast.roles, switch, began)


@contextlib.contextmanager
def _expiring(scope: Scope, switch: Switch, until: float) -> Iterator[None]:
    """On a real clock, end the session at its deadline."""
    if scope.clock.virtual or not math.isfinite(until):
        yield
        return
    timer = asyncio.get_running_loop().call_later(max(0.0, until - scope.clock.now()), switch.expire)
    try:
        yield
    finally:
        timer.cancel()


def _decide(scope: Scope, cast: Cast, switch: Switch) -> None:
    """On a real clock, record which roles ended well before the program learns that others did not."""
    if not scope.clock.virtual and switch.known is None:
        well = [i for i, role in enumerate(cast.roles) if role in switch.well]
        scope.world.decisions.put(cast.path, np.array(well, dtype=np.int64))


async def _over(scope: Scope, cast: Cast, switch: Switch, until: float, well: list[str]) -> None:
    """Record the outcomes of roles whose results are not used, and wait until the session is over on the program's clock."""
    for role, (_, position) in cast.roles.items():
        if role not in well:
            fate: Fate = "crashed" if switch.ends[role][0] == "lost" else "called_off"
            scope.meter.count_ended(scope.hub, fate, np.array([position], dtype=np.int64))
    await scope.clock.sleep_until(min(until, max(time for _, time in switch.ends.values())))


def _meter_messages(scope: Scope, cast: Cast, switch: Switch) -> None:
    """Count the messages between the roles of a session."""
    party = {role: (switch.parties[role], position) for role, (_, position) in cast.roles.items()}
    for role, words in switch.said.items():
        for other, said in words.items():
            scope.meter.between(said, party[role], party[other], scope.hub)
