"""The words of a text, their rarity, and what the forms of text vectors share."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["at_length", "grams", "rarities"]

_WORD = re.compile(r"\w+(?:'\w+)?")


def grams(text: str, pairs: bool) -> list[bytes]:
    """Return the words of a text in lower case, and with ``pairs`` also each two neighbours."""
    words = [word.encode() for word in _WORD.findall(text.lower())]
    return words + [a + b" " + b for a, b in pairwise(words)] if pairs else words


def rarities(documents: NDArray[np.int64], texts: int) -> NDArray[np.float32]:
    """Return the weight ``ln((1 + n) / (1 + n_word)) + 1`` of words that ``documents`` of ``texts`` have."""
    return np.asarray(np.log((1 + texts) / (1 + documents)) + 1, np.float32)


def at_length(rows: NDArray[Any], length: float) -> NDArray[np.float32]:
    """Return rows at an Euclidean length; zeros stay zeros."""
    own = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(own, 1e-12) * np.float32(length), np.float32)
