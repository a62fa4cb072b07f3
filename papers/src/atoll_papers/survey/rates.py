"""The rates that the survey claims, each with the run of its fit, and the methods without a claimed rate.

If a rate is an upper bound over a class of problems, the problem is one that attains it (`wide`), or the row says
that the bound is met with a margin.

On strongly convex problems of a few scales gradient methods converge linearly, whatever weaker rate is claimed, and no
order in rounds can be seen. `wide` has curvatures of many scales, log-uniform: then gradient descent closes the gap as
``1/R`` and an accelerated method as ``1/R^2``, from the first rounds to those of the smallest curvature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.algorithms import (
    DIANA,
    FLECS,
    MFL,
    VRLSGD,
    FastADMM,
    FedAC,
    FedAQ,
    FedAvg,
    FedCOMGATE,
    FedNL,
    FedPAQ,
    FedProx,
    FedSSO,
    MimeSVRG,
    QuantisedSGD,
    Scaffold,
    SignSGD,
    TwoWaySGDM,
    Upcycled,
)
from atoll.models.quadratic import Quadratic, minimiser, quadratics
from atoll.programs.consensus import DADMM, DLM, AsyncADMM
from atoll.stages import QSGD, RandomK

from .row import Rate

if TYPE_CHECKING:
    from atoll.data import Islands

__all__ = [
    "NOISE_RATES",
    "RATES",
    "UNCLAIMED",
    "alike",
    "ends",
    "evenness",
    "floor",
    "gaps",
    "order",
    "slope",
    "slopes",
    "wide",
    "with_mean",
]


# ------------------------------------------------------------------ problems that show an order, and slopes fitted to runs

Array = np.ndarray[Any, np.dtype[Any]]


def wide(dim: int = 40, least: float = 1e-5, clients: int = 4, *, apart: bool = True, bent: bool = True) -> Islands:
    """Return diagonal quadratics whose mean has curvatures log-uniform in ``[least, 1]`` and its minimum at ones.

    Args:
        dim: dimensions.
        least: smallest curvature.
        clients: of them.
        apart: minima differ from client to client.
        bent: curvatures differ too, by a factor of about 1.6, so that local steps drift.
    """
    draw, values = np.random.default_rng(0), np.logspace(np.log10(least), 0.0, dim)
    shares = np.exp(0.5 * bent * draw.normal(size=(clients, dim)))
    shares /= shares.mean(axis=0)
    off = float(apart) * draw.normal(size=(clients, dim))
    off -= (shares * off).mean(axis=0)
    return _islands([np.diag(values * share) for share in shares], values * shares * (1.0 + off))


def alike(clients: int, dim: int = 100) -> Islands:
    """Return the same quadratic at every client, with curvatures evenly from 0.1 to 1: the remaining gap is noise."""
    values, target = np.linspace(0.1, 1.0, dim), np.random.default_rng(0).normal(size=dim)
    return _islands([np.diag(values)] * clients, [values * target * np.sqrt(20 / dim)] * clients)


def with_mean(clients: int, dim: int) -> Islands:
    """Return the suite's quadratics, fewer and smaller."""
    made = quadratics(clients, dim)
    shards = [made.shard(k) for k in range(clients)]
    return _islands([np.asarray(s.x) for s in shards], [np.asarray(s.y) for s in shards])


def _islands(matrices: Sequence[Array], targets: Sequence[Array] | Array) -> Islands:
    """Return clients, with their mean as the server's test set: its loss is the objective."""
    from atoll.data import Dataset, Islands

    made = [Dataset({"x": x, "y": y}, task="regression") for x, y in zip(matrices, targets, strict=True)]
    mean = Dataset({"x": np.mean(matrices, axis=0), "y": np.mean(targets, axis=0)}, task="regression")
    return Islands.from_datasets({f"client-{k}": part for k, part in enumerate(made)}, test=mean)


def gaps(algorithm: Any, islands: Islands, rounds: int, noise: float = 0.0) -> Array:
    """Return ``f - f*`` after each round, with all clients in each; ``noise`` as in `Quadratic`."""
    import atoll

    model = Quadratic(len(islands.shard(0)), noise)
    job = atoll.Training(model=model, algorithm=algorithm, selection=atoll.Everyone(), rounds=rounds)
    seen = atoll.simulate(job, islands, engine="inline", seed=0).metrics.column("test/loss")
    return np.asarray(seen, dtype=np.float64) - minimiser(islands)[1]


