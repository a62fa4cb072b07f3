"""What a site may say: everything is looked at before anything of it is used.

The job process of a site runs on somebody else's machine. What it sends is of the right form because ours is written that way, and for no
other reason; whoever runs another program there must not be able to change a sum by more than a reply of its own parties could.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Number
from typing import Any

import numpy as np

from atoll.core import tree as T
from atoll.core.aggregate import Total, Totals
from atoll.core.errors import MessageError
from atoll.core.request import Folded, Ran
from atoll.core.wire import unpack_error, unpack_folded, unpack_ran

from .pieces import finite

__all__ = ["names_in", "ran_of", "require_events", "require_fit", "require_reply", "text_in", "whole_in"]

_KINDS = ("mean", "sum", "vote", "parts")
_MOST_EVENTS = 10_000  # of one reply
_MOST_NAMES = 1_000_000
_LONGEST = 1000  # characters of a name


def whole_in(frame: Any, name: str) -> int:
    """A whole number of a frame.

    Raises:
        MessageError: it is not there, or no whole number.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if type(found) is not int:
        raise _wrong(f"{name!r} is {_shown(found)} and must be a whole number")
    return found


def text_in(frame: Any, name: str) -> str:
    """A word of a frame.

    Raises:
        MessageError: it is not there, no text, or too long.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if not isinstance(found, str) or len(found) > _LONGEST:
        raise _wrong(f"{name!r} is {_shown(found)} and must be a word")
    return found


def names_in(frame: Any, name: str) -> list[str]:
    """A list of words of a frame.

    Raises:
        MessageError: it is not there, or holds something else.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if not isinstance(found, list) or len(found) > _MOST_NAMES:
        raise _wrong(f"{name!r} is {_shown(found)} and must be a list of words")
    return [text_in({name: each}, name) for each in found]


def require_events(events: Any, party: str) -> None:
    """Refuse privacy events of anybody but the party itself.

    Raises:
        MessageError: they are of another form, of another party, or too many.
    """
    if not isinstance(events, list) or len(events) > _MOST_EVENTS:
        raise _wrong(f"'events' is {_shown(events)} and must be a list of at most {_MOST_EVENTS}")
    for told in events:
        text_in(told, "request")
        if text_in(told, "party") != party:
            raise _wrong(f"an event is said to be of {told['party']!r}, in a reply of {party!r}")
        if not isinstance(told.get("event"), dict):
            raise _wrong("an event without its fields")


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
        raise _wrong(f"it answers {said!r} and was asked for {wanted!r}")
    if said == "failed":
        if _read(lambda: unpack_error(frame["error"])) is None:
            raise _wrong("a failure without an error")
    elif said == "ran":
        ran_of(frame, position)
    elif said == "folded":
        _require_folded(_read(lambda: unpack_folded(frame["folded"])), position)


def ran_of(frame: Any, position: int) -> Ran:
    """What a party's task gave.

    Raises:
        MessageError: it is of another form, or of another party.
    """
    ran: Ran = _read(lambda: unpack_ran(frame["ran"]))
    reply = ran.reply
    if type(reply.party) is not int or reply.party != position:
        raise _wrong(f"the reply of party number {position} is said to be that of {_shown(reply.party)}")
    if type(reply.nbytes) is not int or reply.nbytes < 0 or type(ran.said) is not int or ran.said < 0:
        raise _wrong(f"sizes of {_shown(reply.nbytes)} and {_shown(ran.said)} bytes")
    if type(ran.time) not in (int, float) or not math.isfinite(ran.time):
        raise _wrong(f"a time of {_shown(ran.time)}")
    if not isinstance(reply.notes, list) or not isinstance(reply.mail, dict):
        raise _wrong("notes or envelopes of another form")
    if ran.state is not None or ran.memory is not None or ran.changed is not False or type(ran.sealed) is not bool:
        raise _wrong("a private state, which never leaves its site")
    return ran


def _require_folded(folded: Folded, position: int) -> None:
    senders = folded.senders
    if senders.dtype.kind not in "iu" or senders.ndim != 1 or senders.tolist() not in ([], [position]):
        raise _wrong(f"the reply of party number {position} is said to be that of {senders.tolist()[:5]}")
    sizes = folded.nbytes
    if sizes.dtype.kind not in "iu" or sizes.shape != senders.shape or (len(sizes) and int(sizes[0]) < 0):
        raise _wrong("sizes of another form")
    others = [key for key in (*folded.rejected, *folded.errors) if type(key) is not int or key != position]
    if others or not all(isinstance(why, str) for why in folded.rejected.values()):
        raise _wrong(f"it says of party {_shown(others)} that its reply was kept out")
    kept = folded.kept or len(folded.states.positions()) or len(folded.memories.positions())
    if kept or (len(folded.totals) > 0) != (len(senders) > 0):
        raise _wrong("totals without a sender, a sender without totals, or private states")
    for name, total in folded.totals.items():
        if not isinstance(name, str) or len(name) > _LONGEST:
            raise _wrong(f"a total called {_shown(name)}")
        _require_total(name, total, position)


