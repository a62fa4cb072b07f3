"""What a site may send: every frame is checked before anything in it is used, and every reply by what its request and its cohort let expect."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import ROLES, Part, Total, Totals, finite
from atoll.core.errors import LetterError, MessageError
from atoll.core.message import DEFAULT_LIMITS, Limits
from atoll.core.requests.request import PartialSum, TaskResult, weight_bound
from atoll.core.requests.wire import unpack_error, unpack_folded, unpack_ran

if TYPE_CHECKING:
    from atoll.core.requests.request import ReplyForm, Request

__all__ = [
    "FAR",
    "LEAST_ALIKE",
    "LONGEST",
    "QUIET",
    "Intake",
    "describe_value",
    "form_of",
    "limits_of",
    "majority",
    "measures",
    "names_in",
    "outlying",
    "ran_of",
    "read",
    "require_declared",
    "require_events",
    "require_expected",
    "require_fit",
    "require_reply",
    "require_total",
    "text_in",
    "whole_in",
    "wrong",
]


# ------------------------------------------------------------------ reads fields from a site's frame, and refuses a frame that is malformed


Field = TypeVar("Field")
LONGEST = 1000
"""Characters of a name, at most."""
_MOST_NAMES = 1_000_000


def whole_in(frame: Any, name: str) -> int:
    """Return a whole number in a frame.

    Raises:
        MessageError: it is missing, or not a whole number.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if type(found) is not int:
        raise wrong(f"{name!r} is {describe_value(found)} and must be a whole number")
    return found


def text_in(frame: Any, name: str) -> str:
    """Return a word in a frame.

    Raises:
        MessageError: it is missing, not text, or too long.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if not isinstance(found, str) or len(found) > LONGEST:
        raise wrong(f"{name!r} is {describe_value(found)} and must be a word")
    return found


def names_in(frame: Any, name: str) -> list[str]:
    """Return a list of words in a frame.

    Raises:
        MessageError: it is missing, or holds something else.
    """
    found = frame.get(name) if isinstance(frame, dict) else None
    if not isinstance(found, list) or len(found) > _MOST_NAMES:
        raise wrong(f"{name!r} is {describe_value(found)} and must be a list of words")
    return [text_in({name: each}, name) for each in found]


def read(reader: Callable[[], Field]) -> Field:
    """Read a part of a frame; whatever that raises, the frame has the wrong form.

    Raises:
        MessageError: the frame has the wrong form.
    """
    try:
        return reader()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, LetterError) as error:
        raise wrong(f"{type(error).__name__}: {error!s:.300}") from error


def describe_value(value: Any) -> str:
    """Describe a foreign value in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}{list(value.shape)}"
    if isinstance(value, dict | list | tuple | bytes):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return repr(value[:80] if isinstance(value, str) else value)


def wrong(what: str) -> MessageError:
    """Return the error for a malformed frame."""
    return MessageError(what, where="a reply", remedy="check what runs there; use the same version of Atoll everywhere")


# ------------------------------------------------------------------ what can be added up: each total of a reply is checked, and whether it fits those before it


_KINDS = ("mean", "sum", "vote", "parts")


def require_total(name: str, total: Total, position: int) -> None:
    """Refuse a total that is not of one reply of this party, or holds anything but finite numbers.

    Raises:
        MessageError: the total is refused; the message says why.
    """
    if not isinstance(name, str) or len(name) > LONGEST or not name.isprintable():
        raise wrong(f"a total called {describe_value(name)}")
    words = isinstance(total.kind, str) and isinstance(total.role, str)
    if not words or total.kind not in _KINDS or total.role not in ROLES or type(total.n) is not int or total.n != 1:
        raise wrong(f"{name!r} is a total of kind {describe_value(total.kind)} of {describe_value(total.n)} replies")
    if not _real(total.weight):
        raise wrong(f"{name!r} has the weight {describe_value(total.weight)}")
    _require_whole(name, total.kind, total.weight)
    if total.kind != "parts":
        _require_numbers(name, total.value)
        return
    if len(total.value) != 1:
        raise wrong(f"{name!r} has {len(total.value)} parts")
    part = total.value[0]
    known = isinstance(part.of, str) and part.of in _KINDS
    if type(part.sender) is not int or part.sender not in (-1, position) or not known:
        raise wrong(f"a part of {name!r} is signed by {describe_value(part.sender)}")
    if not _real(part.weight):
        raise wrong(f"a part of {name!r} has the weight {describe_value(part.weight)}")
    _require_whole(name, part.of, part.weight)
    if part.of == "parts":
        _require_finite(name, part.value)
    else:
        _require_numbers(name, part.value)


