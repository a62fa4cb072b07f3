"""The rows of the survey's convergence table: the golden gap of every kind of method (`make thorough`: of every row), the contract, and the same result on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import (
    ADIANA,
    CEADMM,
    DANE,
    AndersonADMM,
    DeepGradientCompression,
    FastADMM,
    FedAdagrad,
    FedADMM,
    FedAQ,
    FedCOMGATE,
    FedDyn,
    FedMirror,
    FedNL,
    FedNova,
    FedProx,
    FedYogi,
    LocalAdam,
    LocalMomentum,
    MemSGD,
    MimeLite,
    MimeSVRG,
    QuantisedSGD,
    SketchedSGD,
    SparseTernary,
    Walkman,
)
from atoll.testing import check_algorithm
from atoll_papers.survey.quadratics import families, rows
from atoll_papers.survey.row import SurveyRow

ROWS = rows()
METHODS = list({repr(row.algorithm): row for row in reversed(ROWS)}.values())[::-1]
FIRST = {type(row.algorithm): row for row in reversed(ROWS)}
KINDS = list(FIRST.values())[::-1]
QUICK = {type(row.algorithm) for row in ROWS if row.quick}
# Long ones whose convergence is tested elsewhere, too: learn/test_compressed.py, learn/test_consensus_admm.py.
LONG = (ADIANA, AndersonADMM, DeepGradientCompression, FastADMM, MemSGD, QuantisedSGD, SketchedSGD, SparseTernary)
# Long ones that learn/test_oracles.py follows for three rounds, and another method of the same form that converges here:
# FedAvg with a term more, FedAdam, MFL, FedDualAvg, VRL-SGD, Mime with Adam, QSVRG, L-FedADMM.
FOLLOWED = (
    *(FedAQ, FedProx, FedNova),
    *(FedYogi, FedAdagrad),
    *(LocalAdam, LocalMomentum),
    FedMirror,
    *(FedCOMGATE, FedDyn),
    *(MimeSVRG, MimeLite),
    *(CEADMM, FedADMM, Walkman),
)
# And a row whose method has a harder one here: five steps a round.
FOUND_ELSEWHERE = {"FedAvg T=1"}
# And rows of thousands of rounds: the fits of rates, golden rounds and the method's own file look at the same code.
MANY_ROUNDS = {
    *("two-way signs, Nesterov", "FedPAQ 8 bits T=5", "DIANA, 5 of 20 entries", "FedDualAvg LASSO T=5: non-zeros"),
    *("QSVRG, 8 bits", "gossip on a ring, FedAvg T=1", "gossip on a ring, SCAFFOLD T=5 (gradient tracking)"),
    *("client-edge-cloud, 5 edges, kappa_2=4, FedAvg T=5", "local SVRG T=5", "compact estimate T=5, 3 of 10"),
}


def _name(row: SurveyRow) -> str:
    return row.name.replace(" ", "-")


def _param(row: SurveyRow, always: bool) -> Any:
    return pytest.param(row, id=_name(row), marks=() if always else pytest.mark.slow)


def _first(row: SurveyRow) -> bool:
    """Of a kind that has no quick row, and no other test of its convergence."""
    kind = type(row.algorithm)
    return row is FIRST[kind] and kind not in QUICK and not issubclass(kind, LONG)


def _always(row: SurveyRow) -> bool:
    if type(row.algorithm) in FOLLOWED or row.name in FOUND_ELSEWHERE | MANY_ROUNDS:
        return False
    return row.quick or _first(row)


# `atoll reproduce survey-quadratics` has all of them.
@pytest.mark.every(3)
@pytest.mark.parametrize("row", [_param(row, _always(row)) for row in ROWS])
def test_the_gap_is_the_reference(row: SurveyRow) -> None:
    # Where each number comes from stands in the row (`origin`); by default it is Specification of the survey, section 14.
    value = row.run()
    assert row.holds(value), f"{row.name}: {value:.6g}, stated: {row.stated()}"


@pytest.mark.every(3)  # settings of the same classes
@pytest.mark.parametrize("row", METHODS, ids=_name)
def test_the_contract_holds(row: SurveyRow) -> None:
    check_algorithm(row.algorithm, descends=row.descends)


# Exact solvers make long programs; CEADMM, GIANT and DINGO are solved likewise.
@pytest.mark.quick(
    "FedAdam*",
    "Mime-SGDm*",
    "local-SVRG*",
    "QSVRG*",
    "VRL-SGD*",
    "FedADMM*",
    "SCAFFOLD*",
    "FedDyn*",
    "DGC*",
    "FedNova*",
    "FedComGATE*",
    "FedAQ*",
    "random-walk*",
    "L-FedADMM*",
)
@pytest.mark.parametrize(
    "row", [_param(row, not isinstance(row.algorithm, AndersonADMM | FastADMM | DANE | FedNL)) for row in KINDS]
)
@pytest.mark.quick("FedAdam*", "SCAFFOLD*", "VRL*", "DGC*", "QSVRG*")
@pytest.mark.network
def test_one_by_one_and_in_blocks_are_the_same(row: SurveyRow) -> None:
    torch = pytest.importorskip("torch")
    data = atoll.data.dirichlet(atoll.data.digits(), parties=4, alpha=0.5, seed=1)

    def run(engine: str) -> Any:
        model = lambda: torch.nn.Sequential(torch.nn.Linear(64, 4), torch.nn.Tanh(), torch.nn.Linear(4, 10))  # noqa: E731
        job = atoll.Training(
            model=model, algorithm=row.algorithm, selection=atoll.Everyone(), uplink=row.uplink, rounds=2
        )
        return atoll.simulate(job, data, engine=engine, seed=3).params

    one, many = run("inline"), run("batched")
    for name, leaf in one.items():
        np.testing.assert_allclose(many[name], leaf, rtol=2e-4, atol=2e-5)


def test_names_are_different_and_a_row_states_something() -> None:
    assert families().keys() >= {"first_order"}
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {row.name for row in ROWS} >= MANY_ROUNDS
    assert all(row.reference is not None or row.below is not None or row.diverges for row in ROWS)


def test_a_row_that_is_wrong_does_not_hold() -> None:
    row = next(row for row in ROWS if row.name == "FedAvg T=1")
    assert row.holds(2.69e-4)
    assert not row.holds(2.72e-4)
    assert not SurveyRow(name="x", algorithm=row.algorithm, below=1e-9).holds(1e-8)
    assert not SurveyRow(name="x", algorithm=row.algorithm, reference=2.0, factor=3.0).holds(6.1)
    assert SurveyRow(name="x", algorithm=row.algorithm, diverges=True).holds(float("inf"))
    assert not SurveyRow(name="x", algorithm=row.algorithm, diverges=True).holds(1.0)
