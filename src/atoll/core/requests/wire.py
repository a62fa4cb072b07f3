"""Requests and replies as messages: the form that crosses a process boundary or a network.

Tasks and stages are sent by name and plain arguments; the receiver looks them up, and never executes code from a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from .. import errors as E
from ..algebra.aggregate import Aggregate, Mean, Part, Parts, Sum, Total, Totals, Vote
from ..algebra.tree import Tree
from ..persistence.state_table import States
from ..sealing import Letter, rows_in
from ..time.deadline import Ending
from ..time.meter import Said
from .chain import Chain
from .request import Mailboxes, PartialSum, Reply, Request, TaskResult
from .stage import Seeds, Stage
from .task import Task, resolve

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
    """A reply value as a message, with tagged aggregates."""
    if isinstance(value, dict) and value and all(isinstance(v, Aggregate) for v in value.values()):
        return {
            "aggregates": {
                k: {"kind": v.kind, "value": v.value, "weight": v.weight, "role": v.role} for k, v in value.items()
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
        found[name] = _KINDS[item["kind"]](item["value"], role=item["role"], **extra)
    return found


def pack_request(request: Request, names: list[str]) -> Tree:
    """A request to the parties with these names, with only their mail."""
    return {
        "id": request.id,
        "task": request.task.spec(),
        "message": request.message,
        "slot": request.slot,
        "key": request.key,
        "uplink": [stage.spec() for stage in request.uplink.stages],
        "place": request.uplink.place,
        "replies": request.uplink.replies,
        "hidden": request.uplink.hidden,
        "indexing": request.uplink.indexing,
        "public": list(request.public),
        "mail": None if request.mail is None else {name: _pack_letters(request.mail.box(name)) for name in names},
        "apart": request.apart,
        "sum": request.sum,
        "wraps": None if request.wraps is None else pack_request(request.wraps, []),
        "seeds": None if request.seeds is None else request.seeds.pack(),
    }


def unpack_request(packed: Any, registry: Mapping[str, Any]) -> Request:
    """The inverse of ``pack_request``; names are looked up in the registry first, then as ``module:name``."""
    task = Task.of(packed["task"], lambda name: resolve(name, registry))
    stages = [Stage.of(spec, lambda name: resolve(name, registry, Stage)) for spec in packed["uplink"]]
    mail = None if packed["mail"] is None else Mailboxes(packed["mail"])
    wraps = None if packed["wraps"] is None else unpack_request(packed["wraps"], registry)
    seeds = None if packed["seeds"] is None else Seeds.unpack(packed["seeds"])
    chain = Chain(
        stages, packed["place"], replies=int(packed["replies"]), hidden=bool(packed["hidden"]),
        indexing=bool(packed["indexing"]),
    )  # fmt: skip
    return Request(
        packed["id"], task, packed["message"], packed["slot"], packed["key"],
        chain, tuple(packed["public"]), mail, apart=packed["apart"], sum=packed["sum"], wraps=wraps, seeds=seeds,
    )  # fmt: skip


def pack_error(error: BaseException | None) -> Tree:
    """An error as plain text."""
    if error is None:
        return None
    if isinstance(error, E.AtollError):
        return {"kind": type(error).__name__, "what": error.what, "where": error.where, "remedy": error.remedy}
    return {"kind": "TaskError", "what": f"{type(error).__name__}: {error}", "where": None, "remedy": None}


def unpack_error(packed: Any) -> Exception | None:
    """The inverse of ``pack_error``; an unknown kind becomes a plain ``AtollError``."""
    if packed is None:
        return None
    # A message chooses among Atoll's errors and nothing else: it must never name a class to be made.
    kind = getattr(E, packed["kind"], None) if packed["kind"] in E.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, E.AtollError)):
        kind = E.AtollError
    return kind(packed["what"], where=packed["where"], remedy=packed["remedy"])


def pack_ran(ran: TaskResult) -> Tree:
    """What a task left at the party, as a message."""
    reply = ran.reply
    return {
        "party": reply.party,
        "value": pack_value(reply.value),
        "mail": _pack_letters(reply.mail),
        "notes": reply.notes,
        "nbytes": reply.nbytes,
        "error": pack_error(reply.error),
        "rejected": reply.rejected,
        "left": ran.left,
        "sealed": ran.sealed,
        "time": float(ran.time),
        "said": {role: list(said) for role, said in ran.said.items()},
        "opened": [list(tag) for tag in ran.opened],
        "ending": ran.ending,
        "promised": [list(row) for row in ran.promised],
    }


def _pack_letters(letters: Mapping[str, Letter]) -> dict[str, Tree]:
    return {name: letter.pack() for name, letter in letters.items()}


def unpack_ran(packed: Any) -> TaskResult:
    """The inverse of ``pack_ran``."""
    reply = Reply(
        packed["party"], unpack_value(packed["value"]),
        {to: Letter.unpack(letter) for to, letter in packed["mail"].items()}, packed["notes"], packed["nbytes"],
        unpack_error(packed["error"]), packed["rejected"],
    )  # fmt: skip
    said = {role: Said(*words) for role, words in packed["said"].items()}
    opened = tuple((at, sender, n) for at, sender, n in packed["opened"])
    ending = packed["ending"]
    if ending not in get_args(Ending):
        raise E.MessageError(f"a role that ended {ending!r:.40}")
    promised = tuple((bytes(matter), bytes(bound)) for matter, bound in packed.get("promised", ()))
    return TaskResult(reply, packed["left"], packed["sealed"], packed["time"], said, opened, ending, promised)


def _pack_total(total: Total) -> Tree:
    value = total.value
    if total.kind == "parts":
        value = [{"value": p.value, "weight": p.weight, "sender": p.sender, "of": p.of} for p in value]
    return {"kind": total.kind, "value": value, "weight": total.weight, "n": total.n, "role": total.role}


def _unpack_total(packed: Any) -> Total:
    value = packed["value"]
    if packed["kind"] == "parts":
        value = [Part(item["value"], item["weight"], item["sender"], item["of"]) for item in value]
    return Total(packed["kind"], value, packed["weight"], packed["n"], packed["role"])


def pack_folded(folded: PartialSum) -> Tree:
    """The sums of a cohort, as a message."""
    return {
        "totals": {name: _pack_total(total) for name, total in folded.totals.items()},
        "senders": folded.senders,
        "nbytes": folded.nbytes,
        "rejected": [[k, v] for k, v in folded.rejected.items()],
        "errors": [[k, pack_error(v)] for k, v in folded.errors.items()],
        "left": {slot: states.pack() for slot, states in folded.left.items()},
        "promised": [[position, b"".join(m + b for m, b in rows)] for position, rows in folded.promised.items()],
        "kept": [pack_ran(ran) for ran in folded.kept],
    }


def unpack_folded(packed: Any) -> PartialSum:
    """The inverse of ``pack_folded``."""
    totals: Totals = {name: _unpack_total(total) for name, total in packed["totals"].items()}
    errors = {k: unpack_error(v) or E.TaskError("unknown") for k, v in packed["errors"]}
    promised = {position: tuple(rows_in(raw)) for position, raw in packed["promised"]}
    return PartialSum(
        totals, np.asarray(packed["senders"]), np.asarray(packed["nbytes"]), rejected=dict(packed["rejected"]), errors=errors,
        left={slot: States.unpack(states) for slot, states in packed["left"].items()}, kept=[unpack_ran(item) for item in packed["kept"]],
        promised=promised,
    )  # fmt: skip
