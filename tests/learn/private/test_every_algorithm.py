"""Every algorithm with every mechanism: it trains alone and in blocks with equal ledgers, or is refused with the reason before anyone is contacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError
from atoll.core.event import Ledger
from atoll.learn import Everyone, Training
from atoll.privacy import LossTally
from tests.support.part_examples import ALGORITHMS, CLIENTS, COMPANIONS, DATA, PARTS

ROUNDS = 2
SOME = ("FedAvg", "FedAdam", "Scaffold", "FedProx", "SignSGD", "MimeSVRG", "FedNova", "DIANA")
"""One of every kind; the others run with ``make thorough``."""


def job(algorithm: str, mechanism: str) -> Training:
    given = ALGORITHMS[algorithm]()
    own = {slot: PARTS[slot][name]() for slot, name in COMPANIONS.get(mechanism, {}).items()}
    everyone = {"selection": Everyone()} if given.card.everyone else {}
    model = PARTS["model"][COMPANIONS.get(algorithm, {}).get("model", "linear")]()
    parts: dict[str, Any] = {"model": model, **own, **everyone}
    return Training(algorithm=given, privacy=PARTS["privacy"][mechanism](), rounds=ROUNDS, **parts)


def entries(folder: Path) -> list[tuple[Any, ...]]:
    """The ledger, without the marks of sums, which rounding changes."""
    told = []
    for line in Ledger(folder / "checkpoints" / "ledger.jsonl"):
        if line["kind"] not in ("seeded-secret", "promise"):
            rest = tuple(sorted((k, v) for k, v in line.items() if k not in ("party", "request")))
            told.append((line["party"], line["request"].partition("#")[0], rest))
    return sorted(told, key=repr)


def check(algorithm: str, mechanism: str, folder: Path) -> bool:
    """Return whether the two go together."""
    try:
        made = job(algorithm, mechanism)
        made.program(DATA, made.learner(DATA))
    except AtollError as refused:
        text = str(refused)
        assert "Remedy: " in text
        assert "(in " in text
        return False
    found = {}
    for engine in ("inline", "batched"):
        with np.errstate(all="ignore"):
            world = {"engine": engine, "seed": 1, "secret_seed": 2, "folder": folder / engine, "progress": False}
            result = atoll.simulate(job(algorithm, mechanism), DATA, **world)
        found[engine] = (result, entries(folder / engine))
    (alone, ledger), (blocks, other) = found["inline"], found["batched"]
    assert ledger == other
    assert ledger, "something is released, and the ledger has nothing"
    assert len(alone.metrics) == len(blocks.metrics) == ROUNDS
    claim = alone.prepared.claim
    spent = claim.spent(LossTally(Ledger(folder / "inline" / "checkpoints" / "ledger.jsonl")).update())
    assert 0 < spent <= claim.epsilon * (1 + 1e-9), "the ledger has more than was promised"
    return True


@pytest.mark.every(2)
@pytest.mark.parametrize("algorithm", SOME)
@pytest.mark.parametrize("mechanism", list(PARTS["privacy"]))
def test_it_trains_or_says_why_not(mechanism: str, algorithm: str, tmp_path: Path) -> None:
    check(algorithm, mechanism, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - set(SOME)))
@pytest.mark.parametrize("mechanism", list(PARTS["privacy"]))
def test_every_other_algorithm_trains_or_says_why_not(mechanism: str, algorithm: str, tmp_path: Path) -> None:
    check(algorithm, mechanism, tmp_path)


def test_most_algorithms_go_with_a_mechanism_at_the_server(tmp_path: Path) -> None:
    """Or the table would show nothing."""
    assert [name for name in SOME if not check(name, "CentralDP", tmp_path / name)] == ["SignSGD", "FedNova", "DIANA"]
    assert CLIENTS > 1
