"""FedAQ's table: rounds, uplink bits and human time to a target, on MNIST (`fedaq-table`) and on a part of CIFAR-10 (`fedaq-cifar`).

Source: Youn, Kumar, Abernethy, "Accelerated Federated Optimization with Quantization", IEEE Data Engineering Bulletin
45(4), 2022.

As in the paper: 16, 18 and 8 clients, all in every round, with similar data; ``eta`` 0.002, 0.1 and 0.01 for every
method; ``mu`` 0.1, 0.01 and 0.2; 20, 100 and 100 local steps; 8 bits, and 4 for FedAQ on the networks. As in its
authors' code, where the paper is silent: batches of 50, the mean and deviation of each data set, ``1e-4`` of weight
decay and a model of zeros in the convex task, the affine quantiser by least and largest entry in both directions, and
accuracy of the main stream ``w``.

Our choices: no decay of the learning rate; the downlink sends a difference to the clients' model, and the server keeps
the error; rounds are those of the first evaluation that meets the target, on the whole test set after every round. The
convex task and the CNN have three seeds, the MLP two. CIFAR-10 is a part of 10,000 images, not flipped or cropped, with
half of the paper's CNN: half of its channels and a quarter of its hidden units, 71,198 parameters instead of 672,212.
FedAvg has 20 rounds instead of 100. The target is the best accuracy that it reaches in them with every seed, on 2,000
other images; every other method may take 24 rounds to it. This size is what half an hour of a core allows: a round
takes it four to eight seconds, and the paper's CNN fourteen to twenty. Nothing was tuned. Human time takes the paper's
model sizes and the computing time that its own figures imply, at our rounds. Bits are counted as in the paper; the
meter's count, shown next to them, includes headers and in the convex task numbers of 64 bits where nothing is
quantised.

Two controls that the paper lacks: FedAvg and FedPAQ with the learning rate ``gamma``, which is the step of the
accelerated methods' main stream. And two variants of FedAQ-I: unbiased quantisation of the uplink alone, as in its
Algorithm 7, and accuracy of the stream of the theory, ``w_ag``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from atoll.reproduce import Claim, Entry, Lab

from .fedaq_trainings import (
    COLUMNS,
    CONVEX,
    IMAGES,
    IMAGES_QUICK,
    METHODS,
    MLP,
    QUICK,
    FedAQCell,
    FedAQTask,
    cell,
    settings,
    target_of,
)

__all__ = ["CIFAR_ENTRY", "DEEP", "TABLE_ENTRY", "claims_of", "column", "printed", "stability"]


# ------------------------------------------------------------------ the table and the paper's statements about it, by rules fixed before anything ran

DEEP = (
    *("FedAvg", "FedPAQ 8b", "FedCOMGATE 8b", "FedAC-I", "FedAQ-I 8b"),
    "FedAQ-I 4b",
    *("FedAvg, lr = gamma", "FedPAQ 8b, lr = gamma"),
)
"""The methods of a network: the paper's six and two controls."""
_SLACK = 1.5
"""Rounds that a cell may take, as a factor on the paper's; the paper does not state batches, initial model, schedule and seeds."""
_AS_FAST = 1.15
"""Up to this factor, the rounds count as no slower."""
_FAMILY = ("FedAQ-I 8b", "FedAQ-II 8b", "FedAQ-I 4b")
_BASELINES = ("FedAvg", "FedPAQ 8b", "FedCOMGATE 8b", "FedAC-I")


def printed() -> list[Claim]:
    """Judge the paper's own arithmetic, without training."""
    exact = [
        (name, method)
        for name, column in COLUMNS.items()
        for method, cell in column.cells.items()
        if f"{column.bits(method):.1e}" == f"{cell.bits:.1e}"
    ]
    count = sum(len(column.cells) for column in COLUMNS.values())
    made = [
        Claim(
            "uplink bits = rounds x bits an entry x parameters, to the printed digits",
            count,
            len(exact),
            len(exact) == count,
            "cells of the table; the convex column with 7,840 parameters, without the ten biases",
            basis="derived",
        )
    ]
    for name, column in COLUMNS.items():
        for devices in sorted({column.devices, column.fits}):
            off = [abs(column.seconds(m, devices=devices) / c.seconds - 1) for m, c in column.cells.items()]
            rest = ", ".join(f"{column.residual(m, devices):.1f}" for m in column.cells)
            made.append(
                Claim(
                    f"{name}: the human times follow from the sizes with {devices} devices and one computing time",
                    "0",
                    f"{max(off):.1%}",
                    max(off) < 0.05,
                    f"largest error of a printed time; the text names {column.devices} devices; seconds of computing a round, method by method: {rest}",
                    basis="derived",
                )
            )
    return made


