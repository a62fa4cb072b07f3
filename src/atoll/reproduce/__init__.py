"""Reproductions of papers' tables: every claim is a command.

An entry is one file of this package that defines ``ENTRY``; the registry finds it by the module's name with dashes. A
broken file does not affect others: it is loaded only when its entry is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .entry import Claim, Entry, Interrupted, Lab, NotKept
    from .page import Page
    from .registry import entries, find_entry, names, reproduce
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "entry": ("Claim", "Entry", "Interrupted", "Lab", "NotKept"),
            "page": ("Page",),
            "registry": ("entries", "find_entry", "names", "reproduce"),
        },
    )

__all__ = ["Claim", "Entry", "Interrupted", "Lab", "NotKept", "Page", "entries", "find_entry", "names", "reproduce"]