def slope(x: Sequence[float] | Array, y: Sequence[float] | Array) -> float:
    """Return the slope of the least-squares line through ``(x, log y)``."""
    return float(np.polyfit(np.asarray(x, np.float64), np.log(np.asarray(y, np.float64)), 1)[0])


def order(values: Array, first: int = 10) -> float:
    """Return ``p`` in ``gap ~ R^p``, from round ``first`` on; rounds whose gap is lost in rounding do not count."""
    kept = np.flatnonzero(values > 1e-12 * values[0])
    rounds = kept[kept >= first - 1]
    return slope(np.log(rounds + 1.0), values[rounds])


def evenness(rounds: Sequence[int], values: Sequence[float] | Array) -> float:
    """Return the decrease of the logarithm per round between the last two of three points, over that between the first two: 1 if linear, less if slower."""
    fallen = -np.diff(np.log(np.asarray(values, np.float64))) / np.diff(rounds)
    return float(fallen[1] / fallen[0])


def ends(make: Callable[[int], Any], islands: Islands, settings: Sequence[int], rounds: int) -> float:
    """Return ``p`` in ``gap ~ s^p`` after the same rounds, over settings ``s``, such as local steps."""
    return slope(np.log(settings), [gaps(make(s), islands, rounds)[-1] for s in settings])


