"""The form of replies to a task that declares none: what most of the cohort sent, never what came first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from atoll.core.algebra.aggregate import Total, Totals
from atoll.core.requests.wire import unpack_folded

from ..totals import form_of

__all__ = ["LEAST", "majority"]

LEAST = 2
"""Replies of one form that settle it before all are there."""


def majority(frames: Iterable[Any], *, complete: bool) -> Totals | None:
    """Return the totals of a reply of the form that most replies have; of forms with as many, that of the first in the cohort.

    Args:
        frames: replies that are there, in cohort order.
        complete: whether no more will come.

    Returns:
        The totals, nothing where no reply has any, or ``None`` if that is not settled yet.
    """
    seen = [totals for frame in frames if frame["op"] == "folded" and (totals := _totals(frame))]
    votes = Counter(form_of(totals) for totals in seen)
    if not votes:
        return {} if complete else None
    form, most = votes.most_common(1)[0]
    if most < LEAST and not complete:
        return None
    return dict(next(totals for totals in seen if form_of(totals) == form))


def _totals(frame: Any) -> Mapping[str, Total]:
    return unpack_folded(frame["folded"]).totals
