"""FedProf, L-Task: a thousand devices with digits; and what section 5.3 says of data quality and of representations.

Source and protocol: `atoll.reproduce.fedprof`. Time and energy of rounds are simulated without training, in full. What is trained is smaller than the thesis's:
see `atoll.reproduce.fedprof.lab.SMALL` and `atoll.reproduce.fedprof.preliminary`. Its images of CIFAR-10 are not trained.
"""

from __future__ import annotations

from dataclasses import replace

from .entry import Claim, Entry, Lab
from .fedprof.judges import judge_participation, judge_ratios, judge_rounds, judge_trained, rounds_of
from .fedprof.lab import SMALL, cells, runs, taken_part
from .fedprof.preliminary import conditions, fan_in, judge_conditions, judge_shapes, shapes
from .fedprof.setting import IMAGES

__all__ = ["ENTRY"]

_SMALLER = f"trained smaller: {SMALL.clients} clients, one seed"


def _run(lab: Lab, quick: bool) -> list[Claim]:
    claims = judge_rounds(IMAGES, rounds_of(IMAGES, draws=20 if quick else 200)) + judge_ratios(IMAGES)
    protocol = replace(SMALL, rows=1000, clients=20, lengths={"full": 2, "partial": 2}) if quick else SMALL
    claims += _marked(judge_trained(IMAGES, cells(lab, protocol)))
    for group in ("full", "partial"):
        heard = taken_part(protocol, runs(lab, protocol, group, "FedProf", protocol.shares[0]))
        told = _marked(judge_participation(IMAGES, heard, protocol.length(group)))
        claims += [replace(claim, claim=f"{group}: {claim.claim}") for claim in told]
    claims += judge_conditions(conditions(lab, 2 if quick else 10, rows=1000 if quick else 6000))
    trained = shapes((0, 1), rows=1000) if quick else shapes()
    return claims + judge_shapes(fan_in(), trained)


def _marked(claims: list[Claim]) -> list[Claim]:
    return [replace(claim, note=f"{_SMALLER}; {claim.note}") for claim in claims]


ENTRY = Entry(
    name="fedprof-images",
    title="FedProf with digits: time and energy of 1,000 devices; trained with 50; data quality and representations",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 5.4, Figures 5.1, 5.3 and 5.12",
    run=_run,
    needs="MNIST below ATOLL_DATA",
)
