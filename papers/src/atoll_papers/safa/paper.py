"""The thesis's printed values, cell by cell, and its statements; with figures from its author's own sheets where it shows only drawings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import printed
from .tasks import FRACTIONS

__all__ = ["LOSSES", "STATEMENTS", "STUDY", "TABLES", "PaperTable", "Statement"]


@dataclass(frozen=True)
class PaperTable:
    """A table of the thesis: a value for each algorithm, probability of crash and fraction.

    Attributes:
        label: its number in the thesis.
        digits: after the point.
        cells: ``(algorithm, cr, C) -> value``.
        lines: ``(algorithm, cr) -> line``.
    """

    label: str
    digits: int
    cells: Mapping[tuple[str, float, float], float]
    lines: Mapping[tuple[str, float], int]


def _read(label: str, text: str, part: int, digits: int) -> PaperTable:
    cells, lines = {}, {}
    for row in text.split("\n"):
        if not row.strip():
            continue
        algorithm, crash, line, *values = row.split()
        key = algorithm.replace("_", " "), float(crash)
        lines[key] = int(line)
        for fraction, value in zip(FRACTIONS, values, strict=True):
            cells[(*key, fraction)] = float(value.split("/")[part])
    return PaperTable(label, digits, cells, lines)


TABLES: Mapping[tuple[str, str], PaperTable] = {
    ("boston", "length"): _read("Table 3.4", printed.BOSTON_LENGTHS, 0, 2),
    ("boston", "distribution"): _read("Table 3.5", printed.BOSTON_DISTRIBUTION, 0, 2),
    ("boston", "accuracy"): _read("Table A.1", printed.BOSTON_ACCURACY, 0, 4),
    ("boston", "synchronised"): _read("Table A.2", printed.BOSTON_RATIOS, 0, 3),
    ("boston", "futility"): _read("Table A.2", printed.BOSTON_RATIOS, 1, 2),
    ("mnist", "length"): _read("Table 3.6", printed.MNIST_LENGTHS, 0, 2),
    ("mnist", "distribution"): _read("Table 3.7", printed.MNIST_DISTRIBUTION, 0, 2),
    ("mnist", "accuracy"): _read("Table A.3", printed.MNIST_ACCURACY, 0, 4),
    ("mnist", "synchronised"): _read("Table A.4", printed.MNIST_RATIOS, 0, 3),
    ("mnist", "futility"): _read("Table A.4", printed.MNIST_RATIOS, 1, 2),
    ("kdd", "length"): _read("Table 3.8", printed.KDD_LENGTHS, 0, 2),
    ("kdd", "distribution"): _read("Table 3.9", printed.KDD_DISTRIBUTION, 0, 2),
    ("kdd", "accuracy"): _read("Table A.5", printed.KDD_ACCURACY, 0, 4),
    ("kdd", "synchronised"): _read("Table A.6", printed.KDD_RATIOS, 0, 3),
    ("kdd", "futility"): _read("Table A.6", printed.KDD_RATIOS, 1, 2),
}
"""By task and quantity: twelve tables, of which those with two numbers a cell appear twice."""


@dataclass(frozen=True)
class Statement:
    """A statement of the thesis in words.

    Attributes:
        text: the statement.
        number: the number in it.
        line: its line.
        basis: how the number follows from the tables.
    """

    text: str
    number: float | str
    line: int
    basis: str = ""


STATEMENTS: Mapping[str, Statement] = {
    "halves": Statement("task 1, C = 0.1: SAFA halves the time of a FedAvg round", 2.0, 2175, "2.11, 2.12, 2.20, 2.19 at the four cr"),
    "mnist over FedAvg": Statement("task 2: up to 27 times faster than FedAvg at C = 0.1 or 0.3", 27.0, 2203, "5602.04 / 203.48 at C = .1, cr = .5"),
    "mnist over FedCS": Statement("task 2: up to 6 times faster than FedCS at C = 0.1 or 0.3", 6.0, 2203, "its table holds 1487.96 / 198.28 = 7.5 at C = .1, cr = .1"),
    "kdd over FedAvg": Statement("task 3: up to 7.7 times faster than FedAvg", 7.7, 2258, "1640.20 / 212.52 at C = .1, cr = .7"),
    "kdd over FedCS": Statement("task 3: up to 3.7 times faster than FedCS", 3.7, 2258, "1319.17 / 353.98 at C = .3, cr = .1"),
    "mnist accuracy": Statement("task 2: fully local about 90 %, the others 96.0 to 98.0 %", "0.90; 0.960 to 0.980", 2203),
    "kdd accuracy": Statement("task 3: above 99 % with FedAvg, FedCS and SAFA", 0.99, 2258),
    "futility": Statement("task 3: SAFA's futility is below 4 % also at cr = 0.7", 0.04, 2285),
    "half": Statement("FedAvg and FedCS throw away about cr / 2 of the work", "cr / 2", 2285),
    "distribution": Statement("task 2: SAFA's distribution time depends on cr and not on C, tens of seconds below cr = 0.5", "14 to 18 s", 2230),
    "fraction": Statement("a larger C brings little: C = 0.3 or 0.5 is as good as 1.0 on task 2 at low cr", "0.9746, 0.9764 : 0.9787", 2289),
    "local": Statement("fully local training can be decent: task 1 at C = 0.3, task 3 at C = 0.1 and cr = 0.7", "0.5480 to 0.6363; 0.9530", 2289),
    "synchronous": Statement("FedAvg can win slightly at C = 1.0", "0.9796 : 0.9787", 2289),
    "quick": Statement("Figs. 3.7 to 3.9: SAFA's loss falls faster than FedAvg's and FedCS's at C = 0.3", "figure", 2125),
    "tolerance": Statement("Figs. 3.3, 3.4: SR falls with tau, EUR does not depend on it, VV grows with it and faster at cr = 0.7", "figure", 1936),
    "tolerance loss": Statement("Figs. 3.3, 3.4: a small tau gives a better loss", "figure; 0.0316 : 0.0353 in the sheet", 1936),
    "bias 2": Statement("Fig. 3.5: in case 2 the bias is below FedAvg's", "below", 2061, "0.530 at cr = 0.3, by a formula with a wrong sign"),
    "bias 3": Statement("Fig. 3.5: in case 3 the slowest client is at a disadvantage", "above", 2061, "1.888 at cr = 0.3, by a formula with a wrong sign"),
    "bias converges": Statement("Fig. 3.5: the bias converges after a few rounds", "figure", 2061),
}  # fmt: skip
"""By a short name."""

_LAGS = (1, 2, 3, 5, 7, 10)


def _study(rows: Mapping[tuple[str, float, float], tuple[float, ...]]) -> dict[tuple[str, float, float, int], float]:
    return {(*key, lag): value for key, values in rows.items() for lag, value in zip(_LAGS, values, strict=True)}


STUDY: Mapping[tuple[str, float, float, int], float] = _study(
    {
        ("best loss", 0.1, 0.3): (0.0315, 0.0315, 0.0315, 0.0315, 0.0315, 0.0316),
        ("best loss", 0.1, 0.7): (0.0315, 0.0315, 0.0318, 0.0316, 0.0345, 0.0360),
        ("best loss", 0.5, 0.7): (0.0315, 0.0315, 0.0316, 0.0315, 0.0320, 0.0326),
        ("best loss", 1.0, 0.7): (0.0315, 0.0315, 0.0315, 0.0315, 0.0330, 0.0322),
        ("synchronised", 0.1, 0.3): (0.786, 0.740, 0.722, 0.714, 0.704, 0.660),
        ("synchronised", 0.1, 0.7): (0.598, 0.462, 0.426, 0.364, 0.352, 0.296),
        ("synchronised", 1.0, 0.7): (0.582, 0.450, 0.406, 0.346, 0.326, 0.300),
        ("effective", 0.1, 0.3): (0.200, 0.200, 0.200, 0.200, 0.200, 0.200),
        ("effective", 0.5, 0.3): (0.564, 0.558, 0.568, 0.562, 0.564, 0.550),
        ("effective", 1.0, 0.7): (0.310, 0.292, 0.312, 0.300, 0.298, 0.290),
        ("variance", 0.1, 0.3): (0.126, 0.258, 0.299, 0.355, 0.434, 0.551),
        ("variance", 0.1, 0.7): (0.073, 0.162, 0.273, 0.467, 0.855, 1.559),
        ("variance", 1.0, 0.7): (0.054, 0.173, 0.232, 0.688, 0.979, 1.423),
    }
)
"""Task 1 by tolerance: ``(quantity, C, cr, tau)``; behind Figs. 3.3 and 3.4, from the author's sheet (the thesis shows drawings only)."""

