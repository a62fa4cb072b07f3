"""A table: tune, run, and judge what the paper says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..entry import Claim, Entry, Lab
from .cells import Cell, Protocol, cell, settings, tuned
from .columns import COLUMNS
from .data import KINDS
from .methods import BASES, COEFFICIENT, COEFFICIENTS, Method

__all__ = ["Paper", "SOURCE", "judge_pairs", "synthetic", "table"]

Paper = Mapping[tuple[str, str], tuple[float, float]]
"""``(base, kind) -> (accuracy of the base, accuracy of its Upcycled version)``, in percent."""
_FOLDS = ("FedAvg", "FedAvgM", "FedProx", "pFedMe", "FedYogi")
"""Bases whose server adds a multiple of a direction that the model itself does not enter: a pair of rounds is one with rate ``1 + u``."""
_LEVEL = "at the base's learning rate"


SOURCE = "Yin et al., Federated Learning with Reduced Information Leakage and Computation"
"""The paper."""


@dataclass(frozen=True)
class _Pair:
    base: Cell
    upcycled: Cell

    @property
    def gains(self) -> np.ndarray:
        """Percentage points, seed by seed."""
        return np.asarray(100 * (self.upcycled.values - self.base.values))

    @property
    def error(self) -> float:
        """Standard error of the mean gain."""
        return float(self.gains.std(ddof=1) / len(self.gains) ** 0.5) if len(self.gains) > 1 else 0.0


def table(
    lab: Lab,
    protocol: Protocol,
    paper: Paper,
    kinds: Sequence[str],
    bases: Sequence[str] = tuple(BASES),
    chosen: Mapping[str, tuple[float, float]] | None = None,
) -> list[Claim]:
    """Run a table and judge it.

    Args:
        lab: runs and keeps trainings.
        protocol: how much is run.
        paper: its numbers.
        kinds: populations.
        bases: which of the seven.
        chosen: base -> ``(lr, u)`` instead of tuning.
    """
    pairs: dict[tuple[str, str], _Pair] = {}
    for kind in kinds:
        for base in bases:
            if chosen is not None:
                lr, u = chosen[base]
                methods = [Method(base, "base", lr), Method(base, "upcycled", lr, u)]
            else:
                methods = [tuned(lab, base, way, kind, protocol) for way in ("base", "upcycled")]
            pairs[base, kind] = _Pair(*(cell(lab, method, kind, protocol) for method in methods))
    claims = [_one(key, pair, paper.get(key)) for key, pair in pairs.items()]
    claims += judge_pairs(_gains(pairs), paper)
    level = {key: _at_base_rate(lab, protocol, key[1], pair) for key, pair in pairs.items()}
    claims += [_level(key, pair) for key, pair in level.items()]
    claims += [replace(said, claim=f"{_LEVEL}: {said.claim}") for said in judge_pairs(_gains(level), paper)]
    claims += [_folds(lab, protocol, pairs), _contacts(lab, protocol, pairs)]
    claims += [_larger(lab, protocol, kind, pairs["FedAvg", kind]) for kind in kinds if ("FedAvg", kind) in pairs]
    if ("Scaffold", kinds[0]) in pairs:
        claims.append(_scaffold(lab, protocol, {kind: pairs["Scaffold", kind] for kind in kinds}))
    return claims


def synthetic(number: int, late: float, paper: Paper) -> Entry:
    """The entry of one of the paper's tables on its four synthetic populations.

    Args:
        number: of the table.
        late: share of stragglers.
        paper: its numbers.
    """

    def run(lab: Lab, quick: bool) -> list[Claim]:
        if not quick:
            return table(lab, Protocol(late=late), paper, tuple(KINDS))
        small = Protocol(late=late, rounds=10, seeds=2, epochs=3, rows=100)
        chosen = dict.fromkeys(("FedAvg", "FedProx", "Scaffold", "FedYogi"), (0.03, 0.5))
        return table(lab, small, paper, ("iid", "0.5,0.5"), tuple(chosen), chosen)

    return Entry(
        name=f"upcycled-table{number}",
        title=f"Upcycled-FL on synthetic data, {late:.0%} stragglers: seven bases with and without".replace("%", " %"),
        source=f"{SOURCE}, Table {number}",
        run=run,
    )


def _title(kind: str) -> str:
    return f"our {COLUMNS[kind][0]}, {kind}" if kind in COLUMNS else f"Syn({kind})"


def _gains(pairs: Mapping[tuple[str, str], _Pair]) -> dict[tuple[str, str], tuple[np.ndarray, float]]:
    return {key: (pair.gains, pair.error) for key, pair in pairs.items()}


def _one(key: tuple[str, str], pair: _Pair, paper: tuple[float, float] | None) -> Claim:
    base, kind = key
    mean = float(pair.gains.mean())
    up = pair.upcycled.method
    size = "more" if abs(mean) > 2 * pair.error else "less"
    return Claim(
        f"Upcycled-{base} is better than {base} on {_title(kind)}",
        None if paper is None else f"{paper[0]:.2f} -> {paper[1]:.2f}",
        f"{pair.base} -> {pair.upcycled} ({mean:+.2f} ± {pair.error:.2f})",
        mean > 0,
        f"accuracy in % ± deviation of {len(pair.gains)} seeds; the gain ± its standard error, {size} than two of them away from 0; "
        f"lr={pair.base.method.lr:g} -> lr={up.lr:g}, u={up.u:g}",
    )


def judge_pairs(gains: Mapping[tuple[str, str], tuple[np.ndarray, float]], paper: Paper) -> list[Claim]:
    """The two statements about all cells together.

    Args:
        gains: ``(base, kind) -> (gains of each seed in points, standard error of their mean)``.
        paper: its numbers.
    """
    means = {key: float(found.mean()) for key, (found, _) in gains.items()}
    theirs = [b - a for key, (a, b) in paper.items() if key in gains]
    worse = [key for key, (_, error) in gains.items() if means[key] < -2 * error and means[key] < 0]
    better = sum(mean > 0 for mean in means.values())
    share = 1 - len(worse) / len(means)
    average = float(np.mean(list(means.values())))
    return [
        Claim(
            "the mean gain over all cells is positive",
            round(float(np.mean(theirs)), 2) if theirs else None,
            round(average, 2),
            average > 0,
            f"percentage points; {better} of {len(means)} cells gain here, {sum(g > 0 for g in theirs)} of {len(theirs)} in the paper",
        ),
        Claim(
            "consistent improvements for all settings (section 7)",
            f"{sum(g > 0 for g in theirs)}/{len(theirs)}" if theirs else None,
            f"{better}/{len(means)}",
            better == len(means),
            "holds if every cell gains; the paper's own cells do not all",
        ),
        Claim(
            "at least 80 % of the cells are not worse beyond noise",
            None,
            round(share, 3),
            share >= 0.8,
            "worse beyond noise: by more than two standard errors; "
            + (", ".join(f"{b} on ({k})" for b, k in worse) or "none"),
        ),
    ]


def _folds(lab: Lab, protocol: Protocol, pairs: Mapping[tuple[str, str], _Pair]) -> Claim:
    """The identity with the server learning rate, on the first seed."""
    apart = 0.0
    for (base, kind), pair in pairs.items():
        if base in _FOLDS:
            one = replace(protocol, seeds=1)
            server = cell(lab, replace(pair.upcycled.method, way="server"), kind, one)
            apart = max(apart, abs(float(server.values[0] - pair.upcycled.values[0])))
    return Claim(
        "Upcycled is more than its base with server learning rate 1 + u",
        None,
        apart,
        apart > 1e-3,
        "largest difference in accuracy between T rounds of the base with server learning rate 1 + u and 2 T of Upcycled at the same "
        f"settings, over {', '.join(_FOLDS)}, first seed; by algebra they are the same method, and 0 says so. The paper does not compare",
    )


def _at_base_rate(lab: Lab, protocol: Protocol, kind: str, pair: _Pair, u: float = COEFFICIENT) -> _Pair:
    """Upcycled at the learning rate that was picked for its base, so that the pick of another rate cannot be to blame."""
    return _Pair(pair.base, cell(lab, replace(pair.base.method, way="upcycled", u=u), kind, protocol))


def _level(key: tuple[str, str], pair: _Pair) -> Claim:
    base, kind = key
    mean = float(pair.gains.mean())
    return Claim(
        f"{_LEVEL}: Upcycled-{base} is better than {base} on {_title(kind)}",
        None,
        f"{pair.base} -> {pair.upcycled} ({mean:+.2f} ± {pair.error:.2f})",
        mean > 0,
        f"both at lr={pair.base.method.lr:g}, which was picked for the base; u={pair.upcycled.method.u:g}",
    )


def _larger(lab: Lab, protocol: Protocol, kind: str, pair: _Pair) -> Claim:
    """FedAvg with every coefficient, at its own learning rate."""
    gains = {u: _at_base_rate(lab, protocol, kind, pair, u) for u in COEFFICIENTS}
    best = max(gains, key=lambda u: float(gains[u].gains.mean()))
    return Claim(
        f"Upcycled-FedAvg is better than FedAvg on {_title(kind)} at the learning rate of FedAvg, with one u or another",
        None,
        ", ".join(f"u={u:g}: {pair.gains.mean():+.2f} ± {pair.error:.2f}" for u, pair in gains.items()),
        float(gains[best].gains.mean()) > 2 * gains[best].error,
        f"gain in points ± its standard error at lr={pair.base.method.lr:g}; holds if the better u gains by more than two of them, although it is "
        "picked on the test rows",
    )


def _scaffold(lab: Lab, protocol: Protocol, pairs: Mapping[str, _Pair]) -> Claim:
    """Scaffold moves its control variate along, which a server learning rate does not."""
    gains = []
    for kind, pair in pairs.items():
        server = cell(lab, replace(pair.upcycled.method, way="server"), kind, protocol)
        gains.append(100 * float((pair.upcycled.values - server.values).mean()))
    return Claim(
        "Upcycled-Scaffold, which moves the control variate along, is better than Scaffold with server learning rate 1 + u",
        None,
        round(float(np.mean(gains)), 2),
        float(np.mean(gains)) > 0,
        "mean difference in points; by population "
        + ", ".join(f"({k}) {g:+.2f}" for k, g in zip(pairs, gains, strict=True)),
    )


def _contacts(lab: Lab, protocol: Protocol, pairs: Mapping[tuple[str, str], _Pair]) -> Claim:
    """Contacts and bytes at equal iterations."""
    (_, kind), pair = next(iter(pairs.items()))
    sums = []
    for found in (pair.base, pair.upcycled):
        rows = lab.train(settings(found.method, kind, protocol, tuning=False, seed=0)).rows[: protocol.rounds]
        sums.append([sum(float(row[name]) for row in rows) for name in ("selected", "bytes_up", "bytes_down")])
    shares = np.array(sums[1]) / np.array(sums[0])
    return Claim(
        "at equal iterations half of the contacts and half of the bytes (section 4)",
        0.5,
        [round(float(share), 4) for share in shares],
        bool(np.abs(shares - 0.5).max() < 0.01),
        f"contacts, bytes up and bytes down of Upcycled over those of the base in {protocol.rounds} iterations",
    )
