"""FedProf, S-Task: fifty sensors of a gas turbine, half of them with bad data.

Source and protocol: `atoll_papers.fedprof`; data and models: `atoll_papers.fedprof.tasks`. Time and energy per
round are judged without training, everything else by medians of ten seeds, each with its own partition, bad clients and
devices.
"""

from __future__ import annotations

from atoll.reproduce import Claim, Entry, Lab

from .fedprof.heard import judge_participation, taken_part
from .fedprof.judges import judge_ratios, judge_rounds, rounds_of
from .fedprof.lab import FedProfProtocol, cells, runs
from .fedprof.rivals import judge_trained
from .fedprof.setting import TURBINE

__all__ = ["ENTRY"]


def _run(lab: Lab, quick: bool) -> list[Claim]:
    protocol = (
        FedProfProtocol("gasturbine", rounds=20, seeds=1, shares=(0.2,)) if quick else FedProfProtocol("gasturbine")
    )
    rounds = judge_rounds(TURBINE, rounds_of(TURBINE, draws=200 if quick else 2000))
    trained = runs(lab, protocol)
    claims = rounds + judge_ratios(TURBINE) + judge_trained(TURBINE, cells("gasturbine", trained))
    counts = taken_part(protocol, trained["partial", "FedProf", 0.2])
    return claims + judge_participation(TURBINE, counts, protocol.rounds or TURBINE.rounds["partial"])


ENTRY = Entry(
    name="fedprof-gasturbine",
    title="FedProf on gas turbine sensors: accuracy, rounds, time and energy against six methods",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 5.3",
    run=_run,
    needs="the gas turbine's emissions below ATOLL_DATA",
    data=("gas_turbine",),
)
