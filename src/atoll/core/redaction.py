"""Values of the data in texts: marked where an error is written, and left out of what leaves the machine that has the data.

An error about a row is only of use to the person who owns the row if it shows the value. So its text has the value, between
guillemets: ``column 'dose' holds numbers, and «12,5» at row 3``. What a site sends to anybody else goes through `redacted` first.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["private", "redacted"]

_LONGEST = 200
_MARKED = re.compile("«[^»]*(?:»|$)")
_INNER = str.maketrans({"«": "‹", "»": "›"})


def private(value: Any) -> str:
    """Return a value of the data for an error's text, in marks: one line, of at most 200 characters.

    Args:
        value: a value, or a text that may hold some, such as another library's error.

    Example:
        >>> private("Smith John")
        '«Smith John»'
    """
    text = str(value).translate(_INNER)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: _LONGEST + 1])
    return f"«{text if len(text) <= _LONGEST else text[:_LONGEST] + '…'}»"


def redacted(text: str) -> str:
    """Return a text without the marked values.

    Example:
        >>> redacted("column 'dose' has «12,5» at row 3")
        "column 'dose' has «…» at row 3"
    """
    return _MARKED.sub("«…»", text)
