"""Papers' tables, run again: every claim is a command.

An entry is one file of this package that defines ``ENTRY``; it is in the registry because it is there.
"""

from .entry import Claim, Entry, Interrupted, Lab, NotKept
from .page import Page
from .registry import entries, entry, reproduce

__all__ = ["Claim", "Entry", "Interrupted", "Lab", "NotKept", "Page", "entries", "entry", "reproduce"]
