"""The matrix of trainings: algorithm x wrapper x reducer x mechanism x topology x pace x engine, each distinct training run once a process.

Which two parts go together says ``refusals.txt``. Cells are made of parts that go together two by two, so that each of them must train:
`cover` makes few cells with every such pair of values, `every_two` all cells of an algorithm with at most two values beside the defaults.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import atoll
from atoll import algorithms
from atoll.algorithms import FedAvg, FedProx
from atoll.core.algebra import tree as T
from atoll.core.errors import ConfigError
from atoll.core.event import Ledger
from atoll.data import Dataset, Islands
from atoll.learn import Evaluation, Training
from atoll.learn.algorithm import Algorithm
from atoll.learn.catalogue import example, kinds
from atoll.learn.wrapped import Wrapped
from atoll.privacy import LossTally
from atoll.stages import RandomK
from tests.support.part_examples import COMPANIONS, EVERY, PARTS, Choice, compose, listed_refusals

# ---------------------------------------------------------------------- the algorithms, with settings that suit small problems

_LOCAL = {"lr": 0.1, "steps": 5}
_EXACT = {"rho": 2.0, "newton": 1, "iterations": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    # Full batches of the quadratics, and the step that suits their curvature, where the default does not.
    **dict.fromkeys(("CompactEstimate", "MimeSVRG", "Scaffold", "VRLSGD"), _LOCAL),
    "ADIANA": {"mu": 1.7, "smoothness": 4.1, "omega": 0.02, "clients": 3, "compressor": RandomK(1.0)},
    "AndersonADMM": {**_EXACT, "window": 3},
    "CEADMM": {"rho": 2.0, "bound": 4.0},
    "DANE": {"mu": 3.0, "steps": 1, "iterations": 3, "halvings": 1},
    "DPSGD": {"base": FedAvg(lr=0.5, epochs=3), "batch": 6, "clip": 1.0, "noise": 0.01},
    "DIANA": {"lr": 0.2, "compressor": RandomK(2 / 3)},
    "DINGO": {"steps": 3},
    "FastADMM": _EXACT,
    "FedADMM": {"lr": 0.05, "rho": 2.0, "steps": 10},
    "FedAC": {"lr": 0.05, "mu": 0.5},
    "FedAQ": {"lr": 0.05, "mu": 0.5},
    "FedDyn": {"lr": 0.05, "alpha": 2.0, "steps": 10},
    "FedNL": {"begin": "exact", "compressor": "full", "lr": 0.5},
    "FLECS": {"curvature": 10.0},
    "FLECSPP": {"curvature": 10.0},
    "FedSGD": {"lr": 0.2},
    "GIANT": {"steps": 3},
    "IFCA": {"seed": 1},
    "FedAdagrad": {"server_lr": 0.3},
    "LFedADMM": {"rho": 2.0, "lr": 0.05, "steps": 5},
    "LocalAdaGrad": {"lr": 0.5},
    "LocalAdam": {"lr": 0.2},
    "LocalRMSProp": {"lr": 0.1, "steps": 5},
    "LocalSAGA": {"parts": 1},
    "Mime": {**_LOCAL, "lr": 0.05, "beta1": 0.3},
    "PFedMe": {"steps": 5},
    "QSVRG": {"lr": 0.15},
    "SignSGD": {"lr": 0.15},
    "Signum": {"lr": 0.15},
    "TwoWaySGDM": {"lr": 0.05},
    "Walkman": {"rho": 3.0, "lr": 0.05, "steps": 5},
    # As little noise as shows whether it trains.
    "OutputPerturbation": {"sigma": 0.01},
    "ObjectivePerturbation": {"base": FedProx(lr=0.1, mu=2.0), "alpha": 50.0},
}
"""Options other than those of the card's example, by algorithm."""
WHOLE = ("DANE", "DINGO", "FLECS", "FLECSPP", "FedNL", "FedSGD", "GIANT", "LocalSAGA", "SufficientStatistics")
"""They take no mini-batches."""
NO_QUADRATICS = ("DPSGD", "ObjectivePerturbation", "SufficientStatistics")
"""No methods for quadratics."""


