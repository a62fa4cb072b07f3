"""FedProf, L-Task: a thousand devices with digits; and the statements of section 5.3 about data quality and representations.

Source and protocol: `atoll_papers.fedprof`. Time and energy of rounds are simulated without training, in full.
Training is smaller than the thesis's: see `atoll_papers.fedprof.lab.SMALL`, `atoll_papers.fedprof.quality` and
`atoll_papers.fedprof.shapes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from atoll.reproduce import Claim, Entry, Lab
from atoll.runs.model import read_model

from .fedprof.heard import divergences, judge_divergences, judge_participation, taken_part
from .fedprof.judges import judge_ratios, judge_rounds, rounds_of
from .fedprof.lab import SMALL, FedProfProtocol, cells, runs, seeds_of
from .fedprof.paper import GROUPS
from .fedprof.quality import conditions, judge_conditions
from .fedprof.rivals import judge_sooner, judge_trained, not_trained
from .fedprof.setting import IMAGES
from .fedprof.shapes import fan_in, judge_shapes, shapes

__all__ = ["ENTRY"]

_NEARER = 0.8
"""A second target: with fewer local steps than the thesis's, most methods do not reach its 0.9."""


def _run(lab: Lab, quick: bool) -> list[Claim]:
    claims = judge_rounds(IMAGES, rounds_of(IMAGES, draws=20 if quick else 200)) + judge_ratios(IMAGES)
    fewer = replace(SMALL, rows=1000, clients=20, seeds=1, lengths={"full": 2, "partial": 2})
    claims += _trained(lab, fewer if quick else SMALL)
    claims += judge_conditions(conditions(lab, 2, rows=1000) if quick else conditions(lab, 10, seeds=3))
    trained = shapes((0, 1), rows=1000) if quick else shapes()
    return claims + judge_shapes(fan_in(), trained)


def _trained(lab: Lab, protocol: FedProfProtocol) -> list[Claim]:
    """Judge both groups, and which clients take part in them."""
    trained, share = runs(lab, protocol), protocol.shares[0]
    claims = judge_trained(IMAGES, cells("images", trained))
    claims += judge_sooner(IMAGES, cells("images", trained, _NEARER), _NEARER)
    for group in GROUPS:
        if (group, "FedProf", share) in trained:
            heard = taken_part(protocol, trained[group, "FedProf", share])
            told = judge_participation(IMAGES, heard, protocol.length(group))
            claims += [replace(claim, claim=f"{group}: {claim.claim}") for claim in told]
    last = [read_model(run.folder.model_file) for run in trained.get(("partial", "FedProf", share), [])]
    if last:
        claims.append(_seen(protocol, last, "the last model of partial aggregation"))
    smaller = f"trained smaller: {protocol.clients} clients, seeds: {seeds_of(trained)}"
    claims = [replace(claim, note=f"{smaller}; {claim.note}") for claim in claims]
    return [
        *claims,
        _seen(protocol, [None] * protocol.seeds, "the first model"),
        *not_trained(IMAGES, trained, GROUPS, share),
    ]


def _seen(protocol: FedProfProtocol, models: Sequence[Any], words: str) -> Claim:
    """Judge how far clients' profiles are from the server's, with one model for each seed."""
    claim = judge_divergences([divergences(protocol, seed, params) for seed, params in enumerate(models)], words)
    return replace(claim, note=f"{protocol.clients} clients; {claim.note}")


ENTRY = Entry(
    name="fedprof-images",
    title="FedProf with digits: time and energy of 1,000 devices; trained with 50; data quality and representations",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 5.4, Figures 5.1, 5.3 and 5.12",
    run=_run,
    needs="MNIST below ATOLL_DATA",
    data=("mnist",),
)
