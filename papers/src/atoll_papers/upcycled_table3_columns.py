"""Upcycled-FL, Table 3: the columns FEMNIST and Sent140 with 30 % stragglers, on stand-ins.

Data, models and scale are those of `upcycled-columns`, which has 90 % stragglers; four seeds everywhere. Nothing is
tuned here: each method has the rate that was picked there, with 90 % stragglers, as on the synthetic populations
`upcycled-table3` has the rates of `upcycled-table1`.
"""

from __future__ import annotations

from dataclasses import replace

from atoll.reproduce import Claim, Entry, Lab

from .upcycled.methods import BASES
from .upcycled.pairs import Key, chosen_at
from .upcycled.table import SOURCE, Paper, small_table, table
from .upcycled_columns import PROTOCOL as AT_90

__all__ = ["ENTRY", "PROTOCOL", "RATES"]

PROTOCOL = replace(AT_90, late=0.3)
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
_PAPER: Paper = {
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


def _run(lab: Lab, quick: bool) -> list[Claim]:
    if quick:
        return small_table(lab, PROTOCOL.late, _PAPER)
    return table(lab, PROTOCOL, _PAPER, ("qmnist", "tweets"), tuple(BASES), chosen_at(RATES))


ENTRY = Entry(
    name="upcycled-table3-columns",
    title="Upcycled-FL on digits by writer and on tweets, 30 % stragglers: seven bases with and without",
    source=f"{SOURCE}, Table 3",
    run=_run,
    needs="MNIST, its writers and Sentiment140 below ATOLL_DATA",
    data=("qmnist_writers", "sentiment140"),
)
