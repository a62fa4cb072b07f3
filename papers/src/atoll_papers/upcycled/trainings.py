"""The trainings of Upcycled-FL's tables: methods, cells that are tuned and kept, and pairs of a base with its Upcycled version.

The two columns with real data stand in for the paper's FEMNIST and Sent140, which are other data, so that only differences between methods
compare:

* ``"qmnist"``: 50 of the 539 writers of MNIST's training digits, drawn without replacement by a seed, one per client
  (about 112 digits of ten classes); the paper has 50 clients with five of ten lower-case letters and 328 images. Model
  of the paper: 784-196-10 with ReLU (without its dropout, and, unless ``softmax=True``, without the second softmax of
  its code).
* ``"tweets"``: 52 clients with Sentiment140's 20,000 tweets, or a share of them drawn by a seed, in equal parts whose
  mix of the two labels is drawn from ``Dir(1)``; the paper has 52 clients with 621 tweets. A bidirectional LSTM with 32
  hidden units per direction on 25 words, with learned embeddings of 32 numbers for the 2,000 most frequent words of the
  training tweets; the paper has 128 per direction and pretrained embeddings of 300.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.reproduce import Lab, NotKept

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

    from .data import Tested

__all__ = [
    "BASES",
    "COEFFICIENT",
    "COEFFICIENTS",
    "COLUMNS",
    "Chosen",
    "Key",
    "PairedCells",
    "Pairs",
    "SEEDS",
    "UpcycledCell",
    "UpcycledMethod",
    "UpcycledProtocol",
    "algorithm",
    "at_base_rate",
    "cell",
    "chosen_at",
    "decided",
    "divided",
    "encode",
    "islands",
    "model",
    "over_populations",
    "pairs_of",
    "settings",
    "tries",
    "tuned",
    "vocabulary",
]


# ------------------------------------------------------------------ columns with real data: digits by writer and tweets

COLUMNS: dict[str, tuple[str, int]] = {"qmnist": ("FEMNIST", 15), "tweets": ("Sent140", 15)}
"""Our data -> the paper's column, and 30 % of the clients."""
_WORDS = 2000
_LENGTH = 25
_PAD, _UNKNOWN = 0, 1
_WIDTH = 32
_PATTERN = re.compile(r"[a-z']+|[!?:;()]+")


def _words(text: str) -> list[str]:
    return _PATTERN.findall(str(text).lower())


def vocabulary(texts: Iterable[str], size: int = _WORDS) -> dict[str, int]:
    """Return word -> number, from 2 on, for the most frequent words that occur at least twice; on a tie, in alphabetical order.

    Args:
        texts: training texts only.
        size: most words.
    """
    counts = Counter(word for text in texts for word in _words(text))
    known = sorted((word for word, n in counts.items() if n > 1), key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(known[:size], start=2)}


def encode(texts: Sequence[str], known: dict[str, int], length: int = _LENGTH) -> np.ndarray:
    """Return the first words of each text, ``(texts, length)`` int64, after padding; 0 is padding and 1 an unknown word."""
    made = np.full((len(texts), length), _PAD, np.int64)
    for row, text in zip(made, texts, strict=True):
        numbers = [known.get(word, _UNKNOWN) for word in _words(text)[:length]]
        if numbers:
            row[-len(numbers) :] = numbers
    return made


@functools.lru_cache(maxsize=8)
def divided(kind: str, tuning: bool = False, draw: int = 0, rows: int = 0) -> tuple[Islands, Islands]:
    """Return the clients as (training rows, measuring rows): a tenth of each is held out, a fifth of the tweets (the paper's share), and a tenth of the rest while tuning.

    Args:
        kind: one of `COLUMNS`.
        tuning: measure on a tenth of the training rows instead of the test rows, which are left out.
        draw: seed of the draw of writers or tweets, and of the held-out rows.
        rows: most tweets in all; 0 for all.

    Raises:
        DataError: no data folder, or files missing from it.
    """
    whole, texts = _digits(draw) if kind == "qmnist" else _tweets(draw, rows)
    train, test = whole.holdout(0.1 if texts is None else 0.2, seed=draw)
    parts = train.holdout(0.1, seed=draw + 1) if tuning else (train, test)
    if texts is None:
        return parts
    known = vocabulary(texts[i] for i in np.asarray(parts[0].pooled().x)[:, 0])
    numbers = encode(texts, known)
    return _read(parts[0], numbers), _read(parts[1], numbers)


