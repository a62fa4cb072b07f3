"""A partition in a few numbers, enough to draw it again without the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["partition_facts", "summarise_data"]

_SHOWN = 60
_BINS = 24


def partition_facts(islands: Any) -> dict[str, Any]:
    """Sizes, label skew and the class counts of some clients, as plain numbers; class and feature names in the order of outputs and inputs.

    Args:
        islands: the federated data set; if it cannot be described, only its number of clients is returned.
    """
    if not hasattr(islands, "describe"):
        return {"clients": len(islands)}
    seen = islands.describe()
    edges = _edges(seen.sizes)
    facts: dict[str, Any] = {
        "name": seen.name,
        "scheme": seen.scheme,
        "clients": int(seen.clients),
        "rows": int(seen.rows),
        "test_rows": 0 if islands.test is None else len(islands.test),
        "task": islands.task,
        "labels": list(islands.about.labels),
        "features": list(islands.about.features),
        "size_mean": seen.size_mean,
        "size_std": seen.size_std,
        "size_quantiles": {str(k): v for k, v in seen.size_quantiles.items()},
        "size_edges": edges.tolist(),
        "size_counts": np.histogram(seen.sizes, edges)[0].tolist(),
        "classes_per_client": seen.classes_per_client,
        "label_skew": seen.label_skew,
        "corrupted": dict(seen.corrupted),
        "table": seen.table(),
    }
    if seen.counts is not None and len(seen.counts):
        shown = np.unique(np.linspace(0, len(seen.counts) - 1, min(_SHOWN, len(seen.counts))).astype(int))
        facts |= {"class_names": list(seen.classes), "class_counts": seen.counts[shown].tolist()}
    return facts


def _edges(sizes: np.ndarray) -> np.ndarray:
    """Bins that each contain equally many whole numbers."""
    low, high = int(sizes.min()), int(sizes.max())
    step = max(1, -(-(high - low + 1) // _BINS))
    return np.arange(low, high + step + 1, step) - 0.5


def summarise_data(islands: Any, path: Path) -> None:
    """Write the facts of a partition to a run folder.

    Raises:
        CheckpointError: the file cannot be written.
    """
    from atoll.core.persistence.files import write_bytes
    from atoll.core.persistence.json_lines import as_json

    write_bytes(path, as_json(partition_facts(islands), indent=1).encode())