def _require_whole(name: str, kind: str, weight: Any) -> None:
    """Refuse a weight below 0, and one other than 1 where replies have none: it would count a party twice or take others away."""
    if weight < 0 or (kind in ("sum", "vote") and weight != 1):
        raise wrong(f"{name!r}, a {kind}, has the weight {float(weight):.6g}")


def _require_numbers(name: str, value: Any) -> None:
    """Check that a value holds only finite numbers."""
    for path, leaf in T.items(value):
        array = isinstance(leaf, np.ndarray | np.generic)
        if not (leaf.dtype.kind in "biufc" if array else isinstance(leaf, Number)):
            raise wrong(f"{_at(name, path)} holds {describe_value(leaf)}, which is not a number")
    _require_finite(name, value)


def _require_finite(name: str, value: Any) -> None:
    for path, leaf in T.items(value):
        number = isinstance(leaf, np.ndarray | np.generic | float | complex)
        if number and not finite(leaf):
            raise wrong(f"{_at(name, path)} is not finite")


def require_fit(sums: Totals, part: Mapping[str, Total]) -> None:
    """Refuse totals that cannot be added to those before them entry by entry.

    Kinds, structures and shapes must be the same. So must dtypes, except that real numbers of any width fit each other,
    as they do in a simulation.

    Raises:
        MessageError: they differ; the message names the total and the difference.
    """
    for name, total in part.items():
        known = sums.get(name)
        if known is None:
            continue
        if (known.kind, known.role) != (total.kind, total.role):
            raise _differs(name, f"a {total.kind} ({total.role})", f"a {known.kind} ({known.role})")
        if total.kind != "parts":
            _require_alike(name, known.value, total.value)


def form_of(totals: Mapping[str, Total]) -> Any:
    """Return the form of some totals, to compare: equal forms fit each other."""
    return tuple(
        (name, total.kind, total.role, None if total.kind == "parts" else _form(total.value))
        for name, total in sorted(totals.items())
    )


def _form(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _form(each)) for key, each in sorted(value.items()))
    if isinstance(value, list | tuple):
        return (len(value), *map(_form, value))
    return (np.shape(value), np.asarray(value).dtype.kind == "c")


def _require_alike(name: str, known: Any, value: Any) -> None:
    """Require the same structure, shapes and kinds of numbers from here downwards."""
    if isinstance(known, dict) and isinstance(value, dict) and known.keys() == value.keys():
        pairs: list[tuple[Any, Any, Any]] = [(key, known[key], value[key]) for key in known]
    elif isinstance(known, list | tuple) and isinstance(value, list | tuple) and len(known) == len(value):
        pairs = [(i, *both) for i, both in enumerate(zip(known, value, strict=True))]
    elif isinstance(known, dict | list | tuple) or isinstance(value, dict | list | tuple):
        raise _differs(name, describe_value(value), describe_value(known))
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


def _at(name: str, path: str) -> str:
    return repr(f"{name}/{path}" if path and path != "." else name)


def _differs(name: str, said: str, known: str) -> MessageError:
    return wrong(f"{name!r} is {said}, but the sum of those before it is {known}")


# ------------------------------------------------------------------ the form of replies to a task that declares none
#
# The form of replies to a task that declares none: what most of the cohort sent, never what came first.


LEAST_ALIKE = 2
"""Replies of one form that settle it before all are there."""


def majority(frames: Iterable[Any], *, complete: bool) -> Totals | None:
    """Return the totals of a reply of the form that most replies have; of forms with as many, that of the first in the cohort.

    Args:
        frames: replies that are there, in cohort order.
        complete: whether no more will come.

    Returns:
        The totals, nothing where no reply has any, or ``None`` if that is not settled yet.
    """
    seen = [totals for frame in frames if frame["op"] == "folded" and (totals := _totals(frame))]
    votes = Counter(form_of(totals) for totals in seen)
    if not votes:
        return {} if complete else None
    form, most = votes.most_common(1)[0]
    if most < LEAST_ALIKE and not complete:
        return None
    return dict(next(totals for totals in seen if form_of(totals) == form))


def _totals(frame: Any) -> Mapping[str, Total]:
    return unpack_folded(frame["folded"]).totals


# ------------------------------------------------------------------ replies that stand far outside their cohort: by the norm of their update, or by their loss
#
# A reply may have the right form and still be a model of nothing: a party divides by the wrong number, has its columns in other units, or means harm. The server
# sees this where it sees single replies. Far outside is more than `FAR` times the median of the cohort, and more than `FAR` times the median's usual distance
# from it: ``x > FAR * m`` and ``x - m > FAR * 1.4826 * MAD``, with the median absolute deviation scaled to a normal standard deviation (Hampel, 1974, "The
# Influence Curve and its Role in Robust Estimation"). Only what is too large is named: a small update changes little.


FAR = 10.0
LEAST_COHORT = 3
"""Replies of a cohort from which on there is a middle."""


