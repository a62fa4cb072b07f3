"""Adaptation to a domain without labels: what the survey says of FADA, FADE and EfficientFDA, judged on small digits.

The survey ("Federated Learning without Full Labels", 2023) has no experiment of its own. Its sentences are the claims; the numbers are ours.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.reproduce import Claim, Entry, keeping_nothing

if TYPE_CHECKING:
    from atoll.data import Islands

__all__ = [
    "ENTRY",
    "VARIANTS",
    "SealedCost",
    "apart",
    "domains",
    "exchanging",
    "network",
    "scores",
    "sealed_costs",
    "turbine_scores",
]


# ------------------------------------------------------------------ what the alignment of a batch costs under Paillier encryption

_UNIT, _RANGE = 2.0**-24, 2.0**38
"""Fixed point: a feature as a whole number of this unit, shifted to be positive."""


@dataclass(frozen=True)
class SealedCost:
    """What two parties and a key holder do for the gap between two batches' mean features.

    Attributes:
        seconds: of encryption, addition and decryption.
        bytes: of the ciphertexts that a party sends.
        error: largest error of the gap.
    """

    seconds: float
    bytes: int
    error: float


def sealed_costs(rows: int, features: int, key_bits: int = 2048, seed: int = 0) -> tuple[SealedCost, SealedCost]:
    """Return the costs of the naive way and of EfficientFDA's, with the same keys and the same library.

    Naive: each party encrypts every feature of every row, the server adds up the rows of both batches, the holder decrypts every sum. EfficientFDA: each party adds up
    its batch, packs the sums into plaintexts and encrypts those.

    Args:
        rows: of a batch.
        features: of a row.
        key_bits: of the modulus.
        seed: of the features.
    """
    from atoll.core.requests.island import Secret
    from atoll.secure.encrypted.paillier import Paillier
    from atoll.secure.encrypted.scheme import Digits

    scheme, secret = Paillier(key_bits=key_bits), Secret()
    public, private = scheme.make_keys(secret)
    z = np.random.default_rng(seed).normal(size=(2, rows, features)).clip(-8, 8)
    truth = z[0].mean(0) - z[1].mean(0)
    signed = np.stack([z[0], -z[1]])

    def words(values: np.ndarray) -> np.ndarray:
        return (np.rint(values / _UNIT) + _RANGE).astype(np.uint64)

    def gap(total: np.ndarray, addends: int) -> np.ndarray:
        return (total.astype(np.float64) - addends * _RANGE) * _UNIT / rows

    begun = time.perf_counter()
    single = [Digits(1, 40, 2 * rows)]
    sent = [
        [scheme.encrypt(public, [words(value.reshape(1))], single, secret) for value in z_k.ravel()] for z_k in signed
    ]
    totals = []
    for j in range(features):
        column = [ciphertext for party in sent for ciphertext in party[j::features]]
        totals.append(scheme.decrypt(private, scheme.add(public, column, single), single)[0][0])
    naive = SealedCost(
        time.perf_counter() - begun, sum(c.nbytes for c in sent[0]), _error(gap(np.array(totals), 2 * rows), truth)
    )
    begun = time.perf_counter()
    packed = [Digits(features, 40, 2)]
    whole = [scheme.encrypt(public, [words(z_k.sum(0))], packed, secret) for z_k in signed]
    total = scheme.decrypt(private, scheme.add(public, whole, packed), packed)[0]
    efficient = SealedCost(time.perf_counter() - begun, whole[0].nbytes, _error(gap(total, 2), truth))
    return naive, efficient


def _error(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.abs(found - truth).max())


# ------------------------------------------------------------------ trainings on digits, and on the same with light ground and a pattern

VARIANTS: dict[str, dict[str, Any]] = {
    "sources alone": {"weight": 0.0},
    "local discriminators": {"power": 1, "certain": False},
    "squared": {"power": 2, "certain": False},
    "CDAN": {"power": 1, "certain": True},
    "FADE": {"power": 2, "certain": True},
    "one discriminator": {"power": 1, "certain": False},
    "FADA": {},
}
"""Name -> settings of `FADE`; ``CDAN`` and ``FADE`` have a conditional discriminator, ``one discriminator`` has all rows at one party. ``FADA`` is that method,
whose discriminators see features of 256 rows of each party."""
_CONDITIONAL = ("CDAN", "FADE")


def domains(seed: int) -> tuple[Islands, Islands]:
    """Return two sources and a target of other digits as three parties, and the same rows as one party; both with test rows of the target.

    The target's pixels are ``|ground - x|``, with a ground that falls from .5 to 0 in a direction of the row's own.
    """
    from atoll.data import Dataset, Islands, digits

    whole = digits(test=0.0)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(whole.y))
    x, y = whole.x[order].copy(), whole.y[order]
    held = slice(1400, None)
    turn = rng.uniform(0, 2 * np.pi, len(y))
    down, right = (axis.ravel() / 7.0 - 0.5 for axis in np.indices((8, 8)))
    ground = 0.25 + 0.25 * (np.cos(turn)[:, None] * down + np.sin(turn)[:, None] * right)
    x[800:] = np.abs(ground - x)[800:]
    labelled = np.arange(len(y)) < 800
    rows = Dataset({"x": x, "y": np.where(labelled, y, 0), "labelled": labelled}).take(slice(0, 1400))
    owner = np.repeat([0, 1, 2], [400, 400, 600])
    test = Dataset({"x": x[held], "y": y[held]})
    return (
        Islands.from_owner(rows, owner, 3).with_test(test),
        Islands.from_datasets({"all": rows}).with_test(test),
    )


def exchanging(parties: Islands) -> Islands:
    """Return the sources as clients, and the target as the helper of `FADA`."""
    from atoll.data import Islands

    *sources, target = (parties.shard(i).dataset() for i in range(len(parties)))
    made = Islands.from_datasets({f"source {i}": rows for i, rows in enumerate(sources)})
    return made.with_test(parties.test).with_others({"target": target})


def network(conditional: bool) -> Any:
    """Return a fresh network: 64 hidden units, and a discriminator with 32."""
    from torch import nn

    from atoll.labels import DomainNetwork

    seen = 64 * 10 if conditional else 64
    return DomainNetwork(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU()),
        nn.Linear(64, 10),
        discriminator=nn.Sequential(nn.Linear(seen, 32), nn.ReLU(), nn.Linear(32, 1)),
        conditional=conditional,
    )


def scores(name: str, seeds: int, rounds: int = 30, steps: int = 8) -> list[float]:
    """Return the accuracy at the target's test rows, one a seed."""
    from atoll.labels import FADA, FADE
    from atoll.labels.methods import local_sgd
    from atoll.learn import Evaluation, Training
    from atoll.selection import Everyone
    from atoll.simulation import simulate

    found = []
    for seed in range(seeds):
        parties, one = domains(seed)
        data = {"one discriminator": one, "FADA": exchanging(parties)}.get(name, parties)
        base = local_sgd(lr=0.05, steps=steps, batch_size=144 if data is one else 48)
        weights = {"weight": 0.1, "ramp": rounds // 2, **VARIANTS[name]}
        job = Training(
            model=lambda: network(name in _CONDITIONAL),
            algorithm=FADA(base=base, rows=256) if name == "FADA" else FADE(base=base, **weights),
            selection=Everyone(),
            rounds=rounds,
            evaluation=Evaluation(every=rounds),
            compile="never",
        )
        made = simulate(job, data, engine="inline", seed=seed, progress=False)
        found.append(float(made.history[-1]["test/accuracy"]))
    return found


def apart(rounds: int = 5) -> float:
    """Return the largest difference of a parameter between local discriminators and one discriminator, after rounds of one step on all rows.

    Two parties of equal size, a source and a target; the one party takes half the step, since its loss is the sum of theirs.
    """
    from atoll.algorithms import FedAvg
    from atoll.core.algebra import tree as T
    from atoll.data import Islands
    from atoll.labels import FADE
    from atoll.learn import Training
    from atoll.selection import Everyone
    from atoll.simulation import simulate

    _, one = domains(0)
    rows = one.shard(0).dataset().take(slice(200, 1400))
    pair = Islands.from_owner(rows, np.repeat([0, 1], 600), 2)
    made = []
    for data, lr in ((pair, 0.2), (Islands.from_datasets({"all": rows}), 0.1)):
        method = FADE(base=FedAvg(lr=lr, batch_size=None, steps=1), power=1, certain=False)
        job = Training(
            model=lambda: network(False), algorithm=method, selection=Everyone(), rounds=rounds, compile="never"
        )
        made.append(simulate(job, data, engine="inline", seed=0, progress=False).params)
    return max(float(np.abs(leaf).max()) for leaf in T.leaves(T.sub(*made)))


# ------------------------------------------------------------------ gas turbines whose emissions at the same readings change over the years


def turbine_scores() -> dict[str, float]:
    """Return R^2 of NOx in 2015, on every second hour: of the years before, of the same with inputs aligned, and of the other hours of 2015.

    The model is a regression on standardised readings, their squares and products, with a small ridge. Aligned inputs have the mean and the covariance of 2015's
    (CORAL in closed form: whiten, then colour; Sun, Feng and Saenko 2016).
    """
    from atoll.data import gas_turbine

    rows = gas_turbine(targets=("NOX",), test=0.0)
    x, y, year = rows.x.astype(np.float64), np.asarray(rows.y, np.float64).ravel(), rows["year"]
    old, new = year < 2015, year == 2015
    held, own = np.flatnonzero(new)[::2], np.flatnonzero(new)[1::2]
    mean, spread = x[own].mean(0), np.cov(x[own], rowvar=False)
    aligned = (x[old] - x[old].mean(0)) @ _root(np.cov(x[old], rowvar=False), -0.5) @ _root(spread, 0.5) + mean
    given = {"earlier years": (x[old], y[old]), "aligned": (aligned, y[old]), "same year": (x[own], y[own])}
    return {name: _fitted(*rows_of, x[held], y[held]) for name, rows_of in given.items()}


def _root(matrix: Any, power: float) -> Any:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values.clip(min=1e-9) ** power) @ vectors.T


