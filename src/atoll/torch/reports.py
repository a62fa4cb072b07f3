"""Reports of whole cohorts: those that `atoll.learn.local.reports` asks of clients, made for many at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Parts, Totals
from atoll.learn.local.reports import key_of, rows_for, sketches, update_of

from .evaluate import evaluate_many
from .profile import profile_many

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.cohort import Cohort
    from atoll.learn.algorithm import Algorithm

    from .blocks.results import CohortSums, TrainedBatch
    from .network import FunctionalModule

__all__ = ["add_reports", "sent_reports", "surveyed", "with_reports"]

Asked = Mapping[str, Mapping[str, Any]]


def surveyed(network: FunctionalModule, params: Any, cohort: Cohort, rows: Any, asked: Asked) -> dict[str, Parts]:
    """Return reports of one model on each of many clients' rows, with a leading client axis.

    Args:
        network: model and loss.
        params: parameters, and travelling buffers, by name.
        cohort: the clients.
        rows: all of their rows, as `profile_many` takes them.
        asked: reports by name.
    """
    count = len(cohort)
    told: dict[str, Parts] = {}
    for name, options in asked.items():
        value: Any
        sizes: NDArray[Any]
        if name == "profile":
            value, sizes = profile_many(network, params, rows, count, **options)
        else:
            few = (
                [rows_for(options, cohort.shard(i), int(key)) for i, key in enumerate(cohort.keys)] if options else rows
            )
            sums = evaluate_many(network, params, few, count)
            value, sizes = sums["loss_sum"] / np.maximum(sums["n"], 1.0), sums["n"]
        told[key_of(name)] = Parts(value, examples=np.asarray(sizes, dtype=np.float64), role="report")
    return told


def with_reports(
    batch: TrainedBatch, asked: Asked, told: Mapping[str, Parts], sizes: NDArray[Any], algorithm: Algorithm
) -> TrainedBatch:
    """Add the requested reports to a trained block's replies.

    Args:
        batch: the block.
        asked: reports by name.
        told: reports that do not come from training, of the whole cohort.
        sizes: rows of each client of the block.
        algorithm: the algorithm that they ran.
    """
    own = {name: _rows(parts, batch.positions) for name, parts in told.items()}
    if "loss" in asked:
        own[key_of("loss")] = Parts(batch.losses, examples=sizes, role="report")
    if "sketch" in asked:
        found = sketches(update_of(dict(batch.reply), algorithm), asked["sketch"]["size"])
        found[np.asarray(sizes) == 0] = 0.0
        own[key_of("sketch")] = Parts(found, examples=sizes, role="report")
    return replace(batch, reply={**batch.reply, **{name: own[name] for name in _order(asked)}})


def add_reports(made: CohortSums, asked: Asked, told: Mapping[str, Parts]) -> bool:
    """Add reports to the sums of a trained cohort; return ``False`` if one is not finite, which sums cannot show.

    Args:
        made: the sums.
        asked: reports by name.
        told: reports that do not come from training, of the whole cohort.
    """
    found = {**told, key_of("loss"): Parts(made.losses, examples=made.sizes.astype(np.float64), role="report")}
    totals: Totals = {}
    for name in _order(asked):
        own = _rows(found[name], made.kept)
        if not all(bool(np.isfinite(leaf).all()) for leaf in T.leaves(own.value)):
            return False
        totals[name] = own.block_sum()
    made.totals.update(totals)
    return True


def sent_reports(totals: Totals) -> dict[str, Any]:
    """Return one client's reports as they are sent, to measure their size."""
    parts = {name: total.value for name, total in totals.items() if total.kind == "parts" and total.value}
    return {name: {"kind": "parts", "value": some[0].value, "weight": 1.0} for name, some in parts.items()}


def _order(asked: Asked) -> list[str]:
    return [key_of(name) for name in asked]


def _rows(parts: Parts, which: NDArray[np.int64]) -> Parts:
    """Return the reports of some clients of a cohort."""
    value = T.map(lambda leaf: leaf[which], parts.value)
    return replace(parts, value=value, examples=np.asarray(parts.examples)[which])
