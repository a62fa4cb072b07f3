"""One party's contribution to a sum: checked, encoded by the uplink's stages, and kept out if it is not finite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.aggregate import Aggregate, Totals, kept_apart
from ..algebra.rng import Rng
from ..errors import MessageError
from ..requests.context import seeds_for
from .admission import oversize, refused, unfit, unfit_total
from .memory import StageMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..requests.request import Request

__all__ = ["Summands", "aggregates_of", "measured", "summands"]


@dataclass
class Summands:
    """What one party adds to a sum.

    Attributes:
        totals: named totals of one, encoded; empty if the reply is kept out.
        wires: maps a name to the part that crosses the link.
        rejected: why the reply is kept out, ``""`` if it is not.
        encoded: number of named values that went through the stages; 0 if the reply was kept out before.
        nbytes: encoded size, from `measured`.
    """

    totals: Totals = field(default_factory=dict)
    wires: dict[str, Any] = field(default_factory=dict)
    rejected: str = ""
    encoded: int = 0
    nbytes: int = 0


def summands(request: Request, reply: Mapping[str, Aggregate], key: int, memory: StageMemory) -> Summands:
    """Send one party's reply through the uplink of its request.

    Args:
        request: the request that it answers.
        reply: its aggregates.
        key: the party's random key for this request.
        memory: the memory of the party's stages, which is updated.
    """
    uplink = request.uplink
    reply = uplink.leaving(reply)
    memory.begin(request, reply)
    for name, aggregate in reply.items():
        bad = unfit(name, aggregate)
        if bad:
            return Summands(rejected=bad)
    made = Summands(encoded=len(reply))
    seeds = request.secrets(np.array([memory.position])) if uplink.secret else None
    for name, aggregate in reply.items():
        stream = Rng(key).child(name) if uplink else Rng(key)  # not used without stages
        sent = uplink.send(aggregate, request.public, stream, memory.of(name), seeds_for(seeds, name), name)
        bad = unfit_total(name, sent.total) if uplink else ""
        if bad:
            return Summands(rejected=bad, encoded=len(reply))
        memory.keep(name, sent.memory)
        made.totals[name] = sent.total
        made.wires[name] = {"kind": aggregate.kind, "value": sent.wire, "weight": float(aggregate.weight)}
    return made


def measured(
    request: Request,
    reply: Mapping[str, Aggregate],
    key: int,
    memory: StageMemory,
    largest: int | None,
    nbytes: int = 0,
) -> Summands:
    """Put one party's reply through the uplink, as `summands` does, and keep it out where it is larger than its party allows.

    Args:
        request: what it answers.
        reply: its aggregates.
        key: the party's random key for this request.
        memory: what the party's stages remember.
        largest: bytes that it may take, ``None`` for any number.
        nbytes: its size, where the party has found it and nothing encodes it.
    """
    made = summands(request, reply, key, memory)
    if made.rejected:
        return made
    made.nbytes = nbytes or M.nbytes(made.wires)
    error = oversize(made.nbytes, largest)
    if error is not None:
        made.rejected, made.totals = refused(error), {}
    elif request.apart:
        made.totals = {name: kept_apart(total, memory.position) for name, total in made.totals.items()}
    return made


def aggregates_of(value: Any, task: str, party: str) -> dict[str, Aggregate]:
    """Return the reply to a sum after checking that it is a dict of aggregates.

    Raises:
        MessageError: it is not a dict of aggregates.
    """
    if isinstance(value, dict) and value and all(isinstance(v, Aggregate) for v in value.values()):
        for name, aggregate in value.items():
            _require_numbers(name, aggregate, f"task {task} at {party}")
        return value
    shown = {k: type(v).__name__ for k, v in value.items()} if isinstance(value, dict) else type(value).__name__
    raise MessageError(
        f"the reply to a sum must be a dict of aggregates, not {shown}",
        where=f"task {task} at {party}",
        remedy='return for example {"update": Mean(value, examples=n)}',
    )


def _require_numbers(name: str, aggregate: Aggregate, where: str) -> None:
    """Refuse text, ``None`` and a weight below zero.

    Raises:
        MessageError: names the value.
    """
    kind = type(aggregate).__name__
    for leaf in T.leaves(aggregate.value):
        if leaf is None or isinstance(leaf, str):
            raise MessageError(
                f"{name!r} is {kind}({leaf!r})", where=where, remedy="give numbers, arrays, or dicts and lists of them"
            )
    if not np.ndim(aggregate.weight) and aggregate.weight < 0:
        raise MessageError(
            f"{name!r} is {kind}(..., examples={aggregate.weight!r})", where=where, remedy="give a weight of 0 or more"
        )