def floor(make: Callable[[int], Any], rounds: int, clients: int) -> float:
    """Return the mean gap of the second half of a run with gradient noise of deviation 1."""
    return float(gaps(make(rounds), alike(clients), rounds, noise=1.0)[rounds // 2 :].mean())


def slopes(make: Callable[[float], Any], settings: Sequence[float], islands: Islands, first: int, last: int) -> float:
    """Return ``p`` in ``r ~ s^p`` for the decrease ``r`` of the logarithm of the gap per round, over settings ``s``, such as step sizes."""
    rounds = np.arange(first, last + 1)
    found = [-slope(rounds, gaps(make(s), islands, last)[first - 1 :]) for s in settings]
    return slope(np.log(settings), found)


# ------------------------------------------------------------------ the survey's rates

_T4: dict[str, Any] = {"lr": 1 / 3, "steps": 4, "batch_size": None}
_TABLES = {n: f"survey, Table {n}" for n in (4, 5, 6)}
_PROSE = {n: f"survey, section {n} of our specification" for n in (8, 10)}
_DRIFT = (
    "a constant step: where curvatures differ local steps drift to a biased fixed point, so that the gap has a floor"
)
_WHERE = {
    True: "minima and curvatures differ between clients",
    False: "minima differ between clients, curvatures do not",
}


def _in_rounds(name: str, algorithm: Any, claim: str, table: int = 4, *, bent: bool = True, **more: Any) -> Rate:
    """Return the gap over rounds on `wide`, from round 10 to 150."""
    settings: dict[str, Any] = {"expected": -1.0, "note": f"gap over rounds 10 to 150; {_WHERE[bent]}", **more}
    return Rate(
        name=name,
        methods=(type(algorithm).__name__,),
        claim=claim,
        source=_TABLES[table],
        fit=lambda: order(gaps(algorithm, wide(bent=bent), 150)),
        **settings,
    )


def _in_steps(name: str, kind: Any, *, bent: bool = True) -> Rate:
    """Return the gap after 60 rounds over local steps, 1 to 8."""
    return Rate(
        name=f"{name}, over local steps",
        methods=(kind.__name__,),
        claim="O(1/(RT))",
        source=_TABLES[4],
        fit=lambda: ends(lambda s: kind(lr=1 / 3, steps=s, batch_size=None), wide(bent=bent), (1, 2, 4, 8), 60),
        expected=-1.0,
        note=f"gap after 60 rounds over 1, 2, 4, 8 local steps; {_WHERE[bent]}",
    )


def _linear(name: str, source: str, fit: Any, note: str) -> Rate:
    shown = f"{note}: decrease a round between the last two over that between the first two, 1 where linear"
    kind = name.partition(",")[0]
    return Rate(name=name, methods=(kind,), claim="linear", source=source, fit=fit, expected=1.0, tol=0.15, note=shown)


def _graph(make: Any, rounds: tuple[int, int, int]) -> float:
    import atoll

    data = quadratics(6, 5)
    best = minimiser(data)[0]
    models = [atoll.simulate(make(r).program, data, engine="inline", seed=0).models for r in rounds]
    return evenness(rounds, [float(np.abs(m - best).max()) for m in models])


def _shifts() -> float:
    found = gaps(DIANA(lr=1 / 22, compressor=RandomK(0.5)), with_mean(5, 8), 200)
    return evenness((40, 120, 200), found[[39, 119, 199]])


def _async() -> float:
    import atoll
    from atoll.testing import Timetable

    data, updates = wide(20, 1e-4), (10, 30, 90)
    matrix = np.mean([np.asarray(data.shard(k).x) for k in range(4)], axis=0)
    devices = Timetable({"client-1": 1.3, "client-2": 1.7, "client-3": 2.9})
    jobs = [AsyncADMM(dim=20, rho=0.3, min_arrivals=2, updates=r) for r in updates]
    off = [atoll.simulate(job.program, data, engine="inline", seed=0, devices=devices) - 1.0 for job in jobs]
    return slope(np.log(updates), [0.5 * float(z @ matrix @ z) for z in off])


def _fast() -> float:
    return order(gaps(FastADMM(rho=1.0, newton=1, iterations=20), wide(20, 1e-4, 2), 60))


def _signs() -> float:
    counts, data = (25, 100, 400), wide(20, 1.0, 2, apart=False, bent=False)
    found = [float(np.sqrt(2 * gaps(SignSGD(lr=0.5 / np.sqrt(r)), data, r)).mean()) for r in counts]
    return slope(np.log(counts), found)


def _two_way() -> float:
    data = wide(bent=False)
    both = (TwoWaySGDM(lr=0.1, momentum=0.5), MFL(lr=0.1, gamma=0.5, steps=1, batch_size=None))
    compressed, plain = (order(gaps(algorithm, data, 150)) for algorithm in both)
    return compressed - plain


def _newton(algorithm: Any) -> float:
    return order(gaps(algorithm, with_mean(5, 8), 12), first=2)


_NEWTON: dict[str, Any] = {
    "claim": "sub-linear",
    "source": _TABLES[5],
    "expected": -1.0,
    "bound": True,
    "note": "gap over rounds from 2 until it is lost in rounding, on five quadratics in 8 dimensions; no order is given, 1/R is taken",
}

RATES: tuple[Rate, ...] = (
    _in_rounds("FedAvg", FedAvg(**_T4), "O(1/(RT))", bent=False),
    _in_steps("FedAvg", FedAvg, bent=False),
    _in_rounds("FedAvg where curvatures differ", FedAvg(**_T4), "O(1/(RT))", but=_DRIFT),
    _in_rounds("SCAFFOLD", Scaffold(**_T4), "O(1/(RT))"),
    _in_steps("SCAFFOLD", Scaffold),
    _in_rounds("MimeSVRG", MimeSVRG(**_T4), "O(1/(RT))"),
    _in_steps("MimeSVRG", MimeSVRG),
    _in_rounds("VRL-SGD", VRLSGD(**_T4), "O(1/R)"),
    _in_rounds("MFL", MFL(gamma=0.5, **_T4), "O(1/R)", bent=False),
    _in_rounds("MFL where curvatures differ", MFL(gamma=0.5, **_T4), "O(1/R)", but=_DRIFT),
    _in_rounds("FedProx", FedProx(mu=0.1, **_T4), "O(1/R)", bent=False),
    _in_rounds("FedProx where curvatures differ", FedProx(mu=0.1, **_T4), "O(1/R)", but=_DRIFT),
    _in_rounds(
        "QSGD, 4 levels", QuantisedSGD(lr=1 / 3, compressor=QSGD(4)), "O(1/R)", bent=False,
        note=f"gap over rounds 10 to 150; {_WHERE[False]}: further on it stalls, as direct compression above",
    ),
    _in_rounds("DIANA, 4 levels", DIANA(lr=1 / 3, compressor=QSGD(4)), "O(1/R)"),
    _linear("DIANA, half of the entries", _TABLES[4], _shifts, "gap at rounds 40, 120, 200, five quadratics in 8 dimensions"),
    Rate(
        name="FedNL, rank 1", methods=("FedNL",), fit=lambda: _newton(FedNL(mu=0.1, begin="zero", option=2)),
        **{**_NEWTON, "note": f"{_NEWTON['note']}; ours steps with E and l after the round's correction, Algorithm 1 prints those from before it"},
    ),
    Rate(name="FLECS-CGD", methods=("FLECS",), fit=lambda: _newton(FLECS(mu=0.1, curvature=10.0)), **_NEWTON),
    _in_rounds("FedSSO", FedSSO(lr=1 / 3, steps=1, batch_size=None), "O(1/R)", 5, bound=True),
    Rate(
        name="fast ADMM", methods=("FastADMM",), claim="O(1/R^2)", source=_TABLES[6], fit=_fast, expected=-2.0, tol=0.2,
        note=f"gap over rounds 10 to 60; {_WHERE[True]}; plain consensus ADMM has -1.03 there",
    ),
    Rate(
        name="AsyncADMM, barrier of 2 of 4", methods=("AsyncADMM",), claim="O(1/R)", source=_TABLES[6], fit=_async, expected=-1.0, tol=0.15,
        bound=True, note=f"gap after 10, 30 and 90 updates, devices of four speeds; {_WHERE[True]}",
    ),
    _linear("DADMM", _PROSE[10], lambda: _graph(lambda r: DADMM(dim=5, c=0.3, rounds=r), (40, 80, 120)), "error at rounds 40, 80, 120 on a ring of 6"),
    _linear("DLM", _PROSE[10], lambda: _graph(lambda r: DLM(dim=5, c=0.3, rho=10.0, rounds=r), (60, 160, 260)), "error at rounds 60, 160, 260 on a ring of 6"),
    Rate(
        name="SIGNSGD", methods=("SignSGD",), claim="as SGD, O(1/sqrt R)", source=_PROSE[8], fit=_signs, expected=-0.5,
        note="mean norm of the gradient in runs of 25, 100 and 400 rounds with steps 0.5 / sqrt R; clients alike",
    ),
    Rate(
        name="two-way signs", methods=("TwoWaySGDM",), claim="as momentum SGD in full precision", source=_PROSE[8], fit=_two_way, expected=0.0,
        note=f"its exponent less that of MFL with one step, rounds 10 to 150; {_WHERE[False]}",
    ),
)  # fmt: skip
"""A row a claim."""

UNCLAIMED: dict[str, tuple[str, ...]] = {
    "the survey's Table 6 says N/A": ("CEADMM",),
    "the survey proves nothing of its own algorithms": ("LFedADMM", "MultiTaskADMM", "MatrixFactorisation"),
    "a wrapper: the rate is that of what it wraps": (
        "Accelerated", "DPSGD", "FirstOrderResidual", "IFCA", "ObjectivePerturbation", "OutputPerturbation", "ServerOptimised",
    ),
    "the rate of FLECS-CGD, whose form for sampled cohorts it is": ("FLECSPP",),
    "one exact round": ("SufficientStatistics",),
    "younger than the survey": ("FedSAM",),
    "named or used as a baseline, without a rate": (
        "ADIANA", "AndersonADMM", "CompactEstimate", "DANE", "DINGO", "DeepGradientCompression", "Ditto", "FedADMM", "FedAdagrad", "FedAdam", "FedAvgM",
        "FedDualAvg", "FedDyn", "FedMirror", "FedNova", "FedSGD", "FedYogi", "GIANT", "LocalAdaGrad", "LocalAdam", "LocalMomentum", "LocalRMSProp",
        "LocalSAGA", "LocalSVRG", "MemSGD", "Mime", "MimeLite", "Mocha", "PFedMe", "QSVRG", "Signum", "SketchedSGD", "SparseTernary", "Walkman",
    ),
}  # fmt: skip
"""Why there is no row -> names in the catalogue."""


# ------------------------------------------------------------------ the rates of the papers of FedAQ and Upcycled-FL

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

NOISE_RATES: tuple[Rate, ...] = (
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