def measures(totals: Totals) -> dict[str, float]:
    """Return what is compared of one reply: the norm of its update, and its losses, by the words for them."""
    updates = [_value(total) for total in totals.values() if total.role == "update"]
    found = {}
    if updates:
        found["an update of norm"] = math.sqrt(sum(_square(value) for value in updates))
    for name, total in totals.items():
        if total.role == "metric" and "loss" in name:
            value = _value(total)
            if np.shape(value) == ():
                found[f"the metric {name!r}"] = abs(float(value))
    return found


def outlying(cohort: Mapping[int, Mapping[str, float]]) -> dict[int, str]:
    """Return the parties that stand far outside, and how far, in words.

    Args:
        cohort: position -> `measures` of its reply.
    """
    found: dict[int, list[str]] = {}
    for what in dict.fromkeys(name for row in cohort.values() for name in row):
        rows = {position: row[what] for position, row in cohort.items() if what in row}
        if len(rows) < LEAST_COHORT:
            continue
        values = np.array(list(rows.values()))
        middle = float(np.median(values))
        spread = 1.4826 * float(np.median(np.abs(values - middle)))
        for position, value in rows.items():
            if middle > 0 and value > FAR * middle and value - middle > FAR * spread:
                found.setdefault(position, []).append(f"{what} {value:.3g}, {value / middle:,.0f} times the median")
    return {position: "; ".join(words) for position, words in found.items()}


def _value(total: Total) -> Any:
    """Return the value of one reply itself: a mean's summand has the weight in it."""
    if total.kind == "parts":
        part = total.value[0]
        return part.value if part.of in ("parts", "sum", "vote") else _divide_leaves(part.value, part.weight)
    return _divide_leaves(total.value, total.weight) if total.kind == "mean" else total.value


def _divide_leaves(value: Any, weight: Any) -> Any:
    return tree.map(lambda leaf: np.asarray(leaf) / float(weight), value) if float(weight) > 0 else value


def _square(value: Any) -> float:
    total = 0.0
    for leaf in tree.leaves(value):
        flat = np.asarray(leaf).reshape(-1)
        if flat.dtype.kind in "fiub":
            wide = flat if flat.dtype == np.float64 else flat.astype(np.float64)
            with np.errstate(over="ignore"):
                total += float(wide @ wide)
    return total


# ------------------------------------------------------------------ a reply beside what the program expects
#
# A reply beside what the program expects: names, forms, metrics and weights follow from the request and from the rows that the party declared.


_LONGEST_METRIC = 100
_MOST_METRICS = 100
_MARGIN = 1 << 20
"""Bytes of a reply beside its values: privacy events, names, sizes."""
_LEAVES = 50_000
"""Leaves of a reply beside its values: privacy events, most of all."""


def require_expected(totals: Totals, request: Request, rows: int | None) -> None:
    """Refuse what one party adds to a sum if it is not what the request asks for.

    Args:
        totals: what it adds, of one reply.
        request: the request, with the form of its replies.
        rows: rows that the party declared when the job began; ``None`` if it has none.

    Raises:
        MessageError: it differs; the message names the place.
    """
    form = request.form
    if form is None:
        return
    required, optional = request.example
    for name in required:
        if name not in totals:
            raise wrong(f"no {name!r}, which the request asks for")
    for name, total in totals.items():
        known = required if name in required else optional.get(name, {}) if name in optional else None
        if known is None and name not in optional:
            _require_metric(name, total, form)
        elif known:
            require_fit(known, {name: _whole(total, known[name])})
            _require_single(name, total, known[name])
        elif total.kind != "parts" or total.role != "report":
            raise wrong(f"{name!r} is a {total.kind} ({total.role}), but a report was asked for")
        _require_weight(name, total, form, rows)
    if sum(name not in required and name not in optional for name in totals) > _MOST_METRICS:
        raise wrong(f"{len(totals)} values; at most {_MOST_METRICS} metrics are allowed")


def _require_single(name: str, total: Total, known: Total) -> None:
    """Refuse a single update of another form: no sum compares it with those before it, and the fold would fail without its party. Single replies of other roles may differ."""
    if total.kind == known.kind == "parts" and total.role == "update":
        _require_numbers(name, total.value[0].value)
        _require_alike(name, known.value[0].value, total.value[0].value)


def _whole(total: Total, known: Total) -> Total:
    """Return a total that is kept apart (see ``Request.apart``) as it would be in a sum."""
    if total.kind != "parts" or known.kind == "parts":
        return total
    part = total.value[0]
    return Total(part.of, part.value, part.weight, 1, total.role) if isinstance(part, Part) else total


