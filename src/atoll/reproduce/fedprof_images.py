"""FedProf, L-Task: time and energy of rounds among a thousand devices with digits.

Source and protocol: `atoll.reproduce.fedprof`. Rounds are simulated without training.
"""

from __future__ import annotations

from .entry import Claim, Entry, Lab
from .fedprof.judges import judge_ratios, judge_rounds, rounds_of
from .fedprof.setting import IMAGES

__all__ = ["ENTRY"]


def _run(lab: Lab, quick: bool) -> list[Claim]:
    del lab
    return judge_rounds(IMAGES, rounds_of(IMAGES, draws=20 if quick else 200)) + judge_ratios(IMAGES)


ENTRY = Entry(
    name="fedprof-images",
    title="FedProf with 1,000 devices: time and energy a round, without training",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 5.4",
    run=_run,
)
