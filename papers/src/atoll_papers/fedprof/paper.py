"""Tables 5.3 and 5.4 as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .setting import FedProfSetting

__all__ = ["GROUPS", "TABLE_3", "TABLE_4", "FedProfCell", "Key", "table_of"]

Key = tuple[str, str, float]
"""Group (``"full"`` or ``"partial"`` aggregation), method and ``C``."""

GROUPS = {
    "full": ("FedAvg", "CFCFM", "FedProf"),
    "partial": ("FedAvg-RP", "FedProx", "FedAdam", "AFL", "FedProf"),
}
"""The methods of each group; improvements are measured against the first."""


@dataclass(frozen=True)
class FedProfCell:
    """The thesis's printed values of a run.

    Attributes:
        best: best accuracy in ``t_max`` rounds.
        rounds: to the target accuracy.
        seconds: to the target.
        watt_hours: of all clients together to the target.
    """

    best: float
    rounds: int
    seconds: float
    watt_hours: float

    @property
    def length(self) -> float:
        """Return the mean seconds per round."""
        return self.seconds / self.rounds


_Row = tuple[float, int, float, float]


def _cells(shares: tuple[float, float], rows: Mapping[tuple[str, str], tuple[_Row, _Row]]) -> dict[Key, FedProfCell]:
    return {
        (group, method, share): FedProfCell(*row)
        for (group, method), pair in rows.items()
        for share, row in zip(shares, pair, strict=True)
    }


TABLE_3 = _cells(
    (0.2, 0.3),
    {
        ("full", "FedAvg"): ((0.805, 56, 2869.66, 2.87), (0.806, 52, 3160.01, 4.12)),
        ("full", "CFCFM"): ((0.806, 39, 1230.81, 1.61), (0.802, 42, 1495.34, 2.91)),
        ("full", "FedProf"): ((0.824, 16, 803.74, 0.80), (0.827, 12, 701.18, 0.94)),
        ("partial", "FedAvg-RP"): ((0.819, 13, 735.48, 0.71), (0.817, 8, 466.90, 0.64)),
        ("partial", "FedProx"): ((0.821, 16, 899.93, 0.79), (0.810, 16, 841.65, 1.08)),
        ("partial", "FedAdam"): ((0.818, 8, 438.20, 0.42), (0.819, 12, 667.00, 0.94)),
        ("partial", "AFL"): ((0.816, 6, 313.81, 0.30), (0.813, 6, 298.81, 0.42)),
        ("partial", "FedProf"): ((0.844, 5, 283.76, 0.27), (0.841, 4, 235.22, 0.35)),
    },
)
"""S-Task, target accuracy 0.8."""

TABLE_4 = _cells(
    (0.05, 0.1),
    {
        ("full", "FedAvg"): ((0.906, 213, 10407.30, 60.01), (0.929, 76, 3894.26, 43.16)),
        ("full", "CFCFM"): ((0.923, 251, 8645.17, 61.37), (0.932, 75, 2675.56, 37.62)),
        ("full", "FedProf"): ((0.926, 98, 4846.15, 28.22), (0.945, 45, 2295.03, 25.98)),
        ("partial", "FedAvg-RP"): ((0.937, 12, 572.90, 3.29), (0.938, 12, 603.94, 6.57)),
        ("partial", "FedProx"): ((0.936, 13, 640.01, 3.58), (0.942, 11, 559.16, 5.91)),
        ("partial", "FedAdam"): ((0.940, 12, 599.96, 3.47), (0.939, 12, 608.85, 6.76)),
        ("partial", "AFL"): ((0.952, 10, 479.73, 2.73), (0.944, 9, 476.62, 5.26)),
        ("partial", "FedProf"): ((0.962, 8, 383.94, 2.26), (0.962, 8, 413.16, 4.64)),
    },
)
"""L-Task, target accuracy 0.9."""


def table_of(setting: FedProfSetting) -> dict[Key, FedProfCell]:
    """Return the thesis's table of a task."""
    return {"gasturbine": TABLE_3, "images": TABLE_4}[setting.name]