def _digits(draw: int) -> tuple[Islands, None]:
    from atoll.data import natural, qmnist_writers

    every = natural(qmnist_writers(flat=True), "writer")
    chosen = np.sort(np.random.default_rng(draw).choice(len(every), 50, replace=False))
    return every.subset(chosen).with_test(None), None


def _tweets(draw: int, rows: int) -> tuple[Islands, list[str]]:
    """Return the division, whose ``x`` is the number of a tweet, and the tweets."""
    from atoll.data import Dataset, dirichlet, sentiment140

    data = sentiment140(test=0)
    chosen = np.random.default_rng(draw).permutation(len(data))[: rows or None]
    numbered = Dataset(
        {"x": chosen[:, None].astype(np.int64), "y": np.asarray(data.y)[chosen].astype(np.int64)}, task="classification"
    )
    return dirichlet(numbered, parties=52, alpha=1.0, seed=draw, balanced=True), [str(text) for text in data["text"]]


def _read(part: Islands, numbers: np.ndarray) -> Islands:
    from atoll.data import Dataset, Islands

    def read(shard: Any) -> Dataset:
        return Dataset({"x": numbers[np.asarray(shard.x)[:, 0]], "y": np.asarray(shard.y)}, task="classification")

    return Islands.from_datasets({name: read(part.shard(i)) for i, name in enumerate(part.names)})


def islands(kind: str, tuning: bool = False, draw: int = 0, rows: int = 0) -> Islands:
    """Return the clients, with the measuring rows as the server's test set."""
    train, test = divided(kind, tuning, draw, rows)
    return train.with_test(test.pooled())


def model(kind: str, tuning: bool = False, draw: int = 0, rows: int = 0, softmax: bool = False) -> Tested:
    """Return the model of a column, with each client's measuring rows; ``softmax`` as in the paper's code, see `twice`."""
    from .data import Tested, twice

    make = _perceptron if kind == "qmnist" else _recurrent
    return Tested(twice(make) if softmax else make, divided(kind, tuning, draw, rows)[1])


def _perceptron() -> Any:
    from atoll.models import mlp

    return mlp(784, 10, [196])()