def _fitted(x: Any, y: Any, at: Any, truth: Any) -> float:
    """Return R^2 at some rows of a ridge regression with squares and products."""
    low, scale = x.mean(0), x.std(0)

    def terms(rows: Any) -> Any:
        z = (rows - low) / scale
        first, second = np.triu_indices(z.shape[1])
        return np.concatenate([np.ones((len(z), 1)), z, z[:, first] * z[:, second]], axis=1)

    design = terms(x)
    weights = np.linalg.solve(design.T @ design + 1e-3 * len(x) * np.eye(design.shape[1]), design.T @ y)
    left = truth - terms(at) @ weights
    return float(1.0 - (left**2).sum() / ((truth - truth.mean()) ** 2).sum())


# ------------------------------------------------------------------ verdicts

_CLOSE = 1e-5
_WITHIN = 0.02


@keeping_nothing("labels-adapt")
def _run(quick: bool) -> list[Claim]:
    seeds, rounds = (2, 12) if quick else (10, 30)
    found = {name: scores(name, seeds, rounds) for name in VARIANTS}
    claims = [_shown(name, got) for name, got in found.items()]
    claims += [_same_optimum(), _as_good(found, "one discriminator"), _as_good(found, "FADA"), _worse(found)]
    claims += [
        _better("squaring the adversarial loss helps", found["squared"], found["local discriminators"]),
        _better("conditioning on classes (CDAN) helps", found["CDAN"], found["local discriminators"]),
        _better("FADE gains over the sources alone", found["FADE"], found["sources alone"]),
    ]
    claims.append(_cheaper(8 if quick else 48, 16 if quick else 64))
    if not quick:
        claims.append(_turbines())
    return claims