def _require_total(name: str, total: Total, position: int) -> None:
    if total.kind not in _KINDS or type(total.metric) is not bool or type(total.n) is not int or total.n != 1:
        raise _wrong(f"{name!r} is a total of kind {_shown(total.kind)} of {_shown(total.n)} replies")
    if not _real(total.weight):
        raise _wrong(f"{name!r} has the weight {_shown(total.weight)}")
    if total.kind != "parts":
        _require_numbers(name, total.value)
        return
    if len(total.value) != 1:
        raise _wrong(f"{name!r} has {len(total.value)} parts")
    part = total.value[0]
    if type(part.sender) is not int or part.sender not in (-1, position) or part.of not in _KINDS:
        raise _wrong(f"a part of {name!r} is signed by {_shown(part.sender)}")
    if not _real(part.weight):
        raise _wrong(f"a part of {name!r} has the weight {_shown(part.weight)}")
    if part.of == "parts":
        _require_finite(name, part.value)
    else:
        _require_numbers(name, part.value)


def _require_numbers(name: str, value: Any) -> None:
    """What is added up are numbers, and finite ones."""
    for path, leaf in T.items(value):
        array = isinstance(leaf, np.ndarray | np.generic)
        if not (leaf.dtype.kind in "biufc" if array else isinstance(leaf, Number)):
            raise _wrong(f"{_at(name, path)} holds {_shown(leaf)}, which is no number")
    _require_finite(name, value)


def _require_finite(name: str, value: Any) -> None:
    for path, leaf in T.items(value):
        number = isinstance(leaf, np.ndarray | np.generic | float | complex)
        if number and not finite(leaf):
            raise _wrong(f"{_at(name, path)} is not finite")


def require_fit(sums: Totals, part: Mapping[str, Total]) -> None:
    """Refuse totals that cannot be added to those before them entry by entry.

    Kinds, structures and shapes must be the same. So must dtypes, but that real numbers of any width go together, as they do in a simulation.

    Raises:
        MessageError: it names the total and what differs.
    """
    for name, total in part.items():
        known = sums.get(name)
        if known is None:
            continue
        if (known.kind, known.metric) != (total.kind, total.metric):
            raise _differs(name, f"a {total.kind}", f"a {known.kind}")
        if total.kind != "parts":
            _require_alike(name, known.value, total.value)


def _require_alike(name: str, known: Any, value: Any) -> None:
    """The same structure, shapes and sorts of numbers, from here downwards."""
    if isinstance(known, dict) and isinstance(value, dict) and known.keys() == value.keys():
        pairs: list[tuple[Any, Any, Any]] = [(key, known[key], value[key]) for key in known]
    elif isinstance(known, list | tuple) and isinstance(value, list | tuple) and len(known) == len(value):
        pairs = [(i, *both) for i, both in enumerate(zip(known, value, strict=True))]
    elif isinstance(known, dict | list | tuple) or isinstance(value, dict | list | tuple):
        raise _differs(name, _shown(value), _shown(known))
    else:
        _require_same_sort(name, known, value)
        return
    for key, ours, theirs in pairs:
        _require_alike(f"{name}/{key}", ours, theirs)


def _require_same_sort(name: str, known: Any, value: Any) -> None:
    if np.shape(known) != np.shape(value):
        raise _differs(name, f"of shape {np.shape(value)}", f"of shape {np.shape(known)}")
    one, other = np.asarray(known).dtype, np.asarray(value).dtype
    if one != other and "c" in (one.kind, other.kind):
        raise _differs(name, f"of {other}", f"of {one}")


def _real(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool) and finite(value)


def _read(reader: Any) -> Any:
    """Read a part of a frame; whatever that raises, the frame is of another form."""
    try:
        return reader()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise _wrong(f"{type(error).__name__}: {error!s:.300}") from error


def _at(name: str, path: str) -> str:
    return repr(f"{name}/{path}" if path and path != "." else name)


def _shown(value: Any) -> str:
    """A value from far away in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}{list(value.shape)}"
    if isinstance(value, dict | list | tuple | bytes):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return repr(value[:80] if isinstance(value, str) else value)


def _differs(name: str, said: str, known: str) -> MessageError:
    return _wrong(f"{name!r} is {said}, where the sum of those before it is {known}")


def _wrong(what: str) -> MessageError:
    return MessageError(
        what, where="a reply", remedy="look at what runs there; use the same version of Atoll everywhere"
    )
