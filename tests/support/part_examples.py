"""One or more examples of every part of a training, by slot, and the verdict on a training that is composed of some of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import atoll
from atoll import aggregation, pacing, selection, topology
from atoll import mechanisms as private
from atoll.algorithms import FedAvg, ServerOptimised, Upcycled
from atoll.core.errors import AtollError
from atoll.core.federation.reducer import Plain, TreeReducer
from atoll.data import Dataset, Islands
from atoll.learn import Evaluation, Training
from atoll.learn.catalogue import example, kinds
from atoll.learn.metrics import Confusion
from atoll.privacy import Budget
from atoll.programs.factorisation import SumsOnly
from atoll.reducers import (
    BoundedSum,
    Enclave,
    Encrypted,
    MultiRound,
    OneShot,
    SecureAggregation,
    SecureIndexing,
    TwoServers,
)
from atoll.stages import DGC, QSGD, Clip, CountSketch, ErrorFeedback, RandomK, Shift, Sign, TopK
from tests.support.double_masked import DoubleMasked

CLIENTS = 6


def _bayes() -> Any:
    from sklearn.naive_bayes import GaussianNB

    return GaussianNB()


ALGORITHMS: dict[str, Callable[[], Any]] = {name: (lambda kind=kind: example(kind)) for name, kind in kinds().items()}
PARTS: dict[str, dict[str, Callable[[], Any]]] = {
    "model": {
        "linear": lambda: atoll.models.linear(4, 2),
        "mlp": lambda: atoll.models.mlp(4, 2, hidden=(3,)),
        "bayes": lambda: _bayes(),
    },
    "algorithm": ALGORITHMS,
    "topology": {
        "Star": topology.Star,
        "Hierarchical": topology.Hierarchical,
        "Hierarchical(every=2)": lambda: topology.Hierarchical(every=2),
        "Hierarchical(lockstep)": lambda: topology.Hierarchical(lockstep=True, every=2),
        "Hierarchical(together)": lambda: topology.Hierarchical(lockstep=True, together=True),
        "Hierarchical(groups=1)": lambda: topology.Hierarchical(groups=1),
        "ClusteredGossip": topology.ClusteredGossip,
        "Gossip": topology.Gossip,
        "Gossip(compress)": lambda: topology.Gossip(compress=QSGD(), gamma=0.5),
        "Cooperative": topology.Cooperative,
        "DefKT": topology.DefKT,
        "FedAP": topology.FedAP,
        "RandomWalk": topology.RandomWalk,
        "Cyclic": topology.Cyclic,
        "Swarm": topology.Swarm,
        "ServerBlind": topology.ServerBlind,
        "CFL": topology.CFL,
    },
    "pacing": {
        "Synchronous": pacing.Synchronous,
        "Synchronous(quorum=1.0)": lambda: pacing.Synchronous(quorum=1.0),
        "Synchronous(quorum=4)": lambda: pacing.Synchronous(quorum=4),
        "Synchronous(deadline)": lambda: pacing.Synchronous(deadline=5.0, over_select=1.3, on_failure="skip"),
        "PaceSteering": pacing.PaceSteering,
        "PartialBarrier": pacing.PartialBarrier,
        "FedBuff": lambda: pacing.FedBuff(buffer=2),
        "FedBuff(group=2)": lambda: pacing.FedBuff(buffer=2, group=2),
        "FedAsync": pacing.FedAsync,
        "SAFA": pacing.SAFA,
        "Tiered": lambda: pacing.Tiered(tiers=2),
        "HybridFL": pacing.HybridFL,
    },
    "selection": {
        "Everyone": selection.Everyone,
        "Uniform(3)": lambda: selection.Uniform(3),
        "Uniform(0.5)": lambda: selection.Uniform(0.5),
        "Schedule": lambda: selection.Schedule([[0, 1], [2, 3]]),
        "AFL": lambda: selection.AFL(3),
        "CFCFM": lambda: selection.CFCFM(0.5),
        "DivFL": lambda: selection.DivFL(3),
        "FedCS": lambda: selection.FedCS(3, deadline=5.0),
        "FedProf": lambda: selection.FedProf(3),
        "FedProf(replace)": lambda: selection.FedProf(3, replace=True),
        "FixedSample": lambda: selection.FixedSample(3),
        "Oort": lambda: selection.Oort(3),
        "PoissonSample": lambda: selection.PoissonSample(3),
        "PowerOfChoice": lambda: selection.PowerOfChoice(3, d=4),
        "SizeProportional": lambda: selection.SizeProportional(3),
        "Submodular": lambda: selection.Submodular(3),
        "TiFL": lambda: selection.TiFL(3, tiers=2),
        "WithLabels": lambda: selection.WithLabels(selection.Uniform(3), list(range(4))),
    },
    "aggregation": {
        "Renormalised": aggregation.Renormalised,
        "EqualWeights": aggregation.EqualWeights,
        "InverseProbability": aggregation.InverseProbability,
        "KeepGlobal": aggregation.KeepGlobal,
        "KeepLocal": aggregation.KeepLocal,
        "Rescaled": aggregation.Rescaled,
        "Valued": aggregation.Valued,
    },
    "uplink": {
        "QSGD": lambda: [QSGD()],
        "Clip": lambda: [Clip(1.0)],
        "Sign": lambda: [Sign()],
        "TopK": lambda: [TopK(0.5)],
        "RandomK(shared)": lambda: [RandomK(0.5, shared=True)],
        "CountSketch": lambda: [CountSketch(8, 3)],
        "ErrorFeedback(TopK)": lambda: [ErrorFeedback(TopK(0.5))],
        "DGC": lambda: [DGC(0.5)],
        "Shift(RandomK)": lambda: [Shift(RandomK(0.5))],
    },
    "downlink": {"QSGD": QSGD},
    "reducer": {
        "Plain": Plain,
        "TreeReducer": TreeReducer,
        "SumsOnly": SumsOnly,
        "SecureAggregation": SecureAggregation,
    },
    "evaluation": {
        "server": Evaluation,
        "clients": lambda: Evaluation(clients=-1),
        "personal": lambda: Evaluation(clients=-1, personal=True),
        "Confusion at clients": lambda: Evaluation(clients=-1, metrics=[Confusion(2)]),
        "cross-site": lambda: Evaluation(cross_site=True),
    },
    "privacy": {
        "CentralDP": lambda: private.CentralDP(noise=2.0, clip=1.0, accountant="rdp"),
        "NbAFL": lambda: private.NbAFL(noise=2.0, clip=1.0, accountant="rdp"),
        "CentralDP(adapt)": lambda: private.CentralDP(
            noise=2.0, clip=1.0, accountant="rdp", adapt=private.AdaptiveClip()
        ),
        "ExampleDP": lambda: private.ExampleDP(noise=2.0, clip=1.0, batch=8, accountant="rdp"),
        "GaussianLDP": lambda: private.GaussianLDP(noise=2.0, clip=1.0, accountant="rdp"),
        "FedSelDP": lambda: private.FedSelDP(noise=0.5, limit=0.1),
        "ShuffledDP": lambda: private.ShuffledDP(
            noise=0.5, accountant="rdp", local=private.LaplaceLDP(noise=0.5, clip=1.0), shuffler="server"
        ),
        "DistributedDP": lambda: private.DistributedDP(noise=2.0, clip=1.0, local=True),
        "DistributedDP(remove_excess)": lambda: private.DistributedDP(
            noise=2.0, clip=1.0, least=4, bits=14, remove_excess=True
        ),
        "DPFTRL": lambda: private.DPFTRL(noise=2.0, clip=1.0, accountant="rdp"),
    },
    "budget": {"Budget": lambda: Budget(epsilon=3.0, delta=1e-5)},
    "stop": {"Target": lambda: [atoll.Target("test/accuracy", 0.9)]},
}
"""slot of ``Training`` -> name of an example -> what makes it."""

COMPANIONS: dict[str, dict[str, str]] = {
    "HybridFL": {"topology": "Hierarchical", "selection": "Uniform(3)"},
    "InverseProbability": {"selection": "SizeProportional"},
    "DistributedDP(remove_excess)": {"reducer": "SecureAggregation", "pacing": "Synchronous(quorum=4)"},
    "personal": {"algorithm": "Ditto"},
    "Budget": {"algorithm": "OutputPerturbation"},
    "FedAP": {"model": "mlp"},
    "FedProf": {"model": "mlp"},
    "FedProf(replace)": {"model": "mlp"},
    "ShuffledDP": {"pacing": "Synchronous(quorum=1.0)"},
    "Submodular": {"model": "mlp"},
    "SufficientStatistics": {"model": "bayes"},
}
"""What a part goes with that is refused with the defaults, unless a composition says otherwise."""

_DRAW = np.random.default_rng(0)


def _rows(count: int) -> Dataset:
    return Dataset({"x": _DRAW.normal(size=(count, 4)), "y": np.arange(count) % 2}, task="classification", classes=2)


DATA = Islands.from_datasets([_rows(24) for _ in range(CLIENTS)], test=_rows(9))


def verdict(**parts: Any) -> str | None:
    """Why a training of these parts is refused before anyone is contacted; ``None`` if it is not."""
    try:
        job = Training(**{"model": PARTS["model"]["linear"](), "algorithm": FedAvg(lr=0.1), "rounds": 2, **parts})
        job.program(DATA, job.learner(DATA))
    except AtollError as error:
        return str(error)
    return None


MORE: dict[str, dict[str, Callable[[], Any]]] = {
    "wrapper": {
        "Upcycled": lambda: partial(Upcycled, coefficient=0.3),
        "ServerOptimised": lambda: partial(ServerOptimised, server_lr=0.7),
    },
    "reducer": {
        "DoubleMasked": DoubleMasked,
        "virtual masks": lambda: SecureAggregation(masks="virtual"),
        "MultiRound": lambda: MultiRound(sums=3),
        "OneShot": lambda: OneShot(threshold=3, private=1),
        "Enclave": Enclave,
        "TwoServers": TwoServers,
        "Encrypted": Encrypted,
        "SecureIndexing": lambda: SecureIndexing("shares"),
        "BoundedSum": lambda: BoundedSum(norm=1e4, max_weight=1024.0),
    },
}
"""More of a slot, with less to tell about it on the page of capabilities; a wrapper goes around the algorithm."""
EVERY = {slot: {**PARTS.get(slot, {}), **MORE.get(slot, {})} for slot in (*PARTS, "wrapper")}


def compose(names: Mapping[str, str], algorithm: Any = None) -> dict[str, Any]:
    """The arguments of a training with these parts, by slot; the algorithm may be given with other settings."""
    parts = {slot: EVERY[slot][name]() for slot, name in names.items()}
    if algorithm is not None:
        parts["algorithm"] = algorithm
    wrap = parts.pop("wrapper", None)
    if wrap is not None:
        parts["algorithm"] = wrap(base=parts.get("algorithm") or FedAvg(lr=0.1))
    return parts


# ---------------------------------------------------------------------- which go together

Choice = tuple[str, str]
"""A slot, and the name of an example."""


def pairs() -> Iterator[tuple[Choice, Choice]]:
    """Every pair of parts of two slots, and every part alone (with itself)."""
    every = [(slot, name) for slot, made in EVERY.items() for name in made]
    for one in every:
        yield one, one
    yield from ((one, other) for one, other in combinations(every, 2) if one[0] != other[0])


def verdict_of(*chosen: Choice) -> str | None:
    """The verdict on a training with these parts, their companions, and otherwise the defaults."""
    rows = [row for _, name in chosen for row in COMPANIONS.get(name, {}).items()]
    try:
        return verdict(**compose({**dict(rows), **dict(chosen)}))
    except AtollError as error:  # a wrapper refuses its algorithm before there is a training
        return str(error)


def reason_of(refusal: str) -> str:
    """What a refusal says of any two parts: the capability that one misses at the other, or its words without names and numbers."""
    missing = re.search(r"\(missing: ([^)]*)\)", refusal)
    if missing:
        return f"missing: {missing[1]}"
    words = refusal.partition("Remedy: ")[0].rpartition(" (in ")[0]
    words = re.sub(r"\b_?[A-Z]\w*(\([^)]*\))?", "X", words)
    return re.sub(r"\d+(\.\d+)?", "N", words)


REFUSALS = Path(__file__).with_name("refusals.txt")
"""A reason, and indented below it lines of ``slot names + slot names``: each name of the left with each of the right."""


@cache
def listed_refusals() -> dict[frozenset[Choice], str]:
    """Pair -> reason, as the file has it; a part that is refused alone is a set of one."""
    found, reason = {}, ""
    for line in REFUSALS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("    "):
            reason = line
            continue
        (slot, lefts), (other, rights) = (side.split(" ", 1) for side in line.strip().split(" + "))
        for left in lefts.split(", "):
            for right in rights.split(", "):
                found[frozenset({(slot, left), (other, right)})] = reason
    return found


def write_refusals() -> None:
    """Write the file anew."""
    found: dict[str, dict[tuple[str, str], dict[str, list[str]]]] = {}
    for one, other in pairs():
        refusal = verdict_of(one, other)
        if refusal:
            rows = found.setdefault(reason_of(refusal), {}).setdefault((one[0], other[0]), {})
            rows.setdefault(one[1], []).append(other[1])
    lines = []
    for reason, slots in sorted(found.items()):
        lines.append(reason)
        for (slot, other), rows in slots.items():
            same: dict[str, list[str]] = {}
            for left, rights in rows.items():
                same.setdefault(", ".join([left] if (slot, left) == (other, rights[0]) else rights), []).append(left)
            lines += [f"    {slot} {', '.join(lefts)} + {other} {rights}" for rights, lefts in same.items()]
    REFUSALS.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    write_refusals()