def _recurrent() -> Any:
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        """Embeddings, a bidirectional LSTM, and a linear layer on the last state of both directions."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(_WORDS + 2, _WIDTH)
            self.cells = nn.LSTM(_WIDTH, _WIDTH, batch_first=True, bidirectional=True)
            self.last = nn.Linear(2 * _WIDTH, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states, _ = self.cells(self.embed(x))
            ends = torch.cat([states[:, -1, :_WIDTH], states[:, 0, _WIDTH:]], -1)
            return self.last(ends)  # type: ignore[no-any-return]

    return Recurrent()


# ------------------------------------------------------------------ the seven bases, their Upcycled versions and the bases with server learning rate ``1 + u``

Config = dict[str, Any]


@dataclass(frozen=True)
class UpcycledMethod:
    """A method with its settings.

    Attributes:
        base: one of `BASES`.
        way: ``"base"``, ``"upcycled"`` or ``"server"`` (server learning rate ``1 + u``).
        lr: local learning rate.
        u: coefficient of the extrapolation; 0 for a base.
    """

    base: str
    way: str
    lr: float
    u: float = 0.0


def _momentum(base: Config) -> Config:
    return {"name": "Accelerated", "base": base, "transforms": [{"name": "Momentum", "beta": 0.5}]}


def _fedavg(local: Config, step: float) -> Config:
    return _momentum({"name": "FedAvg", **local, "server_lr": step})


def _fedavgm(local: Config, step: float) -> Config:
    return _momentum({"name": "FedAvgM", **local, "momentum": 0.3, "server_lr": step})


def _fedprox(local: Config, step: float) -> Config:
    return _momentum({"name": "FedProx", **local, "mu": 0.1, "server_lr": step})


def _scaffold(local: Config, step: float) -> Config:
    # Option 2 takes local momentum for a larger gradient: option 1 is exact.
    return _momentum({"name": "Scaffold", **local, "option": 1, "by_examples": True, "server_lr": step})


def _feddyn(local: Config, step: float) -> Config:
    del step
    return _momentum({"name": "FedDyn", **local, "alpha": 0.01, "clip": 10.0})


def _pfedme(local: Config, step: float) -> Config:
    return {"name": "PFedMe", **local, "lam": 15.0, "k": 5, "mu": 1e-3, "beta": step}


def _fedyogi(local: Config, step: float) -> Config:
    return _momentum({"name": "FedYogi", **local, "server_lr": 0.1 * step, "tau": 1e-3})


BASES: dict[str, Callable[[Config, float], Config]] = {
    "FedAvg": _fedavg,
    "FedAvgM": _fedavgm,
    "FedProx": _fedprox,
    "Scaffold": _scaffold,
    "FedDyn": _feddyn,
    "pFedMe": _pfedme,
    "FedYogi": _fedyogi,
}
_RATES: dict[str, tuple[float, ...]] = {
    "": (0.003, 0.01, 0.03, 0.1, 0.3),
    "qmnist": (0.03, 0.1, 0.3),
    "tweets": (0.1, 0.3, 1.0),
}
_SMALL_RATES: dict[str, tuple[float, ...]] = {
    "": (0.003, 0.006, 0.012, 0.03, 0.06)
}  # pFedMe: lr * lam may not exceed 1
_SMALL_RATES |= dict.fromkeys(("qmnist", "tweets"), (0.012, 0.03, 0.06))
COEFFICIENT = 0.3
"""``u`` wherever the learning rate is tuned: the default of the authors' code, never tuned here."""
COEFFICIENTS = (0.3, 0.9)
"""``u`` where Upcycled runs at the learning rate of its base."""


def algorithm(method: UpcycledMethod, late: float, epochs: int = 10) -> Config:
    """Return the algorithm of a method with a share of stragglers."""
    local: Config = {"lr": method.lr, "epochs": epochs, "batch_size": 32}
    if late:
        local["stragglers"] = {"probability": late}
    made = BASES[method.base](local, 1.0 + method.u if method.way == "server" else 1.0)
    return {"name": "Upcycled", "base": made, "coefficient": method.u} if method.way == "upcycled" else made


def tries(base: str, way: str, kind: str = "") -> list[UpcycledMethod]:
    """Return the grid: the same learning rates for a base and its Upcycled version.

    Args:
        base: one of `BASES`.
        way: ``"base"`` or ``"upcycled"``.
        kind: the population. Real data has three large rates, because its trainings are few and short.
    """
    rates = _SMALL_RATES if base == "pFedMe" else _RATES
    return [UpcycledMethod(base, way, lr, 0.0 if way == "base" else COEFFICIENT) for lr in rates.get(kind, rates[""])]


# ------------------------------------------------------------------ cells: tuned on validation rows, run with several seeds, kept by the lab

_ROOM = "atoll.reproduce.upcycled"
_MANY = {"qmnist": 10}
_MANY_OF_SMALL = 40
"""Rounds from which native code is worth its translation, which costs as much as ten rounds without it."""
_TUNING_SEEDS = 100
"""The first seed of tuning; tables use 0, 1, ..."""


@dataclass(frozen=True)
class UpcycledProtocol:
    """How much is run.

    Attributes:
        late: share of stragglers.
        rounds: ``T`` of the bases; Upcycled versions have ``2 T``.
        seeds: runs per cell.
        tuning_seeds: runs of each setting while tuning.
        tuning_rounds: ``T`` while tuning; ``None`` for ``rounds``.
        tuning_late: share of stragglers while tuning.
        epochs: local epochs.
        rows: most rows per client (for tweets: in all); 0 for all.
        draw: seed of the data.
    """

    late: float
    rounds: int = 80
    seeds: int = 4
    tuning_seeds: int = 2
    tuning_rounds: int | None = None
    tuning_late: float = 0.9
    epochs: int = 10
    rows: int = 0
    draw: int = 0


