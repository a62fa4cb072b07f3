"""One party's contribution to a sum: checked, encoded by the uplink's stages, and kept out if it is not finite."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra import tree as T
from ..algebra.aggregate import Aggregate, Totals
from ..algebra.rng import Rng
from ..algebra.tree import Tree
from ..errors import MessageError
from ..requests.context import seeds_for
from .memory import StageMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..algebra.aggregate import Total
    from ..requests.request import Request

__all__ = ["Summands", "aggregates_of", "not_finite", "not_finite_total", "place_of", "summands"]

_ARRAYS = (np.ndarray, np.generic)


@dataclass
class Summands:
    """What one party adds to a sum.

    Attributes:
        totals: named totals of one, encoded; empty if the reply is kept out.
        wires: maps a name to the part that crosses the link.
        rejected: why the reply is kept out, ``""`` if it is not.
        encoded: number of named values that went through the stages; 0 if the reply was kept out before.
    """

    totals: Totals = field(default_factory=dict)
    wires: dict[str, Any] = field(default_factory=dict)
    rejected: str = ""
    encoded: int = 0


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
        bad = not_finite(aggregate.value, aggregate.weight)
        if bad:
            return Summands(rejected=f"{place_of(name, bad)} is not finite")
    made = Summands(encoded=len(reply))
    seeds = request.secrets(np.array([memory.position])) if uplink.secret else None
    for name, aggregate in reply.items():
        stream = Rng(key).child(name) if uplink else Rng(key)  # not used without stages
        sent = uplink.send(aggregate, request.public, stream, memory.of(name), seeds_for(seeds, name))
        bad = not_finite_total(sent.total) if uplink else ""
        if bad:
            return Summands(rejected=f"{place_of(name, bad)} is not finite once encoded", encoded=len(reply))
        memory.keep(name, sent.memory)
        made.totals[name] = sent.total
        made.wires[name] = {"kind": aggregate.kind, "value": sent.wire, "weight": float(aggregate.weight)}
    return made


def aggregates_of(value: Any, task: str, party: str) -> dict[str, Aggregate]:
    """Return the reply to a sum after checking that it is a dict of aggregates.

    Raises:
        MessageError: it is not a dict of aggregates.
    """
    if isinstance(value, dict) and value and all(isinstance(v, Aggregate) for v in value.values()):
        return value
    shown = {k: type(v).__name__ for k, v in value.items()} if isinstance(value, dict) else type(value).__name__
    raise MessageError(
        f"the reply to a sum must be a dict of aggregates, not {shown}",
        where=f"task {task} at {party}",
        remedy='return for example {"update": Mean(value, examples=n)}',
    )


def place_of(name: str, leaf: str) -> str:
    """A leaf of an aggregate in words: its name and path."""
    return name if leaf == "." else f"{name}/{leaf}"


def not_finite(value: Tree, weight: Any) -> str:
    """The path of the first non-finite leaf, ``"."`` for a bare leaf or the weight, ``""`` if all are finite."""
    if not (math.isfinite(weight) if type(weight) is float else np.isfinite(np.asarray(weight, np.float64)).all()):
        return "."
    for path, leaf in T.items(value):
        if isinstance(leaf, _ARRAYS):
            if leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
                return path or "."
        elif isinstance(leaf, float):
            if not math.isfinite(leaf):
                return path or "."
        elif type(leaf).__module__ == "torch" and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            return path or "."
    return ""


def not_finite_total(total: Total) -> str:
    """The path of the first non-finite leaf of a total, as from ``not_finite``."""
    if total.kind == "parts":
        return next((bad for part in total.value if (bad := not_finite(part.value, part.weight))), "")
    return not_finite(total.value, total.weight)
