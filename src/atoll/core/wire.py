"""Requests and replies as messages: the form in which they cross a process boundary or a network.

Tasks and stages travel by name and plain arguments; what arrives is looked up, never executed as code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import errors as E
from .aggregate import Aggregate, Mean, Part, Parts, Sum, Total, Totals, Vote
from .chain import Chain
from .request import Folded, Mail, Ran, Reply, Request
from .stage import Stage
from .states import States
from .task import Task, resolve
from .tree import Tree

__all__ = [
    "pack_error",
    "pack_folded",
    "pack_ran",
    "pack_request",
    "pack_value",
    "unpack_error",
    "unpack_folded",
    "unpack_ran",
    "unpack_request",
    "unpack_value",
]

_KINDS: dict[str, type[Aggregate]] = {"mean": Mean, "sum": Sum, "vote": Vote, "parts": Parts}


def pack_value(value: Any) -> Tree:
    """A reply value as a message: aggregates are tagged."""
    if isinstance(value, dict) and value and all(isinstance(v, Aggregate) for v in value.values()):
        return {
            "aggregates": {
                k: {"kind": v.kind, "value": v.value, "weight": v.weight, "metric": v.metric} for k, v in value.items()
            }
        }
    return {"plain": value}


def unpack_value(packed: Any) -> Any:
    """The inverse of ``pack_value``."""
    if "plain" in packed:
        return packed["plain"]
    found = {}
    for name, item in packed["aggregates"].items():
        extra = {"examples": item["weight"]} if item["kind"] in {"mean", "parts"} else {}
        found[name] = _KINDS[item["kind"]](item["value"], metric=item["metric"], **extra)
    return found


def pack_request(request: Request, names: list[str]) -> Tree:
    """A request for the parties of these names, with their mail only."""
    return {
        "id": request.id,
        "task": request.task.spec(),
        "message": request.message,
        "slot": request.slot,
        "key": request.key,
        "uplink": [stage.spec() for stage in request.uplink.stages],
        "place": request.uplink.place,
        "public": list(request.public),
        "mail": None if request.mail is None else {name: request.mail.box(name) for name in names},
        "apart": request.apart,
    }


def unpack_request(packed: Any, registry: Mapping[str, Any]) -> Request:
    """The inverse of ``pack_request``; names are looked up in the registry first, then as ``module:name``."""
    task = Task.of(packed["task"], lambda name: resolve(name, registry))
    stages = [Stage.of(spec, lambda name: resolve(name, registry, Stage)) for spec in packed["uplink"]]
    mail = None if packed["mail"] is None else Mail(packed["mail"])
    return Request(
        packed["id"], task, packed["message"], packed["slot"], packed["key"],
        Chain(stages, packed["place"]), tuple(packed["public"]), mail, apart=packed["apart"],
    )  # fmt: skip


def pack_error(error: BaseException | None) -> Tree:
    """An error as plain words."""
    if error is None:
        return None
    if isinstance(error, E.AtollError):
        return {"kind": type(error).__name__, "what": error.what, "where": error.where, "remedy": error.remedy}
    return {"kind": "TaskError", "what": f"{type(error).__name__}: {error}", "where": None, "remedy": None}


def unpack_error(packed: Any) -> Exception | None:
    """The inverse of ``pack_error``; an unknown kind becomes a plain ``AtollError``."""
    if packed is None:
        return None
    kind = getattr(E, packed["kind"], None) if packed["kind"] in E.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, E.AtollError)):
        kind = E.AtollError
    return kind(packed["what"], where=packed["where"], remedy=packed["remedy"])


def pack_ran(ran: Ran) -> Tree:
    """What a task left behind, as a message."""
    reply = ran.reply
    return {
        "party": reply.party,
        "value": pack_value(reply.value),
        "mail": reply.mail,
        "notes": reply.notes,
        "nbytes": reply.nbytes,
        "error": pack_error(reply.error),
        "state": ran.state if ran.changed else None,
        "changed": ran.changed,
        "sealed": ran.sealed,
        "time": float(ran.time),
        "said": ran.said,
        "memory": ran.memory,
    }


def unpack_ran(packed: Any) -> Ran:
    """The inverse of ``pack_ran``."""
    reply = Reply(
        packed["party"], unpack_value(packed["value"]), packed["mail"], packed["notes"], packed["nbytes"],
        unpack_error(packed["error"]),
    )  # fmt: skip
    return Ran(
        reply, packed["state"], packed["changed"], packed["sealed"], packed["time"], packed["said"], packed["memory"]
    )  # fmt: skip


def _pack_total(total: Total) -> Tree:
    value = total.value
    if total.kind == "parts":
        value = [{"value": p.value, "weight": p.weight, "sender": p.sender, "of": p.of} for p in value]
    return {"kind": total.kind, "value": value, "weight": total.weight, "n": total.n, "metric": total.metric}


def _unpack_total(packed: Any) -> Total:
    value = packed["value"]
    if packed["kind"] == "parts":
        value = [Part(item["value"], item["weight"], item["sender"], item["of"]) for item in value]
    return Total(packed["kind"], value, packed["weight"], packed["n"], packed["metric"])


def pack_folded(folded: Folded) -> Tree:
    """The sums of a cohort, as a message."""
    return {
        "totals": {name: _pack_total(total) for name, total in folded.totals.items()},
        "senders": folded.senders,
        "nbytes": folded.nbytes,
        "rejected": [[k, v] for k, v in folded.rejected.items()],
        "errors": [[k, pack_error(v)] for k, v in folded.errors.items()],
        "states": folded.states.packed(),
        "memories": folded.memories.packed(),
        "kept": [pack_ran(ran) for ran in folded.kept],
    }


def unpack_folded(packed: Any) -> Folded:
    """The inverse of ``pack_folded``."""
    totals: Totals = {name: _unpack_total(total) for name, total in packed["totals"].items()}
    errors = {k: unpack_error(v) or E.TaskError("unknown") for k, v in packed["errors"]}
    return Folded(
        totals, np.asarray(packed["senders"]), np.asarray(packed["nbytes"]), dict(packed["rejected"]), errors,
        States.unpack(packed["states"]), States.unpack(packed["memories"]), [unpack_ran(item) for item in packed["kept"]],
    )  # fmt: skip