@dataclass(frozen=True)
class UpcycledCell:
    """A method on a population.

    Attributes:
        method: with its chosen settings.
        values: accuracy of each seed.
        seconds: of all its runs.
    """

    method: UpcycledMethod
    values: np.ndarray
    seconds: float

    def __str__(self) -> str:
        return f"{100 * self.values.mean():.2f} ± {100 * self.values.std(ddof=1) if len(self.values) > 1 else 0:.2f}"


def _places(kind: str) -> tuple[str, str, str, int]:
    """Return the factories of clients and model, a name for the run, and 30 % of the clients."""
    if kind in COLUMNS:
        return f"{_ROOM}.columns:islands", f"{_ROOM}.columns:model", kind, COLUMNS[kind][1]
    return f"{_ROOM}.data:islands", f"{_ROOM}.model:logistic", f"syn-{kind}", 9


def settings(
    method: UpcycledMethod, kind: str, protocol: UpcycledProtocol, *, tuning: bool, seed: int
) -> dict[str, Any]:
    """Return a run's configuration."""
    late = protocol.tuning_late if tuning else protocol.late
    rounds = protocol.tuning_rounds if tuning and protocol.tuning_rounds else protocol.rounds
    rounds *= 2 if method.way == "upcycled" else 1
    source, model, name, cohort = _places(kind)
    where = {"kind": kind, "tuning": tuning, "draw": protocol.draw, "rows": protocol.rows}
    evaluation: dict[str, Any] = {"every": rounds}
    if method.base == "pFedMe":
        evaluation.update(clients=-1, personal=True)
    return {
        "name": f"{name}-{method.base}-{method.way}".replace(",", "-").lower(),
        "data": {"source": {"name": source, **where}},
        "model": {"name": model, **where},
        "algorithm": algorithm(method, late, protocol.epochs),
        "selection": {"name": "Uniform", "count": cohort},
        **_speed(kind, rounds),
        "rounds": rounds,
        "evaluation": evaluation,
        "checkpoint_every": rounds,
        "seed": seed,
    }


def _speed(kind: str, rounds: int) -> dict[str, str]:
    """Choose native code if rounds repay it; the LSTM has none, and is fastest client by client."""
    if kind == "tweets":
        return {"engine": "inline", "compile": "never"}
    return {"engine": "batched", "compile": "always" if rounds >= _MANY.get(kind, _MANY_OF_SMALL) else "auto"}


def _accuracy(
    lab: Lab, method: UpcycledMethod, kind: str, protocol: UpcycledProtocol, **which: Any
) -> tuple[float, float]:
    """Return the accuracy of the last round, and seconds; 0 if the model became non-finite."""
    from atoll.core.errors import AtollError

    try:
        run = lab.train(settings(method, kind, protocol, **which))
    except AtollError as error:
        if "not finite" in error.what or "rejected" in error.what or "too few" in error.what:
            return 0.0, 0.0
        raise
    return run.last("personal/accuracy" if method.base == "pFedMe" else "test/accuracy"), run.seconds


def tuned(lab: Lab, base: str, way: str, kind: str, protocol: UpcycledProtocol) -> UpcycledMethod:
    """Pick a setting by the same rule for every method: the best mean accuracy on the validation rows at the table's own ``T``; on a tie, the smaller rate."""
    seeds = range(_TUNING_SEEDS, _TUNING_SEEDS + protocol.tuning_seeds)
    found = [
        (method, sum(_accuracy(lab, method, kind, protocol, tuning=True, seed=seed)[0] for seed in seeds))
        for method in tries(base, way, kind)
    ]
    return max(found, key=lambda pair: pair[1])[0]


def cell(lab: Lab, method: UpcycledMethod, kind: str, protocol: UpcycledProtocol) -> UpcycledCell:
    """Return a method's runs on the test rows: all seeds or, if nothing may be trained, the first kept ones.

    Raises:
        NotKept: nothing may be trained, and the first seed was not kept.
    """
    runs: list[tuple[float, float]] = []
    for seed in range(protocol.seeds):
        try:
            runs.append(_accuracy(lab, method, kind, protocol, tuning=False, seed=seed))
        except NotKept:
            if not runs:
                raise
            break
    return UpcycledCell(method, np.array([value for value, _ in runs]), sum(seconds for _, seconds in runs))


