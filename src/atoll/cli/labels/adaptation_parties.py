"""Who has which rows when domains are compared: sources and target as each method wants them, and a domain that judges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

__all__ = [
    "JUDGING",
    "judge_of",
    "pair_of",
    "sources_alone",
    "sources_at_server",
    "sources_of",
    "target_at_helper",
    "with_judge",
    "without",
]

JUDGING = "judging"
"""The column of rows whose labels judge and do not teach."""


def sources_of(islands: Islands) -> dict[str, Dataset]:
    """Return the domains with labels by name."""
    return {one.name: one.dataset() for one in islands if _labelled(one)}


def _labelled(one: Any) -> bool:
    from atoll.data.missing import labelled_rows

    return bool(labelled_rows(one).all())


def _target_of(islands: Islands) -> tuple[str, Dataset]:
    return next((one.name, one.dataset()) for one in islands if not _labelled(one))


def _of(parts: dict[str, Dataset], islands: Islands) -> Islands:
    from atoll.data import Islands

    return Islands.from_datasets(parts).with_test(islands.test)


def sources_alone(islands: Islands) -> Islands:
    """Return the domains with labels, as clients."""
    return _of(sources_of(islands), islands)


def target_at_helper(islands: Islands) -> Islands:
    """Return the domains with labels as clients, and the target as a helper party: as `FADA` wants it."""
    return sources_alone(islands).with_others({"target": _target_of(islands)[1]})


def sources_at_server(islands: Islands) -> Islands:
    """Return the target as the only client, and all labelled rows at one helper party: as `DualAdapt` wants it."""
    from atoll.data.join import concatenate

    name, rows = _target_of(islands)
    return _of({name: rows}, islands).with_others({"labels": concatenate(list(sources_of(islands).values()))})


def pair_of(islands: Islands, source: str) -> Islands:
    """Return a source and the target: as `FRuDA` wants it."""
    name, rows = _target_of(islands)
    return _of({source: sources_of(islands)[source], name: rows}, islands)


def judge_of(islands: Islands) -> str:
    """Return the name of the smallest source, which judges."""
    sources = sources_of(islands)
    return min(sources, key=lambda name: (len(sources[name]), name))


def without(islands: Islands, name: str) -> Islands:
    """Return the same domains without one."""
    return _of({one.name: one.dataset() for one in islands if one.name != name}, islands)


def with_judge(islands: Islands) -> Islands:
    """Return the same domains with a column that marks the labels of the smallest source: no training sees them, and they judge."""
    judge = judge_of(islands)
    parts: dict[str, Any] = {one.name: one.dataset() for one in islands}
    marked = {name: rows.with_columns({JUDGING: np.full(len(rows), name == judge)}) for name, rows in parts.items()}
    return _of(marked, islands)