def make_exact(name: str) -> Algorithm:
    """The algorithm with full batches, for the quadratics."""
    algorithm, options = example(kinds()[name]), dict(SETTINGS.get(name, {}))
    if name not in NO_QUADRATICS:
        if _wraps_batches(algorithm):
            options["base"] = replace(algorithm.base, batch_size=None, lr=0.05)  # type: ignore[attr-defined]
        else:
            options["batch_size"] = None
    return replace(algorithm, **options)


def make_drawing(name: str) -> Algorithm:
    """The algorithm with mini-batches of four rows, so that it draws, if it can have any, and with the compressor of its paper."""
    algorithm, options = example(kinds()[name]), dict(SETTINGS.get(name, {}))
    if name != "FedNL":  # whose corrections are whole on a model as small as that of the refusals
        options.pop("compressor", None)
    if name not in WHOLE:
        if _wraps_batches(algorithm):
            options["base"] = replace(options.get("base", algorithm.base), batch_size=4, lr=0.05)  # type: ignore[attr-defined]
        else:
            options["batch_size"] = 4
    return replace(algorithm, **options)


SMALL_STEPS: dict[str, dict[str, Any]] = {
    "OutputPerturbation": {"base": FedAvg(lr=0.05), "tau": 1.0, "sigma": 0.01},
    "DANE": {"mu": 0.5},
    "DPSGD": {"base": FedAvg(lr=0.05, epochs=2), "noise": 0.01, "clip": 10.0, "batch": 10},
    "IFCA": {"base": FedAvg(lr=0.05)},
    "Upcycled": {"base": FedAvg(lr=0.05), "coefficient": 0.5},
    "Accelerated": {"base": FedAvg(lr=0.05)},
    "ServerOptimised": {"base": FedAvg(lr=0.05)},
    "FirstOrderResidual": {"base": FedAvg(lr=0.05)},
}
NOISY = ("DPSGD", "OutputPerturbation")
"""Their clients' measures would leave without noise."""
NOT_THREE_CLASSES = ("ObjectivePerturbation", "SufficientStatistics")
"""The one wants a loss of one margin, the other no gradients."""


def make_local(name: str) -> Any:
    """The algorithm with small steps, for the three classes of `learn_toys`."""
    kind = getattr(algorithms, name)
    for options in (
        [SMALL_STEPS[name]] if name in SMALL_STEPS else [{"lr": 0.05, "epochs": 2}, {"lr": 0.05, "steps": 1}, {}]
    ):
        try:
            return kind(**options)
        except (TypeError, ConfigError):
            continue
    raise LookupError(f"say in SMALL_STEPS how to make {name}")


def _wraps_batches(algorithm: Algorithm) -> bool:
    return isinstance(algorithm, Wrapped) and "batch_size" not in {f.name for f in fields(algorithm) if f.init}


# ---------------------------------------------------------------------- the axes

MASKED = [name for name in EVERY["reducer"] if name not in ("Plain", "TreeReducer")]
"""Reducers that reveal sums only."""
AXES: dict[str, dict[str, dict[str, str]]] = {
    "algorithm": {name: {"algorithm": name} for name in kinds()},
    "reducer": {name: {"reducer": name} for name in ("Plain", *MASKED)},
    "mechanism": {"": {}, **{name: {"privacy": name} for name in PARTS["privacy"]}},
    "wrapper": {
        "": {},
        **{name: {"wrapper": name} for name in EVERY["wrapper"]},
        **{name: {"uplink": name} for name in ("QSGD", "ErrorFeedback(TopK)")},
    },
    "topology": {"": {}, **{name: {"topology": name} for name in ("Hierarchical", "Gossip", "Cyclic", "Swarm")}},
    "pace": {
        "": {},
        "deadline, over-selection": {"pacing": "Synchronous(deadline)", "selection": "Uniform(3)"},
        "FedBuff": {"pacing": "FedBuff(group=2)"},
    },
    "engine": {"inline": {}, "batched": {}},
}
"""Axis -> value -> the parts of `part_examples` by slot; the first value is the default."""


