"""The ways to misbehave, by name: what a hostile site sends in place of what an honest one would, and the channel that carries it out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from atoll.core.errors import MessageError
from atoll.core.message import Limits, encode
from atoll.runtime.line.channel import ChannelBlock
from atoll.runtime.line.frames import END

__all__ = ["ATTACKS", "Attack", "Fate", "Garbage", "Mouth", "Silence", "change_summand", "kind_of", "retold", "totals"]

Fate = Literal["refused", "forgotten", "warned", "lost", "believed"]
Change = Callable[[dict[str, Any]], list[Any]]


@dataclass(frozen=True)
class Attack:
    """One way to misbehave.

    Attributes:
        name: a word or two.
        does: what the site does, in words.
        meets: what it meets, in words.
        fate: what becomes of it: ``refused``, the site is named and nothing of its reply is used; ``forgotten``, it changes nothing; ``warned``, its
            reply is used, and the server says that it stands far outside; ``lost``, the site is given up after the job's patience; ``believed``,
            nobody can tell.
        on: the kind of frame in whose place it sends something else: ``hello``, ``folded`` or ``pulse``.
        change: frame -> what the site sends instead.
    """

    name: str
    does: str
    meets: str
    fate: Fate
    on: str
    change: Change


@dataclass(frozen=True)
class Garbage:
    """Bytes that are no message."""

    content: bytes


class Silence:
    """Nothing, from now on: not even signs of life."""


def kind_of(frame: Any) -> str:
    """Return what a site's frame is: ``hello``, ``folded``, ``ran``, ``pulse``, ..."""
    if not isinstance(frame, Mapping):
        return ""
    return str(frame.get("op") or next(iter(frame), ""))


def retold(frame: Mapping[str, Any], *path: str, **changes: Any) -> dict[str, Any]:
    """Return a frame with other fields inside; arrays are shared, dicts are not.

    Args:
        frame: the honest frame.
        path: keys that lead to the fields.
        changes: the fields.
    """
    if not path:
        return {**frame, **changes}
    return {**frame, path[0]: retold(frame[path[0]], *path[1:], **changes)}


def change_summand(**changes: Any) -> Change:
    """Change fields of a summand."""
    return lambda frame: [retold(frame, "folded", **changes)]