LOSSES: Mapping[tuple[str, float, str], tuple[float, float, float, float]] = {
    ("boston", 0.1, "FedAvg"): (0.0954, 0.0737, 0.0533, 0.0315),
    ("boston", 0.1, "FedCS"): (0.0957, 0.0765, 0.0543, 0.0315),
    ("boston", 0.1, "SAFA"): (0.0959, 0.0658, 0.0405, 0.0315),
    ("boston", 0.3, "FedAvg"): (0.0966, 0.0818, 0.0595, 0.0315),
    ("boston", 0.3, "FedCS"): (0.0963, 0.0769, 0.0557, 0.0315),
    ("boston", 0.3, "SAFA"): (0.0961, 0.0733, 0.0465, 0.0315),
    ("boston", 0.5, "FedAvg"): (0.0975, 0.0873, 0.0740, 0.0376),
    ("boston", 0.5, "FedCS"): (0.0975, 0.0874, 0.0731, 0.0390),
    ("boston", 0.5, "SAFA"): (0.0964, 0.0767, 0.0573, 0.0315),
    ("boston", 0.7, "FedAvg"): (0.0960, 0.0902, 0.0851, 0.0455),
    ("boston", 0.7, "FedCS"): (0.0974, 0.0914, 0.0764, 0.0402),
    ("boston", 0.7, "SAFA"): (0.0957, 0.0848, 0.0690, 0.0320),
    ("mnist", 0.1, "FedAvg"): (1.137, 0.243, 0.152, 0.109),
    ("mnist", 0.1, "FedCS"): (0.952, 0.247, 0.153, 0.109),
    ("mnist", 0.1, "SAFA"): (1.039, 0.172, 0.106, 0.078),
    ("mnist", 0.3, "FedAvg"): (0.990, 0.282, 0.169, 0.120),
    ("mnist", 0.3, "FedCS"): (0.976, 0.287, 0.174, 0.122),
    ("mnist", 0.3, "SAFA"): (1.056, 0.208, 0.132, 0.096),
    ("mnist", 0.5, "FedAvg"): (1.408, 0.389, 0.209, 0.149),
    ("mnist", 0.5, "FedCS"): (1.057, 0.405, 0.217, 0.148),
    ("mnist", 0.5, "SAFA"): (1.033, 0.240, 0.148, 0.103),
    ("mnist", 0.7, "FedAvg"): (1.166, 0.510, 0.267, 0.178),
    ("mnist", 0.7, "FedCS"): (1.125, 0.550, 0.288, 0.184),
    ("mnist", 0.7, "SAFA"): (0.931, 0.289, 0.177, 0.122),
    ("kdd", 0.1, "FedAvg"): (0.877, 0.549, 0.394, 0.330),
    ("kdd", 0.1, "FedCS"): (0.880, 0.547, 0.386, 0.299),
    ("kdd", 0.1, "SAFA"): (0.866, 0.424, 0.358, 0.288),
    ("kdd", 0.3, "FedAvg"): (0.885, 0.608, 0.428, 0.319),
    ("kdd", 0.3, "FedCS"): (0.883, 0.582, 0.418, 0.323),
    ("kdd", 0.3, "SAFA"): (0.869, 0.462, 0.363, 0.296),
    ("kdd", 0.5, "FedAvg"): (0.896, 0.668, 0.484, 0.327),
    ("kdd", 0.5, "FedCS"): (0.892, 0.662, 0.474, 0.328),
    ("kdd", 0.5, "SAFA"): (0.864, 0.511, 0.375, 0.302),
    ("kdd", 0.7, "FedAvg"): (0.904, 0.745, 0.595, 0.373),
    ("kdd", 0.7, "FedCS"): (0.913, 0.761, 0.592, 0.373),
    ("kdd", 0.7, "SAFA"): (0.882, 0.588, 0.419, 0.333),
}
"""Test loss after rounds 1, 10, 25 and the last at C = 0.3, by task, cr and algorithm; behind Figs. 3.7 to 3.9, from the author's sheet."""
