"""Which columns all parties have, of which kind, and with which values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atoll.core.errors import DataError, nearest

from .contacts import Contacts
from .rows import FeatureLayout

if TYPE_CHECKING:
    from .asking import FitRequests

__all__ = ["agreed"]


async def agreed(asking: FitRequests, contacts: Contacts) -> FeatureLayout:
    """The layout: from the settings if they say everything, else from what the parties tell of their columns.

    Raises:
        DataError: the parties have different columns, or a column has no value that enough rows have.
    """
    job = asking.job
    method, chosen = job.model, {name: list(map(str, values)) for name, values in job.categories.items()}
    aside = (*([job.label] if job.label else ()), *method.extra)
    classes = job.label if method.target == "class" else ""
    wanted = [name for name in (*method.grouped, *([classes] if classes else ())) if name not in chosen]
    kinds = {name: "category" if name in chosen else "number" for name in job.columns}
    values: dict[str, list[str]] = dict(chosen)
    tells = not asking.words and method.events() is None
    if tells or (method.featured and not job.columns):
        message = {
            "columns": [*job.columns, *aside] if job.columns else [], "categories": [*chosen, *wanted],
            "tell": tells, "numbers": False,
        }  # fmt: skip
        told = await _told(asking, contacts, message)
        kinds = _same_kinds(asking, told)
        for name in kinds:
            if name not in values:
                found = {value for one in told for value in one["values"].get(name, ())}
                values |= {name: _in_order(found)} if found else {}
    for name in aside:
        if name not in kinds and tells:
            raise DataError(
                f"no column {name!r}.{nearest(name, kinds)}", where="Fit", remedy=f"use one of {', '.join(kinds)}"
            )
    features = (list(job.columns) or [name for name in kinds if name not in aside]) if method.featured else []
    levels = {name: _some(name, values, asking) for name in features if kinds[name] == "category"}
    numbers = tuple(name for name in features if kinds[name] == "number")
    groups = {name: _some(name, values, asking) for name in method.grouped}
    return FeatureLayout(
        numbers, levels, job.label, tuple(_some(classes, values, asking)) if classes else (), tuple(method.extra), groups, job.encode
    )  # fmt: skip


async def _told(asking: FitRequests, contacts: Contacts, message: Mapping[str, Any]) -> list[Any]:
    asked = {**message, "least": asking.job.least_rows}
    found = await asking.fed.ask_all(asking.fed.parties, contacts.named, asked, quorum=asking.quorum)
    return [{**one, "site": name} for name, one in zip(found.senders.names, found.values, strict=True)]


def _same_kinds(asking: FitRequests, told: list[Any]) -> dict[str, str]:
    first = dict(told[0]["kinds"])
    for one in told[1:]:
        if dict(one["kinds"]) != first:
            shown = [", ".join(f"{name} ({kind})" for name, kind in each.items()) for each in (one["kinds"], first)]
            raise DataError(
                f"the columns of {one['site']} are {shown[0]}, and of {told[0]['site']} {shown[1]}",
                where="Fit",
                remedy="name columns= that all parties have, of one kind; categories= makes one of text or numbers",
            )
    return first


def _in_order(values: set[str]) -> list[str]:
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _some(name: str, values: Mapping[str, list[str]], asking: FitRequests) -> list[str]:
    if not values.get(name):
        secure = f", and {type(asking.job.reducer).__name__} does not show what parties have" if asking.words else ""
        raise DataError(
            f"no value of {name!r} is known{secure}",
            where="Fit",
            remedy=f"agree on them: categories={{{name!r}: [...]}}, or leave the column out",
        )
    return values[name]
