"""A few lines about an object, for a terminal and for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from html import escape
from typing import Any

__all__ = ["Overview", "format_count", "human_bytes", "of_settings"]

_LONGEST = 76
"""Maximum number of characters of one value."""


@dataclass(frozen=True)
class Overview:
    """A title and named lines below it.

    Attributes:
        title: the first line.
        lines: maps a name to its text.
    """

    title: str
    lines: Mapping[str, str]

    def __str__(self) -> str:
        width = max((len(name) for name in self.lines), default=0)
        return "\n".join([self.title, *(f"  {name:<{width}}  {text}" for name, text in self.lines.items())])

    def html(self) -> str:
        """The overview as a table, for a notebook."""
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(text)}</td></tr>'
            for name, text in self.lines.items()
        )
        return f"<div><strong>{escape(self.title)}</strong><table>{rows}</table></div>"


def of_settings(title: str, settings: Any) -> Overview:
    """The fields of a dataclass that differ from their default values."""
    said = {field.name: getattr(settings, field.name) for field in fields(settings) if not _is_default(settings, field)}
    return Overview(title, {name: _short(value) for name, value in said.items()})


def format_count(number: int, noun: str) -> str:
    """A number with its noun: ``1 client``, ``1,000 clients``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def human_bytes(count: float) -> str:
    """Bytes with a decimal unit."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} bytes"


def _is_default(settings: Any, field: Any) -> bool:
    value = getattr(settings, field.name)
    if field.default is not MISSING:
        return value is field.default or (
            isinstance(value, str | int | float | bool | tuple) and value == field.default
        )
    return field.default_factory is not MISSING and repr(value) == repr(field.default_factory())


def _short(value: Any) -> str:
    text = " ".join(repr(value).split()) if not callable(value) else getattr(value, "__qualname__", repr(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