def column(lab: Lab, task: FedAQTask, names: Sequence[str]) -> tuple[dict[str, FedAQCell], list[Claim]]:
    """Run a column: its cells, and a claim for each, except for FedAvg where it sets the target: there it would hold by construction."""
    target = target_of(lab, task)
    cells = {name: cell(lab, METHODS[name], task, target) for name in names}
    own = cells["FedAvg"] if task.target is None else None
    said = "" if own is None else f"; FedAvg, which sets the target: {_cost(own)}"
    rows = [_row(found, target) for found in cells.values() if found is not own]
    return cells, [replace(row, note=row.note + said) for row in rows]


def _row(found: FedAQCell, target: float) -> Claim:
    task, name = found.task, found.method.name
    theirs = COLUMNS[task.column].cells.get(name) if task.name == task.column else None
    ours = _cost(found)
    note = f"rounds / bits up of a client / human time to {100 * target:.2f} %, {len(found.rounds)} seed(s)"
    note += f"; the meter counted {8 * found.measured:.1e} bits"
    if not isfinite(found.mean):
        note += f"; best {', '.join(f'{100 * b:.2f} %' for b in found.best)}"
    paper = None if theirs is None else f"{theirs.rounds} / {theirs.bits:.1e} / {theirs.seconds:.0f} s"
    if theirs is None or task.target is None:
        other = (
            "" if theirs is None else "; the paper's is another task: its figures stand beside ours and judge nothing"
        )
        return Claim(f"{task.name}: {name} reaches the target", paper, ours, isfinite(found.mean), note + other)
    said = f"{task.name}: {name} needs at most {_SLACK:g} times the paper's rounds"
    return Claim(said, paper, ours, found.mean <= _SLACK * theirs.rounds, note)


def _cost(found: FedAQCell) -> str:
    return f"{found} / {found.bits:.1e} / {_times(found)}" if isfinite(found.mean) else str(found)


def _times(found: FedAQCell) -> str:
    paper = COLUMNS[found.task.column]
    each = [f"{found.seconds(n):.0f} s" + (f" ({n} devices)" if paper.fits != paper.devices else "") for n in
            sorted({paper.devices, paper.fits})]  # fmt: skip
    return ", ".join(each)


def claims_of(cells: Mapping[str, FedAQCell]) -> list[Claim]:
    """Return the claims about a column."""
    task = next(iter(cells.values())).task
    column = {name: found for name, found in cells.items() if name in _FAMILY + _BASELINES}
    made = [
        _least(task, column, "rounds", lambda c: c.mean),
        _least(task, column, "uplink bits", lambda c: c.bits),
        _least(task, column, "human time", lambda c: c.seconds()),
    ]
    pairs = [("FedPAQ 8b", "FedAvg"), ("FedAQ-I 8b", "FedAC-I"), ("FedAQ-I 4b", "FedAC-I")]
    made += [_no_slower(task, cells[a], cells[b]) for a, b in pairs if a in cells and b in cells]
    for control in ("FedAvg, lr = gamma", "FedPAQ 8b, lr = gamma"):
        if control in cells:
            made += _control(task, cells["FedAQ-I 8b"], cells[control])
    return made


def _least(task: FedAQTask, cells: Mapping[str, FedAQCell], what: str, of: Callable[[FedAQCell], float]) -> Claim:
    values = {name: of(found) for name, found in cells.items()}
    own = min((name for name in values if name in _FAMILY), key=lambda name: values[name])
    other = min(_BASELINES, key=lambda name: values[name])
    return Claim(
        f"{task.name}: of the paper's methods none needs {'less' if 'time' in what else 'fewer'} {what} than a FedAQ",
        _paper_best(task, what),
        f"{own} {values[own]:.3g}, {other} {values[other]:.3g}",
        isfinite(values[own]) and values[own] <= values[other],
        f"the best of either kind, all at the same lr = {task.lr:g}",
    )


def _paper_best(task: FedAQTask, what: str) -> str | None:
    if task.name != task.column:
        return None
    field = {"rounds": "rounds", "uplink bits": "bits", "human time": "seconds"}[what]
    values = {name: float(getattr(cell, field)) for name, cell in COLUMNS[task.column].cells.items()}
    own = min((name for name in values if name in _FAMILY), key=lambda name: values[name])
    other = min(_BASELINES, key=lambda name: values[name])
    return f"{own} {values[own]:.3g}, {other} {values[other]:.3g}"


