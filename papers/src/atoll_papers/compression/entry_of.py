"""The entry of a task."""

from __future__ import annotations

from atoll.reproduce import Claim, Entry, Lab

from .judges import judge_all, judge_quick
from .sweep import CompressionTask, sweep

__all__ = ["entry_of"]

_SOURCE = "Prasad et al., Reconciling Security and Communication Efficiency in Federated Learning, 2022"


def entry_of(
    name: str, task: CompressionTask, quick: CompressionTask, needs: str, data: tuple[str, ...], ours: str
) -> Entry:
    """Return the entry of a task.

    Args:
        name: of the entry.
        task: the full form.
        quick: the quick form.
        needs: what it needs, in words.
        data: the data sets.
        ours: the data and the model, in words.
    """

    def run(lab: Lab, short: bool) -> list[Claim]:
        if short:
            return judge_quick(sweep(lab, quick, ("sq 8,12", "prune 1/8 scaled", "pq 8,32")))
        return judge_all(task, sweep(lab, task))

    return Entry(
        name=name,
        title=f"Compression underneath secure sums, in place of {task.paper}: {ours}",
        source=_SOURCE,
        run=run,
        needs=needs,
        data=data,
    )
