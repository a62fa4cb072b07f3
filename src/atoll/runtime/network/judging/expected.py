"""A reply beside what the program expects: names, forms, metrics and weights follow from the request and from the rows that the party declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Part, Total, Totals
from atoll.core.message import Limits
from atoll.core.requests.request import weight_bound

from ..frames import describe_value, wrong
from ..totals import require_fit

if TYPE_CHECKING:
    from atoll.core.requests.request import ReplyForm, Request

__all__ = ["limits_of", "require_expected"]

_LONGEST_METRIC = 100
_MOST_METRICS = 100
_MARGIN = 1 << 20
"""Bytes of a reply beside its values: privacy events, names, sizes."""
_LEAVES = 50_000
"""Leaves of a reply beside its values: privacy events, most of all."""


def require_expected(totals: Totals, request: Request, rows: int | None) -> None:
    """Refuse what one party adds to a sum if it is not what the request asks for.

    Args:
        totals: what it adds, of one reply.
        request: the request, with the form of its replies.
        rows: rows that the party declared when the job began; ``None`` if it has none.

    Raises:
        MessageError: it differs; the message names the place.
    """
    form = request.form
    if form is None:
        return
    required, optional = request.example
    for name in required:
        if name not in totals:
            raise wrong(f"no {name!r}, which the request asks for")
    for name, total in totals.items():
        known = required if name in required else optional.get(name, {}) if name in optional else None
        if known is None and name not in optional:
            _require_metric(name, total, form)
        elif known:
            require_fit(known, {name: _whole(total, known[name])})
        elif total.kind != "parts" or total.role != "report":
            raise wrong(f"{name!r} is a {total.kind} ({total.role}), but a report was asked for")
        _require_weight(name, total, form, rows)
    if sum(name not in required and name not in optional for name in totals) > _MOST_METRICS:
        raise wrong(f"{len(totals)} values; at most {_MOST_METRICS} metrics are allowed")


def _whole(total: Total, known: Total) -> Total:
    """Return a total that is kept apart (see ``Request.apart``) as it would be in a sum."""
    if total.kind != "parts" or known.kind == "parts":
        return total
    part = total.value[0]
    return Total(part.of, part.value, part.weight, 1, total.role) if isinstance(part, Part) else total


def _require_metric(name: str, total: Total, form: ReplyForm) -> None:
    """Accept a metric that the program registered: a number."""
    if form.metrics is not None and name not in form.metrics:
        names = ", ".join(sorted(form.metrics)) or "none"
        raise wrong(f"{describe_value(name)}, which nobody asked for; the metrics are: {names}")
    if total.role != "metric" or not _is_plain(name):
        raise wrong(
            f"{describe_value(name)} ({total.role}) is not a metric; its name needs letters, digits, '_', '-' or '.'"
        )
    part = total.value[0].value if total.kind == "parts" else total.value
    if isinstance(part, dict | list | tuple) or np.shape(part) != ():
        raise wrong(f"the metric {name!r} is {describe_value(part)} and must be a number")


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_METRIC and all(c.isalnum() or c in "_-. " for c in name)


def _require_weight(name: str, total: Total, form: ReplyForm, rows: int | None) -> None:
    weight = float(total.value[0].weight if total.kind == "parts" else total.weight)
    bound = form.weights.get(name)
    if bound is None or rows is None:
        return
    most = weight_bound(bound, rows)
    if weight > most:
        raise wrong(f"{name!r} has the weight {weight:.6g}, but a party of {rows} rows has at most {most:.6g}")


def limits_of(request: Request, known: Limits) -> Limits:
    """Return the bounds on a message with a reply of the expected form; those given, if nothing is known of it."""
    form = request.form
    if form is None:
        return known
    required, optional = request.example
    more = [each for each in optional.values() if each]
    if any(one is None for one in form.optional.values()):
        return known
    trees: list[Any] = [
        total.value if total.kind != "parts" else [p.value for p in total.value]
        for part in (required, *more)
        for total in part.values()
    ]
    size = sum(_double_bytes(tree) for tree in trees) + _MARGIN
    leaves = sum(len(T.leaves(tree)) for tree in trees)
    return Limits(
        max_bytes=min(known.max_bytes, size),
        max_header_bytes=known.max_header_bytes,
        max_leaves=min(known.max_leaves, 4 * leaves + _LEAVES),
        max_text_bytes=min(known.max_text_bytes, _MARGIN),
    )


def _double_bytes(tree: Any) -> int:
    """Return the bytes of a tree if each number took 16 bytes: real numbers of any width are taken."""
    wide = sum(16 * int(np.size(leaf)) for leaf in T.leaves(tree))
    return wide + M.nbytes(tree) - sum(int(getattr(leaf, "nbytes", 0)) for leaf in T.leaves(tree))