def _shown(name: str, got: list[float]) -> Claim:
    spread = f"{mean(got):.3f} ({min(got):.3f} to {max(got):.3f})"
    return Claim.figure(f"{name}: accuracy at the target", spread, f"{len(got)} seeds", part="Accuracy")


def _same_optimum() -> Claim:
    away = apart()
    return Claim(
        "local, averaged discriminators take the steps of one that sees all rows, and so reach its optimum", None, f"{away:.1e}", away < _CLOSE,
        f"largest difference of a parameter after 5 rounds of one step on all rows; below {_CLOSE:g}", part="Claims of the survey",
    )  # fmt: skip


def _as_good(found: dict[str, list[float]], against: str) -> Claim:
    ours, other = mean(found["FADE"]), mean(found[against])
    what = {"FADA": "FADA, which exchanges them"}.get(against, "one discriminator of all features")
    return Claim(
        f"FADE, without sharing features, is as good as {what}", None, f"{ours:.3f}, {other:.3f}",
        ours > other - _WITHIN, f"with several local steps; within {_WITHIN}", part="Claims of the survey",
    )  # fmt: skip


def _worse(found: dict[str, list[float]]) -> Claim:
    return _better(
        "without its tricks, FADE's design costs accuracy", found["one discriminator"], found["local discriminators"]
    )


def _better(claim: str, ours: list[float], other: list[float]) -> Claim:
    from atoll.labels.evaluators.gains import paired_gain

    gain = paired_gain(ours, other)
    low, high = gain.interval or (float("-inf"), float("inf"))
    holds = True if low > 0 else False if high < 0 else None
    shown = f"{gain.mean:+.3f} ({low:+.3f} to {high:+.3f})"
    return Claim(claim, None, shown, holds, "95 % interval of the paired difference; undecided if it contains 0", part="Claims of the survey")  # fmt: skip


def _cheaper(rows: int, features: int) -> Claim:
    naive, packed = sealed_costs(rows, features)
    ratio = naive.seconds / packed.seconds
    exact = max(naive.error, packed.error) < 1e-6
    return Claim(
        "EfficientFDA is 10 to 100 times faster than encrypting every feature", "10 to 100", f"{ratio:.0f} times, {naive.bytes / packed.bytes:.0f} times fewer bytes",
        ratio >= 10 and exact, f"{rows} rows of {features} features, Paillier of 2048 bits; 10 or more, and both gaps exact to 1e-6", part="Claims of the survey",
    )  # fmt: skip


def _turbines() -> Claim:
    got = turbine_scores()
    shown = ", ".join(f"{name} {value:.2f}" for name, value in got.items())
    return Claim(
        "aligned inputs do not mend a change of p(y|x): NOx of gas turbines in 2015", None, shown, got["aligned"] < got["same year"] - 0.5,
        "R^2 on half of 2015; ours, not the survey's: holds if alignment stays .5 below the same year", part="Limits",
    )  # fmt: skip


ENTRY = Entry(
    name="labels-adapt",
    title="Adaptation without labels: local discriminators, FADE's tricks, and the price of encryption",
    source="Federated Learning without Full Labels: A Survey (2023), section 5.1",
    run=_run,
    needs="gas turbines in ATOLL_DATA, for the last statement",
    data=("gas_turbine",),
    quick_data=(),
)
