"""What a site may send: every frame is checked before anything in it is used.

The job process of a site runs on somebody else's machine. Its frames have the right form only because our code writes
them so. A person who runs another program there must not be able to change a sum by more than replies of that site's
own parties could.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from atoll.core.errors import MessageError
from atoll.core.requests.request import PartialSum, TaskResult
from atoll.core.requests.wire import unpack_error, unpack_folded, unpack_ran

from .frames import describe_value, read, text_in, wrong
from .judging.expected import require_expected
from .totals import require_total

if TYPE_CHECKING:
    from atoll.core.requests.request import Request

__all__ = ["ran_of", "require_declared", "require_events", "require_reply"]

_MOST_EVENTS = 10_000  # of one reply


def require_events(events: Any, party: str) -> None:
    """Refuse privacy events of anyone but the party itself.

    Raises:
        MessageError: they have the wrong form, are of another party, or are too many.
    """
    if not isinstance(events, list) or len(events) > _MOST_EVENTS:
        raise wrong(f"'events' is {describe_value(events)} and must be a list of at most {_MOST_EVENTS}")
    for told in events:
        text_in(told, "request")
        if text_in(told, "party") != party:
            raise wrong(f"an event names party {told['party']!r}, in a reply of {party!r}")
        if not isinstance(told.get("event"), dict):
            raise wrong("an event without its fields")


def require_reply(frame: Any, position: int, wanted: str) -> TaskResult | PartialSum | None:
    """Read a reply; refuse it if it is not one, or not of this party alone.

    Args:
        frame: the frame as it arrived.
        position: the party that it is sent for.
        wanted: what was asked for: ``folded``, ``ran`` or ``done``. An error may take the place of each.

    Returns:
        What the party gave; ``None`` for an error, or if only a confirmation was wanted.

    Raises:
        MessageError: the reply is refused; the message says why.
    """
    said = text_in(frame, "op")
    if said not in (wanted, "failed"):
        raise wrong(f"it answers {said!r}, but was asked for {wanted!r}")
    if said == "failed":
        if read(lambda: unpack_error(frame["error"])) is None:
            raise wrong("a failure without an error")
    elif said == "ran":
        return ran_of(frame, position)
    elif said == "folded":
        folded: PartialSum = read(lambda: unpack_folded(frame["folded"]))
        _require_folded(folded, position)
        return folded
    return None


def require_declared(said: TaskResult | PartialSum | None, request: Request, rows: int | None = None) -> None:
    """Refuse a reply that is not what the task declares: the request sets its form, not the first reply to arrive.

    Args:
        said: the reply, as `require_reply` read it.
        request: the request that it answers.
        rows: rows that the party declared; ``None`` if it has none.

    Raises:
        MessageError: the reply differs; the message names the place.
    """
    if isinstance(said, PartialSum) and said.totals and request.wraps is None:
        require_expected(said.totals, request, rows)
    schema = request.task.schema
    if schema is None:
        return
    try:
        if isinstance(said, TaskResult) and said.reply.usable:
            schema.require_reply(said.reply.value)
        elif isinstance(said, PartialSum) and said.totals:
            schema.require_totals(said.totals, request.sent_forms)
    except MessageError as error:
        raise wrong(f"{error.what}, in {error.where}") from error


def ran_of(frame: Any, position: int) -> TaskResult:
    """Return what a party's task gave.

    Raises:
        MessageError: it has the wrong form, or is of another party.
    """
    ran: TaskResult = read(lambda: unpack_ran(frame["ran"]))
    reply = ran.reply
    if type(reply.party) is not int or reply.party != position:
        raise wrong(f"the reply of party number {position} names party {describe_value(reply.party)}")
    if type(reply.nbytes) is not int or reply.nbytes < 0:
        raise wrong(f"a size of {describe_value(reply.nbytes)} bytes")
    for role, said in ran.said.items():
        counts = all(type(n) is int and n >= 0 for n in (said.messages, said.nbytes))
        if not isinstance(role, str) or not counts or type(said.direct) is not bool:
            raise wrong(f"the count of messages to {describe_value(role)} is {describe_value(list(said))}")
    if type(ran.time) not in (int, float) or not math.isfinite(ran.time):
        raise wrong(f"a time of {describe_value(ran.time)}")
    if not isinstance(reply.notes, list):
        raise wrong("notes of the wrong form")
    if (
        not isinstance(ran.left, dict)
        or ran.left
        or type(ran.sealed) is not bool
        or not isinstance(reply.rejected, str)
    ):
        raise wrong("a private state, which never leaves its site")
    return ran


def _require_folded(folded: PartialSum, position: int) -> None:
    senders = folded.senders
    if senders.dtype.kind not in "iu" or senders.ndim != 1 or senders[:2].tolist() not in ([], [position]):
        few = senders[:5].tolist() if senders.ndim == 1 else describe_value(senders)
        raise wrong(f"the reply of party number {position} names senders {few}")
    sizes = folded.nbytes
    if sizes.dtype.kind not in "iu" or sizes.shape != senders.shape or (len(sizes) and int(sizes[0]) < 0):
        raise wrong("sizes of the wrong form")
    others = [key for key in (*folded.rejected, *folded.errors) if type(key) is not int or key != position]
    if others or not all(isinstance(why, str) for why in folded.rejected.values()):
        raise wrong(f"it says that the reply of party {describe_value(others)} was kept out")
    kept = folded.kept or folded.left
    if kept or (len(folded.totals) > 0) != (len(senders) > 0):
        raise wrong("totals without a sender, a sender without totals, or private states")
    for name, total in folded.totals.items():
        require_total(name, total, position)