def _no_slower(task: FedAQTask, quantised: FedAQCell, exact: FedAQCell) -> Claim:
    theirs = COLUMNS[task.column].cells
    a, b = quantised.method.name, exact.method.name
    known = task.name == task.column and a in theirs and b in theirs
    return Claim(
        f"{task.name}: quantisation does not slow convergence: {a} against {b}",
        f"{theirs[a].rounds} : {theirs[b].rounds}" if known else None,
        f"{quantised} : {exact}",
        quantised.mean <= _AS_FAST * exact.mean and isfinite(quantised.mean),
        f"rounds to the target; holds up to {_AS_FAST:g} times as many",
    )


def _control(task: FedAQTask, fedaq: FedAQCell, plain: FedAQCell) -> list[Claim]:
    """Judge the comparison that the paper lacks: its accelerated methods move with gamma, the others with eta."""
    name = plain.method.name
    step = f"gamma = {task.gamma:.4g} is {task.gamma / task.lr:.3g} times eta"
    return [
        Claim(
            f"{task.name}: control: FedAQ-I 8b needs fewer {what} than {name}",
            None,
            f"{ours:.3g} : {theirs:.3g}",
            ours < theirs,
            f"{'; '.join(extra)}{step}: the step of the accelerated methods' main stream, given to the plain one too",
        )
        for what, ours, theirs, extra in (
            ("rounds", fedaq.mean, plain.mean, [f"{fedaq} against {plain}", ""]),
            ("uplink bits", fedaq.bits, plain.bits, []),
            ("seconds of human time", fedaq.seconds(), plain.seconds(), []),
        )
    ]


def stability(lab: Lab, task: FedAQTask, after: int) -> Claim:
    """Judge that FedAQ-II is fast but unstable: the largest fall of its accuracy below its best so far, in a whole run.

    Args:
        lab: runs and keeps trainings.
        task: the column.
        after: initial rounds that do not count.
    """
    falls = {}
    for name in ("FedAQ-I 8b", "FedAQ-II 8b"):
        best, fall = 0.0, 0.0
        for row in lab.train(settings(METHODS[name], task, 0, whole=True)).rows:
            value = float(row["test/accuracy"])
            best = max(best, value)
            fall = max(fall, best - value) if row["round"] > after else fall
        falls[name] = 100 * fall
    return Claim(
        f"{task.name}: FedAQ-II trains less stably than FedAQ-I",
        None,
        f"{falls['FedAQ-II 8b']:.2f} : {falls['FedAQ-I 8b']:.2f}",
        falls["FedAQ-II 8b"] > falls["FedAQ-I 8b"],
        f"largest fall of the test accuracy below its best so far, in points, after round {after} of {task.rounds}, first seed; the paper shows a figure",
    )


# ------------------------------------------------------------------ fedaq-table

_PAPER, _CONTROLS = DEEP[:5], DEEP[6:]
_VARIANTS = ("FedAQ-I 8b, QSGD up only", "FedAQ-I 8b, model is w_ag")
_CONVEX = (*_PAPER, "FedAQ-II 8b", *_CONTROLS, *_VARIANTS)


_COLUMNS = (
    (CONVEX, _CONVEX, "Convex: logistic regression on MNIST, to 90.28 %"),
    (MLP, DEEP, "MLP: two layers of 200 units on MNIST, to 97.6 %"),
)
_SMALL = ((QUICK, (*_PAPER, "FedAQ-II 8b", *_CONTROLS), "Small digits"),)


def _run_table(lab: Lab, quick: bool) -> list[Claim]:
    made = [replace(claim, part="The paper's arithmetic") for claim in printed()]
    for task, names, part in _SMALL if quick else _COLUMNS:
        cells, rows = column(lab, task, names)
        found = rows + claims_of(cells) + ([stability(lab, task, after=30)] if task is CONVEX else [])
        made += [replace(claim, part=part) for claim in found]
    return made


TABLE_ENTRY = Entry(
    name="fedaq-table",
    title="FedAQ: rounds, uplink bits and human time to a target, against plain averaging with the same step",
    source="Youn, Kumar, Abernethy, IEEE Data Engineering Bulletin 45(4), 2022, section 6",
    run=_run_table,
    needs="MNIST below ATOLL_DATA; nothing with --quick",
    data=("mnist",),
    quick_data=(),
)


# ------------------------------------------------------------------ fedaq-cifar


def _run_cifar(lab: Lab, quick: bool) -> list[Claim]:
    names = DEEP[:5] if quick else DEEP
    cells, rows = column(lab, IMAGES_QUICK if quick else IMAGES, names)
    return rows + claims_of(cells)


CIFAR_ENTRY = Entry(
    name="fedaq-cifar",
    title="FedAQ with a CNN on a part of CIFAR-10, against plain averaging with the same step",
    source="Youn, Kumar, Abernethy, IEEE Data Engineering Bulletin 45(4), 2022, section 6",
    run=_run_cifar,
    needs="the part of CIFAR-10 below ATOLL_DATA",
    data=("cifar10_subset",),
)