def _require_metric(name: str, total: Total, form: ReplyForm) -> None:
    """Accept a metric that the program registered: a number."""
    if form.metrics is not None and name not in form.metrics:
        names = ", ".join(sorted(form.metrics)) or "none"
        raise wrong(f"{describe_value(name)}, which nobody asked for; the metrics are: {names}")
    if total.role != "metric" or not _is_plain(name):
        raise wrong(
            f"{describe_value(name)} ({total.role}) is not a metric; its name needs letters, digits, '_', '-' or '.'"
        )
    part = total.value[0].value if total.kind == "parts" else total.value
    if isinstance(part, dict | list | tuple) or np.shape(part) != ():
        raise wrong(f"the metric {name!r} is {describe_value(part)} and must be a number")


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_METRIC and all(c.isalnum() or c in "_-. " for c in name)


def _require_weight(name: str, total: Total, form: ReplyForm, rows: int | None) -> None:
    weight = float(total.value[0].weight if total.kind == "parts" else total.weight)
    bound = form.weights.get(name)
    if bound is None or rows is None:
        return
    most = weight_bound(bound, rows)
    if weight > most:
        raise wrong(f"{name!r} has the weight {weight:.6g}, but a party of {rows} rows has at most {most:.6g}")


def limits_of(request: Request, known: Limits) -> Limits:
    """Return the bounds on a message with a reply of the expected form; those given, if nothing is known of it."""
    form = request.form
    if form is None:
        return known
    required, optional = request.example
    more = [each for each in optional.values() if each]
    if any(one is None for one in form.optional.values()):
        return known
    trees: list[Any] = [
        total.value if total.kind != "parts" else [p.value for p in total.value]
        for part in (required, *more)
        for total in part.values()
    ]
    size = sum(_double_bytes(tree) for tree in trees) + _MARGIN
    leaves = sum(len(T.leaves(tree)) for tree in trees)
    return Limits(
        max_bytes=min(known.max_bytes, size),
        max_header_bytes=known.max_header_bytes,
        max_leaves=min(known.max_leaves, 4 * leaves + _LEAVES),
        max_text_bytes=min(known.max_text_bytes, _MARGIN),
    )


def _double_bytes(tree: Any) -> int:
    """Return the bytes of a tree if each number took 16 bytes: real numbers of any width are taken."""
    wide = sum(16 * int(np.size(leaf)) for leaf in T.leaves(tree))
    return wide + M.nbytes(tree) - sum(int(getattr(leaf, "nbytes", 0)) for leaf in T.leaves(tree))


# ------------------------------------------------------------------ how much one site may send: as large as what it was asked for, and not much more often


QUIET = Limits(max_bytes=32 << 20, max_header_bytes=32 << 20, max_text_bytes=32 << 20, max_leaves=200_000)
"""Bounds on the messages of a site that was asked for no reply: words about generations, names of results."""
_MOST_UNASKED = 1000
"""Frames beyond those asked for: late answers to what was given up."""
_PULSES, _A_SECOND = 200.0, 20.0
"""Signs of life at once, and a second."""


class Intake:
    """Counts what a site sends.

    Args:
        site: its name.
        link: to its job process; its channel refuses larger messages before they are received.
    """

    def __init__(self, site: str, link: Any) -> None:
        self._site = site
        self._link = link
        self._limits = QUIET
        self._asked = self._unasked = 0
        self._pulses, self._counted = _PULSES, time.monotonic()
        self._narrow()

    def note_asked(self, replies: int, limits: Limits | None) -> None:
        """Note that it is asked for some replies, of a size that the request bounds; bounds never shrink, because a late reply is no fault."""
        self._asked += replies
        wider = DEFAULT_LIMITS if limits is None else limits
        limits = Limits(**{name: max(getattr(self._limits, name), getattr(wider, name)) for name in Limits.__slots__})
        if limits != self._limits:
            self._limits = limits
            self._narrow()

    def count_unasked(self) -> None:
        """Count a frame that nobody asked for.

        Raises:
            MessageError: there are too many.
        """
        self._unasked += 1
        if self._unasked > self._asked + _MOST_UNASKED:
            raise wrong(f"it sent {self._unasked:,} answers that nobody asked for, and was asked for {self._asked:,}")

    def pulse(self) -> None:
        """Count a sign of life.

        Raises:
            MessageError: there are too many in this time.
        """
        now = time.monotonic()
        self._pulses = min(_PULSES, self._pulses + (now - self._counted) * _A_SECOND) - 1.0
        self._counted = now
        if self._pulses < 0:
            raise wrong(f"it sent more than {_PULSES:g} signs of life at once")

    def _narrow(self) -> None:
        narrow = getattr(self._link, "narrow", None)
        if narrow is not None:
            narrow(self._limits)


# ------------------------------------------------------------------ what a site may send: every frame is checked before anything in it is used
#
# The job process of a site runs on somebody else's machine. Its frames have the right form only because our code writes
# them so. A person who runs another program there must not be able to change a sum by more than replies of that site's
# own parties could.


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
