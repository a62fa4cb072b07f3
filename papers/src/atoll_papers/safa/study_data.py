"""The study's three convex tasks: clients of chapter 3, with endless draws of crashes, since rivals of SAFA contact clients in any number of turns."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from .data import _rows, train_sizes
from .tasks import BOSTON, KDD, MODEL_BYTES, SERVER_BITS, TRANSFER_SECONDS, SafaFleet, SafaTask, fleet

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands
    from atoll.devices import Fleet as Devices

__all__ = ["DIGITS", "FIFTH", "STUDIED", "devices", "islands", "members"]

FIFTH = SafaTask("kdd-fifth", 3, 37_296, 100, 50, KDD.limit, 5, 100, 1e-2, 0.7, KDD.slowest)
"""Every fifth row of task 3 over a fifth of its clients: as much work for each, half of the rounds."""
DIGITS = SafaTask("digits", 0, 1_797, 20, 20, KDD.limit, 5, 24, 5e-2, 0.7, KDD.slowest)
"""Softmax on small digits, which need no download: for ``--quick``. Batches are such that clients work as long as those of task 3."""
STUDIED = {task.name: task for task in (BOSTON, FIFTH, DIGITS)}


def members(task: str, seed: int) -> SafaFleet:
    """Return the clients of a seed: sizes and speeds."""
    return fleet(STUDIED[task], np.random.default_rng([seed, 0]))


def islands(task: str, seed: int = 0) -> Islands:
    """Return a task's clients. The server has the study's evaluation data: all their training rows, since it measures how fast the objective falls; no test row is used.

    Args:
        task: ``"boston"``, ``"kdd-fifth"`` or ``"digits"``.
        seed: of the clients' sizes.
    """
    from atoll.data import Islands

    of, whole = STUDIED[task], _table(task)
    sizes = train_sizes(members(task, seed).sizes, len(whole))
    return Islands.from_owner(whole, np.repeat(np.arange(of.clients), sizes), of.clients, scheme="N(mu, (0.3 mu)^2)")


@functools.lru_cache(maxsize=3)
def _table(task: str) -> Dataset:
    from atoll.data import digits

    if task == DIGITS.name:
        whole = digits(test=0.0)
        train = whole.take(np.arange(int(len(whole) * DIGITS.train)))
    else:
        train = _rows(task.removesuffix("-fifth"))
    if task == FIFTH.name:  # of rows scaled over the whole table, as some inputs are constant in a part of it
        train = train.take(np.arange(0, len(train), 5))
    return train.with_test(train)


def devices(task: str, crash: float = 0.3, seed: int = 0, model_over: int = 0) -> Devices:
    """Return the clients as a model of devices; see `atoll_papers.safa.data.devices`. The difference: endless crashes.

    A crashed device is back at once, as in the thesis, where it continues in the next round. Asynchronous servers
    notice and can ask it again; synchronous ones, and SAFA while its quota is unmet, wait until ``T_lim`` all the same.

    Args:
        task: ``"boston"``, ``"kdd-fifth"`` or ``"digits"``.
        crash: probability of a crash, of each participation.
        seed: of sizes, speeds and crashes.
        model_over: messages of at most this many bytes contain no model.
    """
    from atoll.devices import BatchRate, GeneratedTrace, GivenTraits, Throughput
    from atoll.devices import Fleet as Devices

    of, drawn = STUDIED[task], members(task, seed)
    rows = train_sizes(drawn.sizes, int(of.rows * of.train))
    return Devices(
        BatchRate(GivenTraits((rows * of.epochs / of.batch_size / drawn.training).tolist()), batch=of.batch_size),
        Throughput(MODEL_BYTES / TRANSFER_SECONDS),
        GeneratedTrace(crash, point="uniform", seed=seed),
        egress=SERVER_BITS / 8,
        model_bytes=float(MODEL_BYTES),
        model_over=model_over,
        seed=seed,
    )
