"""Upcycled-FL, Table 3: test accuracy with 30 % stragglers, on the four synthetic populations.

Source and protocol: `atoll_papers.upcycled`. `upcycled-table3-columns` replaces the table's other two columns
(FEMNIST, Sent140).
"""

from __future__ import annotations

from .upcycled.table import Paper, synthetic

__all__ = ["ENTRY"]

_PAPER: Paper = {
    ("FedAvg", "iid"): (98.50, 99.30),
    ("FedAvg", "0,0"): (80.30, 80.77),
    ("FedAvg", "0.5,0.5"): (82.60, 83.09),
    ("FedAvg", "1,1"): (78.81, 80.74),
    ("FedAvgM", "iid"): (98.50, 99.12),
    ("FedAvgM", "0,0"): (81.08, 82.20),
    ("FedAvgM", "0.5,0.5"): (82.89, 82.68),
    ("FedAvgM", "1,1"): (80.64, 80.43),
    ("FedProx", "iid"): (97.22, 98.24),
    ("FedProx", "0,0"): (80.88, 81.52),
    ("FedProx", "0.5,0.5"): (82.31, 83.05),
    ("FedProx", "1,1"): (80.13, 81.73),
    ("Scaffold", "iid"): (98.28, 99.52),
    ("Scaffold", "0,0"): (79.95, 79.46),
    ("Scaffold", "0.5,0.5"): (79.54, 81.83),
    ("Scaffold", "1,1"): (72.27, 73.34),
    ("FedDyn", "iid"): (98.17, 98.57),
    ("FedDyn", "0,0"): (82.06, 82.08),
    ("FedDyn", "0.5,0.5"): (80.97, 82.80),
    ("FedDyn", "1,1"): (78.65, 81.11),
    ("pFedMe", "iid"): (96.45, 96.89),
    ("pFedMe", "0,0"): (91.05, 91.06),
    ("pFedMe", "0.5,0.5"): (89.64, 89.40),
    ("pFedMe", "1,1"): (92.88, 92.64),
    ("FedYogi", "iid"): (99.38, 99.60),
    ("FedYogi", "0,0"): (81.06, 81.77),
    ("FedYogi", "0.5,0.5"): (80.65, 81.72),
    ("FedYogi", "1,1"): (79.14, 80.32),
}


ENTRY = synthetic(3, 0.3, _PAPER)
