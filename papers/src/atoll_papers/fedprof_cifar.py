"""FedProf with a part of CIFAR-10: the thesis's statements about the L-Task, tested on colour images.

Source: `atoll_papers.fedprof`; the protocol, which is ours: `atoll_papers.fedprof.colour`. Partial aggregation
only: full aggregation needs some six times as many rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atoll.reproduce import Claim, Entry, Lab, NotKept, TrainedRun
from atoll.runs.model import read_model

from .fedprof.colour import COLOUR, SETTING, target_of, yardstick
from .fedprof.heard import divergences, judge_divergences, judge_participation, taken_part
from .fedprof.lab import FedProfProtocol, cells, runs, seeds_of
from .fedprof.paper import GROUPS
from .fedprof.rivals import judge_better, judge_sooner, not_trained

__all__ = ["ENTRY"]


def _run(lab: Lab, quick: bool) -> list[Claim]:
    protocol = replace(COLOUR, rows=400, clients=20, seeds=1, lengths={"partial": 2}) if quick else COLOUR
    alone = yardstick(lab, protocol)
    if not alone:
        raise NotKept(f"{protocol.task}-lone")
    target, share, groups = target_of(alone), protocol.shares[0], {"partial": GROUPS["partial"]}
    trained = runs(lab, protocol, groups)
    found = cells(protocol.task, trained, target)
    claims = judge_better(SETTING, found) + judge_sooner(SETTING, found, target)
    if ("partial", "FedProf", share) in trained:
        heard = taken_part(protocol, trained["partial", "FedProf", share])
        claims += judge_participation(SETTING, heard, protocol.length("partial"))
        claims += _seen(protocol, trained["partial", "FedProf", share])
    reached = ", ".join(f"{run.best():.3f}" for run in alone)
    rule = f"{protocol.clients} clients, seeds: {seeds_of(trained)}; a lone client with clean images reaches {reached}"
    claims = [replace(claim, note=f"{rule}; {claim.note}") for claim in claims]
    return claims + not_trained(SETTING, trained, groups, share)


def _seen(protocol: FedProfProtocol, trained: Sequence[TrainedRun]) -> list[Claim]:
    """Judge how far clients' profiles are from the server's, with the first model and with the last."""
    first = [divergences(protocol, seed) for seed in range(len(trained))]
    last = [divergences(protocol, seed, read_model(run.folder.model_file)) for seed, run in enumerate(trained)]
    return [
        judge_divergences(first, "the first model", SETTING),
        judge_divergences(last, "the last model", SETTING),
    ]


ENTRY = Entry(
    name="fedprof-cifar",
    title="FedProf with a part of CIFAR-10: accuracy, rounds and participation against four methods",
    source="W. Wu, Efficient Horizontal Federated Learning, section 5.6 (whose L-Task has EMNIST's digits)",
    run=_run,
    needs="the part of CIFAR-10 below ATOLL_DATA",
    data=("cifar10_subset",),
)
