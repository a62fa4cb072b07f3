"""Upcycled-FL, Table 1: test accuracy with 90 % stragglers, on the four synthetic populations.

Source and protocol: `atoll_papers.upcycled`. The rows of FedYogi are lost in our copy of the paper.
`upcycled-columns` replaces the table's other two columns (FEMNIST, Sent140).
"""

from __future__ import annotations

from .upcycled.table import Paper, synthetic

__all__ = ["ENTRY"]

_PAPER: Paper = {
    ("FedAvg", "iid"): (98.06, 98.83),
    ("FedAvg", "0,0"): (79.28, 81.46),
    ("FedAvg", "0.5,0.5"): (81.58, 82.89),
    ("FedAvg", "1,1"): (80.40, 81.49),
    ("FedAvgM", "iid"): (98.43, 98.72),
    ("FedAvgM", "0,0"): (80.29, 81.74),
    ("FedAvgM", "0.5,0.5"): (82.60, 83.13),
    ("FedAvgM", "1,1"): (80.59, 81.37),
    ("FedProx", "iid"): (96.52, 97.62),
    ("FedProx", "0,0"): (80.72, 80.88),
    ("FedProx", "0.5,0.5"): (81.99, 83.10),
    ("FedProx", "1,1"): (81.19, 81.94),
    ("Scaffold", "iid"): (97.51, 98.68),
    ("Scaffold", "0,0"): (80.26, 81.10),
    ("Scaffold", "0.5,0.5"): (82.44, 82.64),
    ("Scaffold", "1,1"): (74.91, 76.14),
    ("FedDyn", "iid"): (97.00, 98.32),
    ("FedDyn", "0,0"): (81.62, 82.41),
    ("FedDyn", "0.5,0.5"): (80.64, 82.89),
    ("FedDyn", "1,1"): (77.27, 80.03),
    ("pFedMe", "iid"): (96.30, 96.77),
    ("pFedMe", "0,0"): (89.15, 89.08),
    ("pFedMe", "0.5,0.5"): (89.43, 89.55),
    ("pFedMe", "1,1"): (93.06, 93.12),
}


ENTRY = synthetic(1, 0.9, _PAPER)
