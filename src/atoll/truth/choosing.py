"""How well a model foretells reports that it has not seen: by this, campaigns choose among models.

Every worker keeps a part of its reports apart: those of tasks whose name, together with the worker's, hashes low. A campaign goes without them. At its end each worker knows how probable the kept reports are: by the public truth, and by
what the model says of the worker. The logarithms add up like all contributions, so the server sees their sum over everybody alone.

A report's logarithm is at least ``-BOUND``, so that a single surprise does not decide, and sums are bounded.

* Labels, of a model with a confusion ``e`` of the worker: ``ln sum over c of T[t, c] e[l, c]``.
* Labels, of other models: with ``a`` how often the worker agrees with the truth on its other reports, ``(agreed + 1) / (reports + 2)``: ``ln (a T[t, l] + (1 - a) (1 - T[t, l]) / (m - 1))``.
* Numbers: the density of a Gaussian around the truth with the worker's mean square error on its other reports, in units of the range.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import CompositionError, ConfigError

from .models.model import Arrays, Floats, Term, TruthModel
from .reports import CodedReports, TaskLayout

__all__ = ["HELD_OUT", "hold_out", "held_out_terms", "score_held_out"]

HELD_OUT = "held-out reports"
"""The name of the sum."""

BOUND = 7.0
"""The largest size of a report's logarithm: ``e^-7`` is about one in a thousand."""

_LEAST_ERROR = 1e-3
"""The least error of a worker's numbers, as a part of the range."""


def hold_out(reports: CodedReports, part: float) -> tuple[CodedReports, CodedReports]:
    """Split reports into those that a model learns from, and those that it is tested on.

    Args:
        reports: a party's reports.
        part: about which part is held out.

    Raises:
        ConfigError: the part is not between 0 and 1.
    """
    if not 0 < part < 1:
        raise ConfigError(f"held_out={part}", where="hold_out", remedy="use a part between 0 and 1, such as 0.2")
    names, below = reports.layout.tasks, int(part * 2**64)
    pairs = zip(reports.task.tolist(), reports.worker.tolist(), strict=True)
    said = (f"{names[task]}\0{reports.workers[worker]}" for task, worker in pairs)
    held = np.array([int.from_bytes(hashlib.sha256(one.encode()).digest()[:8], "big") < below for one in said], dtype=bool)  # fmt: skip
    return reports.choose(~held), reports.choose(held)


def held_out_terms(layout: TaskLayout) -> dict[str, Term]:
    """What adds up: the logarithms, and how many reports they are of."""
    tasks = len(layout.tasks)
    return {"score": Term((1,), BOUND * tasks), "held": Term((1,), float(tasks), signed=False)}


def score_held_out(model: TruthModel, state: Arrays, known: CodedReports, held: CodedReports, broadcast: Arrays) -> Arrays:  # fmt: skip
    """Return the sums of a party, as `held_out_terms` says.

    Args:
        model: the model.
        state: what it says of the workers.
        known: the reports that it has learned from.
        held: the others, of the same workers.
        broadcast: the last one.
    """
    score = _score_numbers if held.layout.values == "numbers" else _score_labels
    logs = score(model, state, known, held, broadcast)
    return {"score": np.array([np.clip(logs, -BOUND, BOUND).sum()]), "held": np.array([float(len(held.task))])}


def _score_numbers(model: TruthModel, state: Arrays, known: CodedReports, held: CodedReports, broadcast: Arrays) -> Floats:  # fmt: skip
    """The logarithms of the densities, in units of the range, ``(reports,)``."""
    truth, layout = model.shares(held.layout, broadcast), held.layout
    truth = (truth - layout.low) / max(layout.high - layout.low, 1e-300)
    squares = known.mean_by_worker((known.number - truth[known.task]) ** 2, np.ones(1))
    spread = np.maximum(squares, _LEAST_ERROR**2)[held.worker]
    logs: Floats = np.asarray(-0.5 * (np.log(2 * np.pi * spread) + (held.number - truth[held.task]) ** 2 / spread))
    return logs


def _score_labels(model: TruthModel, state: Arrays, known: CodedReports, held: CodedReports, broadcast: Arrays) -> Floats:  # fmt: skip
    """The log-probabilities, ``(reports,)``."""
    layout, truth = held.layout, model.shares(held.layout, broadcast)
    errors = _find_errors(model, layout, state)
    if errors is not None:
        classes = len(layout.classes)
        found = (truth.reshape(-1, classes)[held.task] * errors[held.worker, held.label]).sum(axis=1)
    else:
        agreed = (known.by_worker(truth[known.cell]) + 1) / (known.counts + 2)
        right, said = agreed[held.worker], truth[held.cell]
        found = right * said + (1 - right) * (1 - said) / np.maximum(layout.widths[held.task] - 1, 1)
    return np.asarray(np.log(np.maximum(found, np.exp(-BOUND))), dtype=np.float64)


def _find_errors(model: TruthModel, layout: TaskLayout, state: Arrays) -> NDArray[np.float64] | None:
    """The confusion of each worker, if the model has one."""
    if not layout.classes:
        return None
    try:
        return np.asarray(model.confusions(layout, state), dtype=np.float64)
    except CompositionError:
        return None