def totals(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    """Change the totals of a summand: name -> kind, value, weight, number and role."""
    return lambda frame: [retold(frame, "folded", totals=change(dict(frame["folded"]["totals"])))]


def scale_tree(value: Any, factor: float) -> Any:
    """Return a tree of numbers times a factor."""
    if isinstance(value, dict):
        return {key: scale_tree(each, factor) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(scale_tree(each, factor) for each in value)
    return np.asarray(value) * np.asarray(value).dtype.type(factor)


def leafwise(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree with each array changed."""
    if isinstance(value, dict):
        return {key: leafwise(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(leafwise(each, change) for each in value)
    return change(np.asarray(value))


# ---------------------------------------------------------------- the ways to misbehave, by name

_UPDATE = "update"
_MB = 1 << 20


def _update(**changes: Any) -> Any:
    return totals(lambda all_: {**all_, _UPDATE: {**all_[_UPDATE], **changes}})


def _values(change: Any) -> Any:
    return totals(lambda all_: {**all_, _UPDATE: {**all_[_UPDATE], "value": leafwise(all_[_UPDATE]["value"], change)}})


def _weigh_mean(factor: float) -> Any:
    """The same mean with another weight."""

    def change(all_: dict[str, Any]) -> dict[str, Any]:
        update = all_[_UPDATE]
        return {
            **all_,
            _UPDATE: {
                **update,
                "value": scale_tree(update["value"], factor),
                "weight": float(update["weight"]) * factor,
            },
        }

    return totals(change)


def _metric(name: str, value: Any = 1.0) -> Any:
    made = {"kind": "mean", "value": value, "weight": 1.0, "n": 1, "role": "metric"}
    return totals(lambda all_: {**all_, name: made})


def _tower(depth: int) -> Any:
    made: Any = 1.0
    for _ in range(depth):
        made = [made]
    return made


def _spoilt(value: np.ndarray) -> np.ndarray:
    made = value.astype(np.float64)
    made.reshape(-1)[-1] = math.nan
    return made


def _event(party: str, kind: str = "non-private") -> dict[str, Any]:
    return {"event": {"kind": kind}, "party": party, "request": "r"}


_NAMED = "the reply is refused, the site named"
_AT_ONCE = "the message is refused from its first bytes, the site named"
_HELLO = "the site is refused before the first round, and named"

_HELLOS = (
    Attack("another's name", "says that it holds another site's client", _HELLO, "refused", "hello",
           lambda f: [retold(f, "hello", parties=["site-1"])]),
    Attack("rows below zero", "says that it has -5 rows", _HELLO, "refused", "hello",
           lambda f: [retold(f, "hello", sizes=np.array([-5]))]),
    Attack("rows beyond number", "says that it has 2^60 rows, to weigh more than all others", _HELLO, "refused", "hello",
           lambda f: [retold(f, "hello", sizes=np.array([1 << 60]))]),
    Attack("nobody", "says that it has no client", _HELLO, "refused", "hello",
           lambda f: [retold(f, "hello", parties=[], sizes=np.zeros(0, np.int64))]),
    Attack("a card that is none", "describes its data in a form that there is not", _HELLO, "refused", "hello",
           lambda f: [retold(f, "hello", card={"task": "theft"})]),
    Attack("a card of another job", "says that its columns have another shape", _HELLO, "refused", "hello",
           lambda f: [retold(f, "hello", "card", columns={"x": ["float32", [10**8]], "y": ["int64", []]})]),
    Attack("an endless card", "names a million features of 100 letters", _HELLO, "refused", "hello",
           lambda f: [retold(f, "hello", "card", features=[f"{i:0100d}" for i in range(1_000_000)])]),
    Attack("no greeting", "sends a list in place of its greeting", _HELLO, "refused", "hello", lambda f: [[1, 2, 3]]),
)  # fmt: skip

_FORMS = (
    Attack("another shape", "sends (n, 2, 2) in place of (n, 2)", _NAMED, "refused", "folded",
           _values(lambda v: np.ones((*v.shape, 2)))),
    Attack("another structure", "sends a list in place of named parameters", _NAMED, "refused", "folded", _update(value=[1.0, 2.0])),
    Attack("one leaf more", "adds a parameter that the model does not have", _NAMED, "refused", "folded",
           totals(lambda a: {**a, _UPDATE: {**a[_UPDATE], "value": {**a[_UPDATE]["value"], "more": np.ones(3)}}})),
    Attack("complex numbers", "sends complex numbers", _NAMED, "refused", "folded", _values(lambda v: v * 1j)),
    Attack("texts", "sends words in place of numbers", _NAMED, "refused", "folded", _values(lambda v: np.full(v.shape, "x"))),
    Attack("nothing", "leaves the update out", _NAMED, "refused", "folded",
           totals(lambda a: {k: v for k, v in a.items() if k != _UPDATE})),
    Attack("one update more", "adds a second update", _NAMED, "refused", "folded", totals(lambda a: {**a, "more": a[_UPDATE]})),
    Attack("another kind", "sends a sum where a mean is due, to count more", _NAMED, "refused", "folded", _update(kind="sum", weight=1.0)),
    Attack("another role", "calls its update a metric", _NAMED, "refused", "folded", _update(role="metric")),
    Attack("a tower", "nests lists 60 deep", _NAMED, "refused", "folded", _update(value=_tower(60))),
    Attack("NaN", "sends one number that is none, at the end of an array", _NAMED, "refused", "folded", _values(_spoilt)),
    Attack("infinity", "sends infinite numbers", _NAMED, "refused", "folded", _values(lambda v: np.full(v.shape, np.inf))),
    Attack("another answer", "confirms that it is done in place of its reply", _NAMED, "refused", "folded", lambda f: [retold(f, op="done")]),
    Attack("no reply at all", "sends a frame that is a number", _NAMED, "refused", "folded", lambda f: [7]),
    Attack("a hollow frame", "leaves the summand out", _NAMED, "refused", "folded", lambda f: [retold(f, folded=None)]),
)  # fmt: skip

_SIZES = (
    Attack("800 MB", "sends 800 MB in place of a few numbers", _AT_ONCE, "refused", "folded",
           _update(value={"weight": np.zeros(100 * _MB)})),
    Attack("many leaves", "sends a tree of 900,000 leaves", _AT_ONCE, "refused", "folded", _update(value=[0.0] * 900_000)),
    Attack("shapes without bytes", "declares an array of 2^40 rows of nothing", _NAMED, "refused", "folded",
           _update(value={"weight": np.zeros((1 << 40, 0)), "bias": np.zeros((0, 1 << 50))})),
    Attack("a long name", "calls a metric by 2,000,000 letters", _NAMED, "refused", "folded", _metric("x" * 2_000_000)),
    Attack("a long error", "fails with an error of 50 MB", "the error is cut, the site named", "refused", "folded",
           lambda f: [{"op": "failed", "id": f["id"], "party": f["party"], "events": [],
                       "error": {"kind": "TaskError", "what": "x" * (50 * _MB), "where": None, "remedy": None}}]),
    Attack("a flood of replies", "sends its reply 50,000 times", "the first counts; the flood ends its connection, the site named", "refused", "folded",
           lambda f: [f] * 50_000),
    Attack("a flood of signs of life", "sends 50,000 signs of life at once", "the flood ends its connection, the site named", "refused", "folded",
           lambda f: [{"op": "pulse"}] * 50_000),
    Attack("a flood of events", "reports 20,000 privacy events", _NAMED, "refused", "folded",
           lambda f: [retold(f, events=[_event("site-3")] * 20_000)]),
    Attack("garbage", "sends bytes that are no message", _AT_ONCE, "refused", "folded", lambda f: [Garbage(bytes(range(256)) * 40)]),
)  # fmt: skip

_NAMES = (
    Attack("another's reply", "answers for another site's client", _NAMED, "refused", "folded", lambda f: [retold(f, party=0)]),
    Attack("two senders", "says that its summand is of two clients", _NAMED, "refused", "folded",
           lambda f: [retold(f, "folded", senders=np.array([f["party"], 0]), nbytes=np.array([8, 8]))]),
    Attack("counted five times", "says that its reply is five replies", _NAMED, "refused", "folded", _update(n=5)),
    Attack("another is rejected", "says that another site's reply was rejected", _NAMED, "refused", "folded", change_summand(rejected=[[0, "bad"]])),
    Attack("another fails", "reports an error in another site's name", _NAMED, "refused", "folded",
           change_summand(errors=[[0, {"kind": "TaskError", "what": "no", "where": None, "remedy": None}]])),
    Attack("another's privacy", "reports what another site's client has spent", _NAMED, "refused", "folded",
           lambda f: [retold(f, events=[_event("site-1")])]),
    Attack("a private state", "sends a private state along", _NAMED, "refused", "folded",
           change_summand(left={"main": {"singles": [[2, {"w": 1}]], "blocks": []}})),
    Attack("a reply to nothing", "answers a request that nobody made, and then its own", "the answer to nothing is forgotten", "forgotten", "folded",
           lambda f: [retold(f, id="main/step/99"), f]),
    Attack("twice", "sends its reply twice", "the second is forgotten", "forgotten", "folded", lambda f: [f, f]),
)  # fmt: skip

_INFLUENCE = (
    Attack("a weight of a million", "gives its update the weight of a million rows", _NAMED, "refused", "folded", _weigh_mean(1e6)),
    Attack("a weight below zero", "takes the others' updates away with a negative weight", _NAMED, "refused", "folded", _weigh_mean(-1.0)),
    Attack("a weight that is none", "gives its update the weight NaN", _NAMED, "refused", "folded", _update(weight=math.nan)),
    Attack("a metric of its own", "reports an accuracy that nobody asked for", _NAMED, "refused", "folded", _metric("test/accuracy")),
    Attack("a column of the row", "reports a metric called replied", _NAMED, "refused", "folded", _metric("replied")),
    Attack("a metric of a thousand numbers", "reports an array as its loss", _NAMED, "refused", "folded", _metric("loss", np.ones(1000))),
    Attack("a metric that moves cursors", "names a metric with control characters", _NAMED, "refused", "folded", _metric("\x1b[2J")),
    Attack("a large update", "sends its update times 2,501", "a warning names it; with on_outlier: reject, the reply is rejected", "warned",
           "folded", totals(lambda a: {**a, _UPDATE: {**a[_UPDATE], "value": scale_tree(a[_UPDATE]["value"], 2501.0)}})),
    Attack("a large loss", "reports a loss of a billion", "a warning names it; with on_outlier: reject, the reply is rejected", "warned", "folded",
           totals(lambda a: {**a, "loss": {**a["loss"], "value": np.float64(1e9) * float(a["loss"]["weight"])}})),
    Attack("a turned update", "sends its update with the opposite sign", "nothing: it is a possible update", "believed", "folded",
           totals(lambda a: {**a, _UPDATE: {**a[_UPDATE], "value": scale_tree(a[_UPDATE]["value"], -1.0)}})),
    Attack("wrong labels", "sends an update of zeros, as if it had learned nothing", "nothing: it is a possible update", "believed", "folded",
           _values(lambda v: v * 0)),
    Attack("silence", "stops in the middle of a round", "it is given up after the job's patience, and named", "lost", "folded",
           lambda f: [Silence()]),
)  # fmt: skip

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in (*_HELLOS, *_FORMS, *_SIZES, *_NAMES, *_INFLUENCE)}


# ---------------------------------------------------------------- the channel of a hostile site's job process

_BLOCK = 1 << 16
_WIDE = Limits(max_header_bytes=1 << 30, max_key_bytes=1 << 30, max_leaves=1 << 30, max_int_bits=1 << 30)


class Mouth:
    """A channel to the server that carries out an attack.

    Args:
        channel: the real channel.
        attack: what to do.
        after: frames of the attack's kind that it sends honestly before.
    """

    def __init__(self, channel: Any, attack: Attack, after: int = 0) -> None:
        self._channel = channel
        self._attack = attack
        self._honest = after
        self._silent = False

    def __getattr__(self, name: str) -> Any:
        if name in ("post", "feed"):  # the short ways around `send` and `recv`
            raise AttributeError(name)
        return getattr(self._channel, name)

    async def send(self, tree: Any) -> None:
        """Send a frame, or what the attack puts in its place."""
        if self._silent:
            await asyncio.Event().wait()
        if kind_of(tree) != self._attack.on:
            await self._channel.send(tree)
            return
        self._honest -= 1
        if self._honest >= 0:
            await self._channel.send(tree)
            return
        for said in self._attack.change(tree):
            await self._say(said)

    async def _say(self, said: Any) -> None:
        if isinstance(said, Silence):
            self._silent = True
            await asyncio.Event().wait()
        elif isinstance(said, Garbage):
            await self._channel.send_block(ChannelBlock(said.content, END))
        else:
            await self._send_whatever(said)

    async def _send_whatever(self, said: Any) -> None:
        """Send a frame. Our own writer refuses what no reader takes, so such a frame is written without limits."""
        try:
            await self._channel.send(said)
        except MessageError:
            content = encode(said, limits=_WIDE)
            for start in range(0, len(content), _BLOCK):
                last = start + _BLOCK >= len(content)
                await self._channel.send_block(ChannelBlock(content[start : start + _BLOCK], END if last else 0))
