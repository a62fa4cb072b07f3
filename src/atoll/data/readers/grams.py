"""The words of a text."""

from __future__ import annotations

import re
from itertools import pairwise

__all__ = ["grams"]

_WORD = re.compile(r"\w+(?:'\w+)?")


def grams(text: str, pairs: bool) -> list[bytes]:
    """Return the words of a text in lower case, and with ``pairs`` also each two neighbours."""
    words = [word.encode() for word in _WORD.findall(text.lower())]
    return words + [a + b" " + b for a, b in pairwise(words)] if pairs else words
