"""Upcycled-FL's Tables 1 and 3: test accuracy with 90 % and with 30 % stragglers. Source and protocol: `atoll_papers.upcycled`.

The rows of FedYogi are lost in our copy of the paper.

* **upcycled-table1** and **upcycled-table3**: the four synthetic populations.
* **upcycled-columns**: Table 1's columns FEMNIST and Sent140, on stand-ins: see `atoll_papers.upcycled.trainings`. Also scaled down, so that all
  cells take about 40 minutes of one processor, most of it for the tweets: ``T = 20`` against 40, five local epochs, 4,160 of the tweets (two
  mini-batches a client), and learning rates picked from three, with one seed and ``T = 10``.
* **upcycled-table3-columns**: the same columns of Table 3. Data, models and scale are those of `upcycled-columns`; four seeds everywhere. Nothing
  is tuned here: each method has the rate that was picked there, with 90 % stragglers, as on the synthetic populations `upcycled-table3` has the
  rates of `upcycled-table1`.
"""

from __future__ import annotations

from dataclasses import replace

from atoll.reproduce import Claim, Entry, Lab

from .table import SOURCE, Paper, small_table, synthetic, table
from .trainings import BASES, Key, UpcycledProtocol, chosen_at

__all__ = [
    "COLUMNS_ENTRY",
    "PROTOCOL_AT_30",
    "PROTOCOL_AT_90",
    "RATES",
    "TABLE_1_ENTRY",
    "TABLE_3_COLUMNS_ENTRY",
    "TABLE_3_ENTRY",
]


# ------------------------------------------------------------------ upcycled-table1

TABLE_1: Paper = {
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


TABLE_1_ENTRY = synthetic(1, 0.9, TABLE_1)


# ------------------------------------------------------------------ upcycled-table3

TABLE_3: Paper = {
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


TABLE_3_ENTRY = synthetic(3, 0.3, TABLE_3)


# ------------------------------------------------------------------ upcycled-columns

PROTOCOL_AT_90 = UpcycledProtocol(late=0.9, rounds=20, tuning_seeds=1, tuning_rounds=10, epochs=5, rows=4160)
"""How much is run."""
TABLE_1_COLUMNS: Paper = {
    ("FedAvg", "qmnist"): (81.38, 82.10),
    ("FedAvg", "tweets"): (76.11, 76.32),
    ("FedAvgM", "qmnist"): (80.15, 81.30),
    ("FedAvgM", "tweets"): (75.70, 74.88),
    ("FedProx", "qmnist"): (79.35, 80.33),
    ("FedProx", "tweets"): (73.94, 74.25),
    ("Scaffold", "qmnist"): (76.83, 77.88),
    ("Scaffold", "tweets"): (76.34, 77.34),
    ("FedDyn", "qmnist"): (81.76, 83.33),
    ("FedDyn", "tweets"): (75.97, 76.03),
    ("pFedMe", "qmnist"): (71.73, 76.66),
    ("pFedMe", "tweets"): (72.81, 74.07),
}


def _run_columns(lab: Lab, quick: bool) -> list[Claim]:
    if not quick:
        return table(lab, PROTOCOL_AT_90, TABLE_1_COLUMNS, ("qmnist", "tweets"), tuple(BASES))
    return small_table(lab, PROTOCOL_AT_90.late, TABLE_1_COLUMNS)


COLUMNS_ENTRY = Entry(
    name="upcycled-columns",
    title="Upcycled-FL on digits by writer and on tweets, 90 % stragglers: seven bases with and without",
    source=f"{SOURCE}, Table 1",
    run=_run_columns,
    needs="MNIST, its writers and Sentiment140 below ATOLL_DATA",
    data=("qmnist_writers", "sentiment140"),
)


# ------------------------------------------------------------------ upcycled-table3-columns

PROTOCOL_AT_30 = replace(PROTOCOL_AT_90, late=0.3)
"""How much is run."""
RATES: dict[Key, tuple[float, float]] = {
    ("FedAvg", "qmnist"): (0.3, 0.3),
    ("FedAvgM", "qmnist"): (0.3, 0.3),
    ("FedProx", "qmnist"): (0.3, 0.3),
    ("Scaffold", "qmnist"): (0.1, 0.1),
    ("FedDyn", "qmnist"): (0.3, 0.3),
    ("pFedMe", "qmnist"): (0.06, 0.06),
    ("FedYogi", "qmnist"): (0.3, 0.1),
    ("FedAvg", "tweets"): (1.0, 1.0),
    ("FedAvgM", "tweets"): (1.0, 1.0),
    ("FedProx", "tweets"): (1.0, 1.0),
    ("Scaffold", "tweets"): (0.3, 0.1),
    ("FedDyn", "tweets"): (1.0, 1.0),
    ("pFedMe", "tweets"): (0.06, 0.06),
    ("FedYogi", "tweets"): (1.0, 1.0),
}
"""``(base, data) -> (rate of the base, rate of its Upcycled version)``, as `upcycled-columns` picked them."""
TABLE_3_COLUMNS: Paper = {
    ("FedAvg", "qmnist"): (83.06, 84.41),
    ("FedAvg", "tweets"): (74.29, 75.18),
    ("FedAvgM", "qmnist"): (81.60, 82.31),
    ("FedAvgM", "tweets"): (74.61, 74.16),
    ("FedProx", "qmnist"): (81.57, 82.85),
    ("FedProx", "tweets"): (74.23, 74.83),
    ("Scaffold", "qmnist"): (76.85, 77.69),
    ("Scaffold", "tweets"): (75.76, 77.01),
    ("FedDyn", "qmnist"): (84.39, 85.34),
    ("FedDyn", "tweets"): (75.88, 75.90),
    ("pFedMe", "qmnist"): (76.15, 77.36),
    ("pFedMe", "tweets"): (72.87, 73.48),
    ("FedYogi", "qmnist"): (79.98, 81.96),
    ("FedYogi", "tweets"): (77.63, 77.78),
}


def _run_table_3_columns(lab: Lab, quick: bool) -> list[Claim]:
    if quick:
        return small_table(lab, PROTOCOL_AT_30.late, TABLE_3_COLUMNS)
    return table(lab, PROTOCOL_AT_30, TABLE_3_COLUMNS, ("qmnist", "tweets"), tuple(BASES), chosen_at(RATES))


TABLE_3_COLUMNS_ENTRY = Entry(
    name="upcycled-table3-columns",
    title="Upcycled-FL on digits by writer and on tweets, 30 % stragglers: seven bases with and without",
    source=f"{SOURCE}, Table 3",
    run=_run_table_3_columns,
    needs="MNIST, its writers and Sentiment140 below ATOLL_DATA",
    data=("qmnist_writers", "sentiment140"),
)
