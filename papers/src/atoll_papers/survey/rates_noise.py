"""The rates of the papers of FedAQ and Upcycled-FL: under gradient noise, over clients, over the step size, and of the server's own rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atoll.learn.algorithms import FedAC, FedAQ, FedCOMGATE, FedPAQ, FedProx, Upcycled
from atoll.stages import QSGD

from .fit import floor, gaps, order, slope, slopes, wide
from .rate import Rate

__all__ = ["RATES"]

_TABLE, _THEOREMS = "FedAQ, Table 13", "FedAQ, Theorems 6 and 16"
_ROUNDS, _CLIENTS = (32, 64, 128), (1, 8)


def _of(kind: Any, *, accelerated: bool = False, **more: Any) -> Callable[[int], Any]:
    """Return a method by the number of its rounds: 4 local steps, with the step of the theory, ``~ log R / R``, accelerated ``~ (log R / R)^2``."""

    def make(rounds: int) -> Any:
        share = float(np.log(rounds) / rounds)
        return kind(lr=10 * share**2 if accelerated else 5 * share, steps=4, batch_size=None, **more)

    return make


def _over_rounds(name: str, kind: str, claim: str, make: Callable[[int], Any], **more: Any) -> Rate:
    return Rate(
        name=f"{name}, under noise",
        methods=(kind,),
        claim=claim,
        source=_TABLE,
        fit=lambda: slope(np.log(_ROUNDS), [float(floor(make, r, 2) / np.log(r)) for r in _ROUNDS]),
        expected=-1.0,
        tol=0.15,
        note="gap over log R, in runs of 32, 64 and 128 rounds with the theory's step, 2 clients that are alike; the other term vanishes on quadratics",
        **more,
    )


def _over_clients(name: str, kind: str, claim: str, make: Callable[[int], Any]) -> Rate:
    return Rate(
        name=f"{name}, over clients",
        methods=(kind,),
        claim=claim,
        source=_TABLE,
        fit=lambda: slope(np.log(_CLIENTS), [floor(make, 32, m) for m in _CLIENTS]),
        expected=-1.0,
        tol=0.15,
        note="gap in runs of 32 rounds with 1 and 8 clients that are alike",
    )


def _over_steps(name: str, kind: Any, **more: Any) -> Rate:
    """Return the rate of a method whose decrease per round follows the root of ``eta``, where plain descent follows ``eta`` itself."""
    make = lambda lr: kind(lr=lr, steps=4, mu=0.05, batch_size=None, **more)  # noqa: E731
    return Rate(
        name=f"{name}, over eta",
        methods=(kind.__name__,),
        claim="exp(-c sqrt(eta mu tau) R)",
        source=_THEOREMS,
        fit=lambda: slopes(make, (0.01, 0.04), wide(12, 0.05, 2, apart=False, bent=False), 40, 120),
        expected=0.5,
        note="decrease of log gap a round, for eta = 0.01 and 0.04; clients alike, no noise",
    )


def _upcycled() -> float:
    base = FedProx(lr=1 / 3, steps=4, mu=0.5, batch_size=None)
    return order(gaps(Upcycled(base=base, mu=0.5, lambda_=0.5, schedule="sqrt"), wide(bent=False), 150))


_PAQ = _of(FedPAQ, compressor=QSGD(16))
_GATE = _of(FedCOMGATE, compressor=QSGD(32767))
_AC = _of(FedAC, accelerated=True, mu=0.1)
_AQ_I = _of(FedAQ, accelerated=True, mu=0.1, compressor=QSGD(16))
_AQ_II = _of(FedAQ, accelerated=True, mu=0.1, variant="II", compressor=QSGD(16))
_GATE_RATE, _AC_RATE, _AQ_RATE = "~O((1+q)/(MT) + 1/(TR))", "~O(1/(MT) + 1/(TR^3))", "~O((1+q)/(MT) + ..)"

RATES: tuple[Rate, ...] = (
    _over_rounds("FedPAQ, 16 levels", "FedPAQ", "O((1+q)/R + T/R^2)", _PAQ),
    _over_rounds("FedCOMGATE, 16 bits", "FedCOMGATE", _GATE_RATE, _GATE),
    _over_rounds(
        "FedCOMGATE, 8 bits", "FedCOMGATE", _GATE_RATE, _of(FedCOMGATE),
        but="clients correct by what they meant to send, as the code of the paper does, so that errors of quantisation stay in the corrections and add up",
    ),
    _over_clients("FedCOMGATE, 16 bits", "FedCOMGATE", _GATE_RATE, _GATE),
    _over_rounds("FedAC-I", "FedAC", _AC_RATE, _AC),
    _over_clients("FedAC-I", "FedAC", _AC_RATE, _AC),
    _over_steps("FedAC-I", FedAC),
    _over_steps("FedAC-II", FedAC, variant="II"),
    _over_rounds("FedAQ-I, 16 levels", "FedAQ", _AQ_RATE, _AQ_I),
    _over_clients("FedAQ-I, 16 levels", "FedAQ", _AQ_RATE, _AQ_I),
    _over_rounds("FedAQ-II, 16 levels", "FedAQ", _AQ_RATE, _AQ_II),
    _over_steps("FedAQ-I, 16 bits", FedAQ, compressor=QSGD(32767)),
    Rate(
        name="Upcycled FedProx, lambda_m ~ sqrt m",
        methods=("Upcycled",),
        claim="O(1/sqrt M)",
        source="Upcycled-FL, Corollary 5.8 with our schedule",
        fit=_upcycled,
        expected=-0.5,
        bound=True,
        note="gap, which bounds the squared gradient, over rounds 10 to 150; minima differ between clients, curvatures do not",
    ),
)  # fmt: skip
"""A row a claim."""
