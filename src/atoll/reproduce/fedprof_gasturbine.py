"""FedProf, S-Task: time and energy of rounds among fifty sensors of a gas turbine.

Source and protocol: `atoll.reproduce.fedprof`. Rounds are simulated without training.
"""

from __future__ import annotations

from .entry import Claim, Entry, Lab
from .fedprof.judges import judge_ratios, judge_rounds, rounds_of
from .fedprof.setting import TURBINE

__all__ = ["ENTRY"]


def _run(lab: Lab, quick: bool) -> list[Claim]:
    del lab
    return judge_rounds(TURBINE, rounds_of(TURBINE, draws=200 if quick else 2000)) + judge_ratios(TURBINE)


ENTRY = Entry(
    name="fedprof-gasturbine",
    title="FedProf on gas turbine sensors: time and energy a round, without training",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 5.3",
    run=_run,
)