class Cell(NamedTuple):
    """One training, by the name of its value on each axis."""

    algorithm: str = "FedAvg"
    reducer: str = "Plain"
    mechanism: str = ""
    wrapper: str = ""
    topology: str = ""
    pace: str = ""
    engine: str = "inline"

    @property
    def parts(self) -> dict[str, str]:
        """Slot -> part, with the companions of parts that need some, where the cell says nothing else."""
        chosen = {
            slot: part for axis, value in zip(AXES, self, strict=True) for slot, part in AXES[axis][value].items()
        }
        company = [row for part in chosen.values() for row in COMPANIONS.get(part, {}).items()]
        return {"selection": "Everyone", **dict(company), **chosen}


def is_accepted(parts: dict[str, str]) -> bool:
    """Whether no part, and no two, are in the list of refusals."""
    listed, choices = listed_refusals(), list(parts.items())
    return not any(frozenset(two) in listed for two in [*combinations(choices, 2), *((one,) for one in choices)])


LATE: dict[tuple[Choice, ...], str] = {
    (
        ("reducer", "DoubleMasked"),
        ("mechanism", "ShuffledDP"),
    ): r"a reply is counted as one of \d behind a server, and this sum",
    (("algorithm", "FedDualAvg"), ("wrapper", "ServerOptimised")): "what FedDualAvg sends does not follow params",
    (("algorithm", "IFCA"), ("wrapper", "ServerOptimised")): "what IFCA sends does not follow params",
}
"""``(axis, value), (axis, value) -> reason``: what is refused when the first round begins, and not when the parts are composed."""


def is_refused_late(cell: Cell) -> bool:
    """Whether two of its values are in `LATE`."""
    return any(set(values) <= set(zip(AXES, cell, strict=True)) for values in LATE)


FREE = ("pace", "engine")
"""Axes that cost nothing: a cell takes the value with most pairs that no cell has yet. On the others it keeps the default."""
MORE = {
    frozenset({"algorithm", "mechanism"}): ("wrapper", "topology", *FREE),
    frozenset({"algorithm", "wrapper"}): ("topology", *FREE),
}
"""Axes of a pair -> axes that are as free in its cells. Those with a reducer share the training that they are compared with, and keep the default."""
SHARE = 16
"""Of the pairs of an algorithm, a reducer and a mechanism, which take most of the time, one in so many is wanted."""


@cache
def wanted_pairs() -> dict[frozenset[Choice], None]:
    """What the cells of `cover` hold: each two values that go together; of algorithms, reducers and mechanisms one in `SHARE`, in diagonals."""
    values = [(axis, value) for axis, named in AXES.items() for value in named]
    place = {(axis, value): list(AXES[axis]).index(value) for axis, value in values}
    found = {}
    for one, other in combinations(values, 2):
        dear = {one[0], other[0]} <= {"algorithm", "reducer", "mechanism"}
        if one[0] == other[0] or (dear and (place[one] + place[other]) % SHARE):
            continue
        if is_accepted(Cell(**dict([one, other])).parts):
            found[frozenset({one, other})] = None
    return found


