"""The first words on a job's channel, before the engine takes over.

```
site   {"pulse": true} ...                                     while it loads its data
site   {"hello": {"parties": [names], "sizes": [rows], "card": {...} or None, "letters": {...} or None, "extents": {column: [...]},
        "held_out": [rows] or None}}                           or {"error": ...}
server {"roster": [names], "sizes": [rows], "others": {name: role}, "helpers": {name: site}, "card": {...} or None, "seed",
        "secret", "letters": {site: {...}}}     or {"error": ...}
site   {"ready": true}                                         or {"error": ...}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll.core.errors import AtollError, MessageError
from atoll.core.requests.wire import pack_error, unpack_error
from atoll.data.units import ColumnExtent, extents_in

from .cards import DataCard
from .letters import SignedKey

__all__ = ["Hello", "Rendezvous", "error_frame", "raise_if_error", "require_own_names"]

MOST_PARTIES = 10_000_000
MOST_ROWS = 1 << 40
"""Rows of one party: their sum over all parties must not overflow."""


@dataclass(frozen=True)
class Hello:
    """What a site says about itself.

    Attributes:
        parties: names of its clients: the site's name, or ``site/client``; a helper has none.
        sizes: rows of each.
        card: what a server must know of the data, if the clients' data has a common form.
        letters: its key for the letters of this job. It is signed again in each attempt, so it is not part of what a
            site must keep unchanged.
        extents: feature -> where its numbers lie, roughly; see `atoll.data.units`. Nothing if the site does not say.
        held_out: rows of each client on which it measures and does not train; ``None`` if the site cannot tell.
    """

    parties: tuple[str, ...]
    sizes: tuple[int, ...]
    card: DataCard | None
    letters: SignedKey | None = field(default=None, compare=False)
    extents: Mapping[str, ColumnExtent] = field(default_factory=dict, compare=False)
    held_out: tuple[int, ...] | None = field(default=None, compare=False)

    def packed(self) -> dict[str, Any]:
        """Return it as it travels and as the server records it."""
        return {
            "parties": list(self.parties),
            "sizes": np.asarray(self.sizes, dtype=np.int64),
            "card": None if self.card is None else self.card.packed(),
            "letters": None if self.letters is None else self.letters.pack(),
            "extents": {name: extent.pack() for name, extent in self.extents.items()},
            "held_out": None if self.held_out is None else np.asarray(self.held_out, dtype=np.int64),
        }

    @staticmethod
    def unpack(tree: Any, where: str) -> Hello:
        """Return the inverse of ``packed``.

        Raises:
            MessageError: it is not a hello.
        """
        try:
            parties = tuple(_text(name) for name in tree["parties"])
            sizes = _whole(tree["sizes"])
            if (
                len(parties) > MOST_PARTIES
                or len(parties) != len(sizes)
                or not all(0 <= size <= MOST_ROWS for size in sizes)
            ):
                raise ValueError(f"{len(parties)} parties and {len(sizes)} sizes")
            card, letters, extents = tree["card"], tree.get("letters"), tree.get("extents")
            held = None if tree.get("held_out") is None else _whole(tree["held_out"])
            if held is not None and (len(held) != len(sizes) or not all(0 <= size <= MOST_ROWS for size in held)):
                raise ValueError(f"{len(parties)} parties and {len(held)} numbers of rows that they hold out")
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
            raise _refused("a hello", where, error) from error
        signed = None if letters is None else SignedKey.unpack(letters, where)
        known = None if card is None else DataCard.unpack(card, where)
        return Hello(parties, sizes, known, signed, extents_in(extents, where), held)


@dataclass(frozen=True)
class Rendezvous:
    """Who takes part, as the server sends it to every site.

    Attributes:
        names: all clients, in the order of the roster.
        sizes: rows of each.
        card: what all sites agree on.
        seed: of everything reproducible.
        others: further parties, name -> role, after the clients.
        secret: makes the islands' secrets reproducible in a test, and every privacy guarantee void.
        letters: site -> its key for the letters of this job.
        helpers: further party -> the site that plays it; not those that live at the server.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    card: DataCard | None
    seed: int = 0
    others: Mapping[str, str] = field(default_factory=dict)
    secret: int | None = None
    letters: Mapping[str, SignedKey] = field(default_factory=dict)
    helpers: Mapping[str, str] = field(default_factory=dict)

    def packed(self) -> dict[str, Any]:
        """Return it as it travels."""
        return {
            "roster": list(self.names),
            "sizes": np.asarray(self.sizes, dtype=np.int64),
            "others": dict(self.others),
            "helpers": dict(self.helpers),
            "card": None if self.card is None else self.card.packed(),
            "seed": self.seed,
            "secret": self.secret,
            "letters": {site: signed.pack() for site, signed in self.letters.items()},
        }

    @staticmethod
    def unpack(tree: Any, where: str = "server") -> Rendezvous:
        """Return the inverse of ``packed``.

        Raises:
            AtollError: the server's own error, or it is not a roster.
        """
        raise_if_error(tree, where)
        try:
            hello = Hello.unpack({"parties": tree["roster"], "sizes": tree["sizes"], "card": tree["card"]}, where)
            if not hello.parties:
                raise ValueError("nobody")
            others = {_text(name): _text(role) for name, role in tree["others"].items()}
            helpers = {_text(name): _text(site) for name, site in tree["helpers"].items()}
            secret = None if tree["secret"] is None else int(tree["secret"])
            letters = {_text(site): SignedKey.unpack(signed, where) for site, signed in tree["letters"].items()}
            return Rendezvous(
                hello.parties, hello.sizes, hello.card, int(tree["seed"]), others, secret, letters, helpers
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
            if isinstance(error, AtollError):
                raise
            raise _refused("a roster", where, error) from error


def error_frame(error: BaseException) -> dict[str, Any]:
    """Return an error as it is sent to the other end."""
    return {"error": pack_error(error)}


def raise_if_error(tree: Any, where: str) -> None:
    """Raise the other end's error, with its place.

    Raises:
        AtollError: that error.
        MessageError: what arrived is not a frame.
    """
    if not isinstance(tree, dict):
        raise _refused("a frame", where, TypeError(type(tree).__name__))
    if tree.get("error") is None:
        return
    try:
        error = unpack_error(tree["error"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as wrong:
        raise _refused("an error", where, wrong) from wrong
    if isinstance(error, AtollError):
        place = where if error.where is None else f"{where}: {error.where}"
        raise type(error)(error.what, where=place, remedy=error.remedy)


def require_own_names(site: str, hello: Hello, helper: bool = False) -> None:
    """Refuse a site that claims parties other than its own, or none; a helper must have none.

    Raises:
        MessageError: a party's name is neither the site's name nor begins with ``site/``, or it appears twice; or there
            are no parties, or a helper has some.
    """
    if bool(hello.parties) == helper:
        why = "a helper has no clients" if helper else "a site has one at least"
        raise _refused("a hello", f"site {site!r}", ValueError(f"{len(hello.parties)} parties, and {why}"))
    seen: set[str] = set()
    for name in hello.parties:
        if (name != site and not name.startswith(f"{site}/")) or name in seen:
            why = "twice" if name in seen else "which is not one of its own"
            raise MessageError(
                f"it says that it holds party {name!r}, {why}",
                where=f"site {site!r}",
                remedy=f"its parties are {site!r} or begin with '{site}/', each once: check what runs there",
            )
        seen.add(name)


def _whole(value: Any) -> tuple[int, ...]:
    """Return a list of whole numbers, or an array of them."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value) if isinstance(value, list) else None
    if array is None or array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ValueError("not a list of whole numbers")
    return tuple(int(n) for n in array)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 1000 or not value.isprintable():
        raise ValueError(f"{value!r:.50} is not a name")
    return value


def _refused(what: str, where: str, error: Exception) -> MessageError:
    return MessageError(
        f"not {what}: {type(error).__name__}: {error}",
        where=where,
        remedy="run the same version of Atoll at the server and at every site",
    )
