"""Trees of a federation beside those of each site alone and of all rows in one place: what ``atoll trees`` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from atoll.core.federation.reducer import Reducer
    from atoll.data import Dataset, Islands
    from atoll.trees import Ensemble

__all__ = ["compared"]

_ORDERS, _BINS = 3, 256
"""Other orders of all rows, and XGBoost's bins."""


def compared(
    files: Sequence[Path],
    test: Path,
    label: str,
    settings: Mapping[str, Any],
    *,
    secure: bool,
    seed: int,
    missing_features: bool = False,
) -> tuple[dict[str, Any], Ensemble]:
    """Grow trees over all sites, for each site alone, and over all rows in one place.

    Where XGBoost is installed, it grows the latter two: one party's ``bagging`` is XGBoost itself. Of many rows its cuts depend on their order, which masked sums do not show: beside
    these it also grows the trees of all rows in other orders.

    Args:
        files: one CSV file a site.
        test: file with test rows.
        label: column to predict.
        settings: of `atoll.trees.Trees`.
        secure: whether to mask sums.
        seed: of samples.
        missing_features: whether cells of features may be empty.

    Returns:
        ``measure`` (auc, rmse or accuracy), ``alone`` by site, ``federated``, ``pooled``, all on the test rows, and ``pooled_shuffled``, a list, where ``pooled`` depends on the order of
        the rows and ``federated`` does not; and the federation's trees.
    """
    from atoll.data import Islands
    from atoll.data.missing import known_rows
    from atoll.data.readers import from_csv_files
    from atoll.runs.config import job_class
    from atoll.simulation import simulate
    from atoll.trees.objectives import objective_of
    from atoll.trees.sketch import SketchSizes
    from atoll.trees.tree import score

    islands = from_csv_files(files, target=label, test=test, missing_features=missing_features)
    held: Dataset = known_rows(islands.test, "trees")
    objective = objective_of("auto", islands.about)
    more: dict[str, Any] = {"reducer": _masked(islands)} if secure else {}

    def measured(data: Islands, given: Mapping[str, Any]) -> tuple[str, float, Ensemble]:
        grown = simulate(job_class("trees")(**given), data, engine="inline", seed=seed, progress=False).outcome
        return *score(objective, held["y"], grown.predict(held["x"])), grown

    ordinary, beside_xgboost = dict(settings), settings["scheme"] == "histogram" and find_spec("xgboost") is not None
    if settings["scheme"] == "histogram":
        more["exact_cuts"] = True  # the files are all here: nothing is disclosed
    if beside_xgboost:
        ordinary["scheme"] = "bagging"
    alone = {}
    for shard in islands:
        data = Islands.from_datasets({shard.name: shard.dataset()})
        alone[shard.name] = measured(data, ordinary)[1] if len(set(shard.y.tolist())) > 1 else float("nan")
    measure, federated, ensemble = measured(islands, {**settings, **more})
    union = islands.pooled()

    def pooled(rows: Dataset) -> float:
        return measured(Islands.from_datasets({"all": rows}), ordinary)[1]

    found = {"measure": measure, "alone": alone, "federated": federated, "pooled": pooled(union)}
    if secure and beside_xgboost and len(union) > SketchSizes.of(len(union), _BINS).queue:
        orders = [np.random.default_rng([seed, k]).permutation(len(union)) for k in range(_ORDERS)]
        found["pooled_shuffled"] = [pooled(union.take(order)) for order in orders]
    return found, ensemble


def _masked(islands: Islands) -> Reducer:
    """Masked sums whose range is what the most rows of a site can add up to."""
    from atoll.secure import FixedPoint, SecureAggregation

    return SecureAggregation(codec=FixedPoint(value_bits=48, weight_bits=0, value_range=float(max(islands.sizes))))