@cache
def cover() -> dict[str, list[Cell]]:
    """Algorithm -> cells; each of the `wanted_pairs` is in a cell."""
    left = dict(wanted_pairs())
    cells: dict[str, list[Cell]] = {name: [] for name in AXES["algorithm"]}
    while left:
        two = dict(next(iter(left)))
        cell = Cell(**two)
        if "algorithm" not in two:  # whichever has least to do
            able = [name for name in cells if is_accepted(cell._replace(algorithm=name).parts)]
            cell = cell._replace(algorithm=min(able, key=lambda name: len(cells[name])))
        for axis in MORE.get(frozenset(two), FREE):
            others = [cell._replace(**{axis: value}) for value in AXES[axis]]
            able = [other for other in others if is_accepted(other.parts) and not is_refused_late(other)]
            if axis not in two and able:
                cell = max(able, key=lambda other: sum(pair in left for pair in _pairs(other)))
        if (
            two.keys() == {"algorithm", "mechanism"}
            and (_place(cell, "algorithm") // SHARE + _place(cell, "mechanism")) % 4 == 0
            and _trains(cell._replace(engine="batched"))
        ):
            cell = cell._replace(engine="batched")  # whose ledger is compared with that of single clients
        for pair in _pairs(cell):
            left.pop(pair, None)
        cells[cell.algorithm].append(cell)
    return cells


def _place(cell: Cell, axis: str) -> int:
    return list(AXES[axis]).index(getattr(cell, axis))


def _trains(cell: Cell) -> bool:
    return is_accepted(cell.parts)


def _pairs(cell: Cell) -> Iterator[frozenset[Choice]]:
    return map(frozenset, combinations(zip(AXES, cell, strict=True), 2))


def every_two(algorithm: str) -> Iterator[Cell]:
    """All cells of an algorithm with at most two values beside the defaults."""
    others = [(axis, value) for axis, named in list(AXES.items())[1:] for value in list(named)[1:]]
    for count in range(3):
        for some in combinations(others, count):
            cell = Cell(algorithm, **dict(some))
            if len(dict(some)) == count and is_accepted(cell.parts):
                yield cell


# ---------------------------------------------------------------------- its trainings

CLIENTS, ROWS, FEATURES, ROUNDS = 4, 12, 4, 2


@cache
def two_classes(clients: int = CLIENTS, features: int = FEATURES) -> Islands:
    """Clients with twelve rows of two classes each, inside the unit ball; all rows are the test."""
    draw = np.random.default_rng(0)
    parts = []
    for i in range(clients):
        x = draw.normal(size=(ROWS, features))
        y = x[:, :3] @ np.array([1.0, -1.0, 0.5]) + 0.1 * i + 0.1 * draw.normal(size=ROWS)
        x = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
        parts.append(Dataset({"x": x, "y": (y > 0).astype(int)}, task="classification", classes=2))
    columns = {key: np.concatenate([np.asarray(part[key]) for part in parts]) for key in ("x", "y")}
    return Islands.from_datasets(parts, test=Dataset(columns, task="classification", classes=2))


@dataclass(frozen=True)
class Trained:
    """What a cell came to."""

    numbers: np.ndarray
    replied: list[Any]
    ledger: list[Any]
    spent: float
    promised: float


def flatten(run: Any) -> np.ndarray:
    """The trained numbers."""
    leaves = [run.model.theta_, run.model.var_] if hasattr(run.model, "theta_") else T.leaves(run.params)
    return np.concatenate([np.ravel(np.asarray(leaf, dtype=float)) for leaf in leaves])


@cache
def train(cell: Cell) -> Trained:
    """Train it, the first time that it is asked for."""
    parts = {"model": "linear", **cell.parts}
    composed = compose(parts, make_drawing(cell.algorithm))
    job = Training(rounds=ROUNDS, evaluation=Evaluation(server=False), compile="never", **composed)
    islands = two_classes(6 if cell.topology == "Hierarchical" else CLIENTS)  # each of its two edges has a cohort
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        world: dict[str, Any] = {"engine": cell.engine, "seed": 1, "secret_seed": 2, "progress": False}
        if not cell.mechanism:
            run = atoll.simulate(job, islands, **world)
            return Trained(flatten(run), run.metrics.column("replied"), [], 0.0, 0.0)
        run = atoll.simulate(job, islands, folder=folder, **world)
        ledger = Ledger(Path(folder, "checkpoints", "ledger.jsonl"))
        claim = run.prepared.claim
        spent = claim.spent(LossTally(ledger).update())
        return Trained(flatten(run), run.metrics.column("replied"), _entries(ledger), spent, claim.epsilon)


def _entries(ledger: Ledger) -> list[Any]:
    """The ledger, without the marks of sums, which rounding changes."""
    told = []
    for line in ledger:
        if line["kind"] not in ("seeded-secret", "promise"):
            rest = tuple(sorted((k, v) for k, v in line.items() if k not in ("party", "request")))
            told.append((line["party"], line["request"].partition("#")[0], rest))
    return sorted(told, key=repr)
