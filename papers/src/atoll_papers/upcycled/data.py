"""The synthetic populations, with test or validation rows held out."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

__all__ = ["KINDS", "divided", "islands"]

KINDS: dict[str, tuple[float, float] | None] = {
    "iid": None,
    "0,0": (0.0, 0.0),
    "0.5,0.5": (0.5, 0.5),
    "1,1": (1.0, 1.0),
}
"""Syn(a, b); ``None`` is Syn(iid)."""


@functools.lru_cache(maxsize=64)
def divided(
    kind: str, tuning: bool = False, draw: int = 0, rows: int = 0, unit: bool = False
) -> tuple[Islands, Islands]:
    """Return the population as (training rows, measuring rows), client by client.

    Args:
        kind: one of `KINDS`.
        tuning: measure on a tenth of the training rows instead of the test rows, which are left out.
        draw: seed of the data.
        rows: most rows per client; 0 for the sizes of the experiment.
        unit: divide every row by its norm if that is above 1; this uses no other row.
    """
    import numpy as np

    from atoll.data import Islands, Shard, synthetic, synthetic_iid

    spread = KINDS[kind]
    whole = synthetic_iid(seed=draw) if spread is None else synthetic(*spread, seed=draw)
    if rows:
        sizes = np.minimum(np.asarray(whole.sizes), rows)
        whole = synthetic_iid(seed=draw, sizes=sizes) if spread is None else synthetic(*spread, seed=draw, sizes=sizes)
    # Stored: rows made on demand would be drawn and hashed again in every round.
    read = _unit if unit else Shard.dataset
    whole = Islands.from_datasets(
        {name: read(whole.shard(i)) for i, name in enumerate(whole.names)}, scheme=whole.scheme
    )
    train, test = whole.holdout(0.1, seed=draw)
    return train.holdout(0.1, seed=draw + 1) if tuning else (train, test)


def _unit(shard: Any) -> Dataset:
    import numpy as np

    from atoll.data import Dataset

    x = np.asarray(shard.x, dtype=np.float64)
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    return Dataset({"x": x, "y": np.asarray(shard.y)}, task="classification", name="unit rows")


def islands(kind: str, tuning: bool = False, draw: int = 0, rows: int = 0, unit: bool = False) -> Islands:
    """Return the clients, with the measuring rows as the server's test set."""
    train, test = divided(kind, tuning, draw, rows, unit)
    return train.with_test(test.pooled())
