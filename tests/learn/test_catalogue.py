"""The facts about algorithms are measured: known counts come out, and every algorithm can be measured."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.cli import run
from atoll.core.algebra import tree as T
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm
from atoll.learn.catalogue import describe, facts, formula, kinds, programs
from atoll.programs import consensus, factorisation, multitask


def _counts(name: str) -> tuple[str | None, list[tuple[str, str]]]:
    (fact,) = facts((name,))
    return fact.state, [(exchange.down, exchange.up) for exchange in fact.exchanges]


@pytest.mark.parametrize(
    ("name", "state", "floats"),
    [
        # Survey, Table 4 and Specification of the survey, section 7.3 (floats down and up); the 1 is the learning rate, which rides along.
        ("FedAvg", "0", [("d + 1", "d")]),
        ("FedProx", "0", [("d + 1", "d")]),
        ("LocalMomentum", "0", [("d + 1", "d")]),
        ("MFL", "0", [("2 d + 1", "2 d")]),
        ("FedAdam", "0", [("d + 1", "d")]),
        ("Signum", "d", [("d + 1", "d")]),
        ("FedAC", "0", [("2 d + 1", "2 d")]),  # "2d values", Specification of FedAQ, A4
        ("LocalAdam", "2 d + 2", [("d + 1", "d")]),  # two moments, and two numbers that correct their start
    ],
)
def test_counts_are_those_of_the_tables(name: str, state: str, floats: list[tuple[str, str]]) -> None:
    assert _counts(name) == (state, floats)


@pytest.mark.parametrize("name", kinds())
def test_every_algorithm_is_measured_and_says_where_it_is_from(name: str) -> None:
    (fact,) = facts((name,))
    assert fact.state is not None, f"{fact.note}; settings that it needs go into example= of its Card"
    assert fact.exchanges
    assert fact.paper or kinds()[name].card.note


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        # FedAQ, A6: 8 d, 16 d and 8 d; a norm of 32 bits an array and quantised entry of the reply
        ("FedPAQ", ["8 d + 32 G"]),
        ("FedAQ", ["16 d + 64 G"]),
        ("FedAvg", [None]),
        ("SketchedSGD", ["16000", None]),  # 5 rows of 100 counters; then as many values as pass
    ],
)
def test_bits_are_those_that_the_methods_own_stages_declare(name: str, bits: list[str | None]) -> None:
    (fact,) = facts((name,))
    assert [exchange.bits for exchange in fact.exchanges] == bits
    assert [exchange.packed for exchange in fact.exchanges] == [name != "FedAvg"] * len(bits)


def test_a_formula_is_found_or_said_not_to_exist() -> None:
    assert formula([0, 0, 0, 0]) == "0"
    assert formula([d * (d + 1) // 2 + 1 for d in (100, 200, 300, 400)]) == "d^2/2 + d/2 + 1"
    assert formula([3 * d - 2 for d in (100, 200, 300, 400)]) == "3 d - 2"
    assert formula([7, 8, 8, 9]) == "7 of d = 100"


def test_replies_that_must_be_seen_one_by_one_are_not_secure() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Seen(Algorithm):
        def finish(self, local: Any, broadcast: Any, client: Any, work: Any) -> Any:
            return {"update": atoll.Parts(local["params"], examples=work.examples)}, {"kept": local["params"]}

        def fold(self, state: Any, sums: Any, info: Any, phase: str) -> Any:
            return state

    fact = describe(Seen)
    assert (fact.secure, fact.stateless, fact.state) == (False, False, "d")


def test_the_command_lists_them_and_refuses_a_name_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["algorithms", "FedAvg", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["algorithms"]
    assert (row["name"], row["stateless"], row["secure"]) == ("FedAvg", True, True)
    assert run(["algorithms", "FedProx"]) == 0
    assert "Heterogeneous" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"no algorithm 'FedAvgg'\. Did you mean 'FedAvg'"):
        facts(("FedAvgg",))
    assert "FullGradient" not in kinds()


def _party() -> Any:
    """An island of 4 rows and 3 columns, for a task that is called by hand."""
    rows = SimpleNamespace(x=np.ones((4, 3)), y=np.ones(4))
    return SimpleNamespace(name="a", data=rows, state=None)


def _numbers(tree: Any) -> int:
    return sum(np.size(leaf) for leaf in T.leaves(tree) if isinstance(leaf, np.ndarray))


def test_programs_send_and_keep_what_their_cards_say() -> None:
    """With d = 3, n = 4 rows, M = 6 items, D = 2."""
    z, fixed = np.zeros(3), {"rho": 1.0, "loss": "least_squares"}
    items = SimpleNamespace(x=np.arange(4)[:, None], y=np.ones(4))
    asked = {
        "AsyncADMM": (consensus.worker_step, {"z": z, **fixed}),
        "MultiTaskADMM": (multitask.multitask_step, {"z": z, **fixed}),
        "Mocha": (multitask.mocha_step, {"w": z, "curvature": 1.0, "passes": 1}),
        "MatrixFactorisation": (
            factorisation.user_step,
            {"items": np.ones((6, 2)), "rho": 1.0, "weight": 0.1, "clear": False},
        ),
    }
    known = {"d": 3, "n": 4, "M": 6, "D": 2}
    for name, (step, message) in asked.items():
        party = _party()
        party.data = items if name == "MatrixFactorisation" else party.data
        reply = step(party, message)
        numbers = sum(1 for v in message.values() if isinstance(v, int | float) and not isinstance(v, bool))
        found = {
            "down": _numbers(message) + numbers,
            "up": _numbers({key: a.value for key, a in reply.items() if a.staged}),
            "state": _numbers(party.state),
        }
        card = programs()[name].card
        assert found == {way: _worth(getattr(card, way), known) for way in found}, name
    node = _party()
    consensus.meet(node, {"neighbours": ["b", "c"], "dim": 3})
    assert _numbers(node.state) == _worth(consensus.DADMM.card.state, known)


def _worth(text: str, known: dict[str, int]) -> int:
    """The value of ``M D + D^2``."""
    total = 0
    for term in text.split(" + "):
        factors = [part.split("^") for part in term.split()]
        total += math.prod(
            known[base] ** int(power) if base in known else int(base)
            for base, power in ((*f, "1")[:2] for f in factors)
        )
    return total


def test_programs_are_listed_beside_the_algorithms():
    found = {fact.name: fact for fact in facts()}
    assert set(programs()) == {"DADMM", "DLM", "AsyncADMM", "MatrixFactorisation", "Mocha", "MultiTaskADMM"}
    for name in programs():
        assert found[name].program
        assert found[name].paper
        assert all(
            part for exchange in found[name].exchanges for part in (exchange.down, exchange.up, found[name].state)
        )
    assert {name for name in programs() if found[name].secure} == {"MultiTaskADMM", "MatrixFactorisation"}
    assert facts(("DADMM",))[0].everyone
    assert not found["FedAvg"].program
