"""What a site may say: everything is looked at before anything of it is used.

The job process of a site runs on somebody else's machine. What it sends is of the right form because ours is written that way, and for no
other reason; whoever runs another program there must not be able to change a sum by more than a reply of its own parties could.
"""

from __future__ import annotations

import math
from typing import Any

from atoll.core.request import Folded, Ran
from atoll.core.wire import unpack_error, unpack_folded, unpack_ran

from .frames import read, shown, text_in, wrong
from .totals import require_total

__all__ = ["ran_of", "require_events", "require_reply"]

_MOST_EVENTS = 10_000  # of one reply


def require_events(events: Any, party: str) -> None:
    """Refuse privacy events of anybody but the party itself.

    Raises:
        MessageError: they are of another form, of another party, or too many.
    """
    if not isinstance(events, list) or len(events) > _MOST_EVENTS:
        raise wrong(f"'events' is {shown(events)} and must be a list of at most {_MOST_EVENTS}")
    for told in events:
        text_in(told, "request")
        if text_in(told, "party") != party:
            raise wrong(f"an event is said to be of {told['party']!r}, in a reply of {party!r}")
        if not isinstance(told.get("event"), dict):
            raise wrong("an event without its fields")


def require_reply(frame: Any, position: int, wanted: str) -> None:
    """Refuse a reply that is not one, or not of this party alone.

    Args:
        frame: as it came.
        position: the party for which it is sent.
        wanted: what was asked for: ``folded``, ``ran`` or ``done``. An error may come in place of each.

    Raises:
        MessageError: it says what is wrong.
    """
    said = text_in(frame, "op")
    if said not in (wanted, "failed"):
        raise wrong(f"it answers {said!r} and was asked for {wanted!r}")
    if said == "failed":
        if read(lambda: unpack_error(frame["error"])) is None:
            raise wrong("a failure without an error")
    elif said == "ran":
        ran_of(frame, position)
    elif said == "folded":
        _require_folded(read(lambda: unpack_folded(frame["folded"])), position)


def ran_of(frame: Any, position: int) -> Ran:
    """What a party's task gave.

    Raises:
        MessageError: it is of another form, or of another party.
    """
    ran: Ran = read(lambda: unpack_ran(frame["ran"]))
    reply = ran.reply
    if type(reply.party) is not int or reply.party != position:
        raise wrong(f"the reply of party number {position} is said to be that of {shown(reply.party)}")
    if type(reply.nbytes) is not int or reply.nbytes < 0 or type(ran.said) is not int or ran.said < 0:
        raise wrong(f"sizes of {shown(reply.nbytes)} and {shown(ran.said)} bytes")
    if type(ran.time) not in (int, float) or not math.isfinite(ran.time):
        raise wrong(f"a time of {shown(ran.time)}")
    if not isinstance(reply.notes, list) or not isinstance(reply.mail, dict):
        raise wrong("notes or envelopes of another form")
    if ran.state is not None or ran.memory is not None or ran.changed is not False or type(ran.sealed) is not bool:
        raise wrong("a private state, which never leaves its site")
    return ran


def _require_folded(folded: Folded, position: int) -> None:
    senders = folded.senders
    if senders.dtype.kind not in "iu" or senders.ndim != 1 or senders.tolist() not in ([], [position]):
        raise wrong(f"the reply of party number {position} is said to be that of {senders.tolist()[:5]}")
    sizes = folded.nbytes
    if sizes.dtype.kind not in "iu" or sizes.shape != senders.shape or (len(sizes) and int(sizes[0]) < 0):
        raise wrong("sizes of another form")
    others = [key for key in (*folded.rejected, *folded.errors) if type(key) is not int or key != position]
    if others or not all(isinstance(why, str) for why in folded.rejected.values()):
        raise wrong(f"it says of party {shown(others)} that its reply was kept out")
    kept = folded.kept or len(folded.states.positions()) or len(folded.memories.positions())
    if kept or (len(folded.totals) > 0) != (len(senders) > 0):
        raise wrong("totals without a sender, a sender without totals, or private states")
    for name, total in folded.totals.items():
        require_total(name, total, position)
