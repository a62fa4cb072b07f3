"""Reports of whole cohorts: what `atoll.learn.reports` asks of clients, made for many at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import tree as T
from atoll.core.aggregate import Parts, Totals

from .evaluate import evaluate_many
from .profile import profile_many

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .local import Summed, TrainedBatch
    from .network import Network

__all__ = ["add_reports", "sent_reports", "surveyed", "with_reports"]

Asked = Mapping[str, Mapping[str, Any]]


def surveyed(network: Network, params: Any, rows: Any, count: int, asked: Asked) -> dict[str, Parts]:
    """Reports of one model on each of many clients' rows, with a leading client axis; see `profile_many` for the arguments."""
    told: dict[str, Parts] = {}
    for name, options in asked.items():
        value: Any
        sizes: NDArray[Any]
        if name == "profile":
            value, sizes = profile_many(network, params, rows, count, **options)
        else:
            sums = evaluate_many(network, params, rows, count)
            value, sizes = sums["loss_sum"] / np.maximum(sums["n"], 1.0), sums["n"]
        told[f"report/{name}"] = Parts(value, examples=np.asarray(sizes, dtype=np.float64), metric=True)
    return told


def with_reports(batch: TrainedBatch, asked: Asked, told: Mapping[str, Parts], sizes: NDArray[Any]) -> TrainedBatch:
    """A trained block's replies with what is asked for.

    Args:
        batch: the block.
        asked: reports by name.
        told: those that do not come from training, of the whole cohort.
        sizes: rows of each client of the block.
    """
    own = {name: _rows(parts, batch.positions) for name, parts in told.items()}
    if "loss" in asked:
        own["report/loss"] = Parts(batch.losses, examples=sizes, metric=True)
    return replace(batch, reply={**batch.reply, **{name: own[name] for name in _order(asked)}})


def add_reports(made: Summed, asked: Asked, told: Mapping[str, Parts]) -> bool:
    """Put reports beside the sums of a trained cohort; ``False`` where one of them is not finite, which sums cannot tell of.

    Args:
        made: the sums.
        asked: reports by name.
        told: those that do not come from training, of the whole cohort.
    """
    found = {**told, "report/loss": Parts(made.losses, examples=made.sizes.astype(np.float64), metric=True)}
    totals: Totals = {}
    for name in _order(asked):
        own = _rows(found[name], made.kept)
        if not all(bool(np.isfinite(leaf).all()) for leaf in T.leaves(own.value)):
            return False
        totals[name] = own.block_sum()
    made.totals.update(totals)
    return True


def sent_reports(totals: Totals) -> dict[str, Any]:
    """One client's reports as they are sent, to be measured."""
    parts = {name: total.value for name, total in totals.items() if total.kind == "parts" and total.value}
    return {name: {"kind": "parts", "value": some[0].value, "weight": 1.0} for name, some in parts.items()}


def _order(asked: Asked) -> list[str]:
    return [f"report/{name}" for name in asked]


def _rows(parts: Parts, which: NDArray[np.int64]) -> Parts:
    """Some clients of a cohort's reports."""
    value = T.map(lambda leaf: leaf[which], parts.value)
    return replace(parts, value=value, examples=np.asarray(parts.examples)[which])
