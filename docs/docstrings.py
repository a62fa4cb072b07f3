"""Docstrings as the reference shows them: examples are examples, and a drawn table is shown as it is drawn."""

from __future__ import annotations

import re
from typing import Any

import griffe

_TABLE = re.compile(r"^(=+(?: +=+)+\n.*?\n=+(?: +=+)+\n.*?\n=+(?: +=+)+)$", re.MULTILINE | re.DOTALL)


def shown(text: str) -> str:
    """A docstring as Markdown."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    return _TABLE.sub(r"```text\n\1\n```", text)


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Every module, class, function and attribute."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)