# ------------------------------------------------------------------ pairs: a base with its Upcycled version, and the same at the base's rate

SEEDS = 4
"""Seeds from which a standard error says something."""
Key = tuple[str, str]
"""``(base, kind)``."""


@dataclass(frozen=True)
class PairedCells:
    """A base and its Upcycled version on a population, with the seeds that both ran.

    Attributes:
        base: its cell.
        upcycled: its cell.
    """

    base: UpcycledCell
    upcycled: UpcycledCell

    @classmethod
    def of(cls, base: UpcycledCell, upcycled: UpcycledCell) -> PairedCells:
        """Pair two cells, one of which may have been stopped early."""
        n = min(len(base.values), len(upcycled.values))
        return cls(*(replace(found, values=found.values[:n]) for found in (base, upcycled)))

    @property
    def gains(self) -> np.ndarray:
        """Return percentage points, seed by seed."""
        return np.asarray(100 * (self.upcycled.values - self.base.values))

    @property
    def error(self) -> float:
        """Return the standard error of the mean gain; 0 with one seed."""
        return _error(self.gains)

    def __str__(self) -> str:
        return f"{self.base} -> {self.upcycled} ({self.gains.mean():+.2f} ± {self.error:.2f})"


def decided(gains: np.ndarray, error: float) -> bool | None:
    """Tell whether a mean is positive or negative beyond noise, by more than two standard errors of `SEEDS` seeds or more; ``None`` if it is neither."""
    mean = float(gains.mean())
    return mean > 0 if len(gains) >= SEEDS and abs(mean) > 2 * error else None


def over_populations(gains: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
    """Return the mean over populations for each seed that all of them ran, and the standard error of the mean over seeds.

    Populations are those of the table, not draws: their differences are not noise. A seed is one draw of cohorts and
    initial weights for all of them, so its populations are not independent.

    Args:
        gains: of each population, seed by seed.
    """
    n = min(len(some) for some in gains)
    means = np.mean([some[:n] for some in gains], axis=0)
    return means, _error(means)


def _error(gains: np.ndarray) -> float:
    return float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else 0.0


Chosen = Mapping[Key, tuple[UpcycledMethod, UpcycledMethod]]
"""The settings of a base and of its Upcycled version, chosen elsewhere."""
Pairs = Mapping[Key, PairedCells | None]
"""The cells of a table; ``None`` where nothing could be trained and it was not kept."""


def chosen_at(rates: Mapping[Key, tuple[float, float]], u: float = COEFFICIENT) -> Chosen:
    """Return settings with given learning rates, ``(the base's, its Upcycled version's)``, and one coefficient."""
    return {
        (base, kind): (UpcycledMethod(base, "base", own), UpcycledMethod(base, "upcycled", up, u))
        for (base, kind), (own, up) in rates.items()
    }


def pairs_of(
    lab: Lab, protocol: UpcycledProtocol, kinds: Sequence[str], bases: Sequence[str], chosen: Chosen | None = None
) -> dict[Key, PairedCells | None]:
    """Tune and run every cell.

    Args:
        lab: runs and keeps trainings.
        protocol: how much is run.
        kinds: populations.
        bases: some of the seven bases.
        chosen: settings instead of tuning.
    """
    return {(base, kind): _pair(lab, protocol, base, kind, chosen) for kind in kinds for base in bases}


def _pair(lab: Lab, protocol: UpcycledProtocol, base: str, kind: str, chosen: Chosen | None) -> PairedCells | None:
    try:
        if chosen is None:
            own, up = (tuned(lab, base, way, kind, protocol) for way in ("base", "upcycled"))
        else:
            own, up = chosen[base, kind]
        return PairedCells.of(cell(lab, own, kind, protocol), cell(lab, up, kind, protocol))
    except NotKept:
        return None


def at_base_rate(
    lab: Lab, protocol: UpcycledProtocol, kind: str, pair: PairedCells, u: float = COEFFICIENT
) -> PairedCells | None:
    """Run Upcycled at the learning rate picked for its base, so that a different rate cannot explain the result."""
    try:
        return PairedCells.of(pair.base, cell(lab, replace(pair.base.method, way="upcycled", u=u), kind, protocol))
    except NotKept:
        return None
