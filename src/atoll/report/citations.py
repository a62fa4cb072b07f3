"""What to cite: the publications of the methods and data in a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

__all__ = ["cite"]


def cite(job: Any, islands: Any = None) -> list[str]:
    """The publications behind a job's parts, each once, in the order of the parts.

    A part declares its own in the class attribute ``citation``; parts inside other parts count too.

    Args:
        job: the training.
        islands: its data, which declare their own too.
    """
    found = [str(part.citation) for part in _parts(job) if getattr(part, "citation", "")]
    about = getattr(islands, "about", None)
    if about is not None and about.citation:
        found.append(about.citation)
    return list(dict.fromkeys(found))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _parts(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield value
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
