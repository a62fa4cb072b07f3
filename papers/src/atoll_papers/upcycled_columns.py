"""Upcycled-FL, Table 1: the columns FEMNIST and Sent140 with 90 % stragglers, on stand-ins.

Source and protocol: `atoll_papers.upcycled`; data and models, and how they differ from the paper's:
`atoll_papers.upcycled.columns`. Also scaled down, so that all cells take about 40 minutes of one processor, most of
it for the tweets: ``T = 20`` against 40, five local epochs, 4,160 of the tweets (two mini-batches a client), and
learning rates picked from three, with one seed and ``T = 10``. The rows of FedYogi are lost in our copy.
"""

from __future__ import annotations

from atoll.reproduce import Claim, Entry, Lab

from .upcycled.cells import UpcycledProtocol
from .upcycled.methods import BASES
from .upcycled.table import SOURCE, Paper, small_table, table

__all__ = ["ENTRY", "PROTOCOL"]

PROTOCOL = UpcycledProtocol(late=0.9, rounds=20, tuning_seeds=1, tuning_rounds=10, epochs=5, rows=4160)
"""How much is run."""
_PAPER: Paper = {
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


def _run(lab: Lab, quick: bool) -> list[Claim]:
    if not quick:
        return table(lab, PROTOCOL, _PAPER, ("qmnist", "tweets"), tuple(BASES))
    return small_table(lab, PROTOCOL.late, _PAPER)


ENTRY = Entry(
    name="upcycled-columns",
    title="Upcycled-FL on digits by writer and on tweets, 90 % stragglers: seven bases with and without",
    source=f"{SOURCE}, Table 1",
    run=_run,
    needs="MNIST, its writers and Sentiment140 below ATOLL_DATA",
    data=("qmnist_writers", "sentiment140"),
)
