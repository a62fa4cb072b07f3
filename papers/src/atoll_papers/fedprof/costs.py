"""Time and energy of a round in chapter 5, and verdicts on the thesis's statements about them.

(5.27) to (5.34) in NumPy alone, without training. No client drops out and there is no deadline. Only selected clients are charged; for CFCFM, those whose updates were
picked. The model's sizes are chapter 4's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import ConfigError
from atoll.reproduce import Claim

from .tasks import GROUPS, FedProfSetting, Key, table_of

__all__ = [
    "Expected",
    "FedProfDevices",
    "RULES",
    "draw",
    "energy",
    "expected_round",
    "judge_ratios",
    "judge_rounds",
    "profile_energy",
    "profile_seconds",
    "rounds_of",
    "transfer_seconds",
    "upload_seconds",
    "work_seconds",
]


Floats = NDArray[np.float64]
RULES = ("uniform", "sizes", "first")
"""Uniform without replacement; in proportion to the examples, with replacement; CFCFM: the first to arrive that were not picked in the round before."""
_RADIO_WATTS, _BASE_WATTS = 0.5, 0.7


def _rate(setting: FedProfSetting, bandwidth: ArrayLike) -> Floats:
    """Bits a second: ``bw log2(1 + SNR)``, bandwidth in MHz."""
    return np.asarray(np.asarray(bandwidth) * 1e6 * np.log2(1 + setting.snr))


def transfer_seconds(setting: FedProfSetting, bandwidth: ArrayLike) -> Floats:
    """(5.28): ``3 msize / (bw log2(1 + SNR))``."""
    return np.asarray(3 * setting.model_bits / _rate(setting, bandwidth))


def work_seconds(setting: FedProfSetting, samples: ArrayLike, speed: ArrayLike) -> Floats:
    """(5.29): ``M |D| BPS CPB / s``; speed in GHz."""
    return np.asarray(np.asarray(samples) * setting.epochs * setting.bits * setting.cycles / (np.asarray(speed) * 1e9))


def upload_seconds(setting: FedProfSetting, bandwidth: ArrayLike) -> Floats:
    """Second term of (5.30): a profile of ``8 q`` bytes at half the rate."""
    return np.asarray(64 * setting.width / (0.5 * _rate(setting, bandwidth)))


def profile_seconds(setting: FedProfSetting, samples: ArrayLike, speed: ArrayLike, bandwidth: ArrayLike) -> Floats:
    """(5.30): one epoch's time, and the upload."""
    return work_seconds(setting, samples, speed) / setting.epochs + upload_seconds(setting, bandwidth)


def energy(setting: FedProfSetting, samples: ArrayLike, speed: ArrayLike, bandwidth: ArrayLike) -> Floats:
    """(5.31) and (5.32) in joules: 0.5 W for the radio, ``0.7 s^3`` W for work, s in GHz."""
    work = work_seconds(setting, samples, speed)
    return _RADIO_WATTS * transfer_seconds(setting, bandwidth) + _BASE_WATTS * np.asarray(speed) ** 3 * work


def profile_energy(setting: FedProfSetting, samples: ArrayLike, speed: ArrayLike, bandwidth: ArrayLike) -> Floats:
    """(5.33) in joules."""
    work = work_seconds(setting, samples, speed) / setting.epochs
    return _RADIO_WATTS * upload_seconds(setting, bandwidth) + _BASE_WATTS * np.asarray(speed) ** 3 * work


@dataclass(frozen=True)
class FedProfDevices:
    """A draw of the clients, arrays ``(N,)``: examples, GHz and MHz."""

    samples: Floats
    speed: Floats
    bandwidth: Floats


def draw(setting: FedProfSetting, rng: np.random.Generator) -> FedProfDevices:
    """Draw the clients of a run; draws are cut at three standard deviations below the mean."""

    def normal(law: tuple[float, float]) -> Floats:
        return np.maximum(rng.normal(*law, setting.clients), law[0] - 3 * law[1])

    return FedProfDevices(np.rint(normal(setting.samples)), normal(setting.speed), normal(setting.bandwidth))


@dataclass(frozen=True)
class Expected:
    """Means over rounds: seconds, and Wh of all clients together."""

    seconds: float
    watt_hours: float


def expected_round(
    setting: FedProfSetting,
    share: float,
    rng: np.random.Generator,
    *,
    rule: str = "uniform",
    profiles: bool = False,
    draws: int = 200,
    rounds: int = 20,
) -> Expected:
    """Mean time and energy of a round, over draws of the clients and of the selection.

    Args:
        setting: a column of Table 5.2.
        share: ``C``.
        rng: random numbers.
        rule: one of `RULES`.
        profiles: whether clients also make and send profiles.
        draws: of the clients.
        rounds: of each draw.

    Raises:
        ConfigError: an unknown rule.
    """
    if rule not in RULES:
        raise ConfigError(f"rule={rule!r}", where="expected_round", remedy=f"use one of {', '.join(RULES)}")
    wanted, lengths, joules = round(share * setting.clients), [], []
    for _ in range(draws):
        made = draw(setting, rng)
        seconds = transfer_seconds(setting, made.bandwidth) + work_seconds(setting, made.samples, made.speed)
        cost = energy(setting, made.samples, made.speed, made.bandwidth)
        if profiles:
            seconds = seconds + profile_seconds(setting, made.samples, made.speed, made.bandwidth)
            cost = cost + profile_energy(setting, made.samples, made.speed, made.bandwidth)
        picked, order = np.zeros(0, dtype=np.int64), np.argsort(seconds, kind="stable")
        for _ in range(rounds):
            picked = _select(rule, wanted, made.samples, order, picked, rng)
            lengths.append(seconds[picked].max())
            joules.append(cost[picked].sum())
    return Expected(float(np.mean(lengths)), float(np.mean(joules)) / 3600)


def _select(
    rule: str,
    wanted: int,
    samples: Floats,
    order: NDArray[np.int64],
    before: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    if rule == "first":
        fresh = np.ones(len(samples), dtype=bool)
        fresh[before] = False
        return order[fresh[order]][:wanted]
    if rule == "sizes":
        return np.unique(rng.choice(len(samples), wanted, p=samples / samples.sum()))
    return rng.choice(len(samples), wanted, replace=False)


# ------------------------------------------------------------------ verdicts on the rounds' time and energy

_FEW = 0.15
"""Tolerance of a cell's time and energy per round: cells of four to sixteen rounds are few draws, and energy is printed to 0.01 Wh."""
_RULES = {"FedProx": "sizes", "CFCFM": "first"}


def rounds_of(setting: FedProfSetting, seed: int = 0, draws: int = 200) -> dict[tuple[str, float], Expected]:
    """Return the expected time and energy of a round, ``(method, C) ->``; FedProf's with all clients equally likely."""
    methods = dict.fromkeys(method for group in GROUPS.values() for method in group)
    return {
        (method, share): expected_round(
            setting,
            share,
            np.random.default_rng(seed),
            rule=_RULES.get(method, "uniform"),
            profiles=method == "FedProf",
            draws=draws,
        )
        for method in methods
        for share in setting.shares
    }


def judge_rounds(setting: FedProfSetting, rounds: Mapping[tuple[str, float], Expected]) -> list[Claim]:
    """Judge the mean time and energy of a round, cell by cell."""
    claims = []
    for (group, method, share), cell in table_of(setting).items():
        ours = rounds[method, share]
        apart = [ours.seconds / cell.length - 1, ours.watt_hours / (cell.watt_hours / cell.rounds) - 1]
        note = f"expectation over draws of clients; {cell.rounds} rounds in the table; within {_FEW:.0%}".replace(
            "%", " %"
        )
        if method == "FedProx":
            note += "; drawn with replacement, and whoever is drawn twice is charged once"
        claims.append(
            Claim(
                f"{setting.name}, {group}, {method}, C={share:g}: seconds and Wh a round",
                f"{cell.length:.2f} s, {cell.watt_hours / cell.rounds:.4f} Wh",
                f"{ours.seconds:.2f} s, {ours.watt_hours:.4f} Wh",
                max(map(abs, apart)) <= _FEW,
                note,
            )
        )
    return claims


def judge_ratios(setting: FedProfSetting) -> list[Claim]:
    """Judge the text's statements about its own tables."""
    table = table_of(setting)
    first = {group: methods[0] for group, methods in GROUPS.items()}

    def against(of: str, key: Key) -> float:
        mine, base = table[key], table[key[0], first[key[0]], key[2]]
        return float(getattr(mine, of) / getattr(base, of))

    own = [key for key in table if key[1] == "FedProf"]
    cut = 1 - min(against("rounds", key) for key in own)
    speed = 1 / min(against("seconds", key) for key in own)
    saved = [1 - against("watt_hours", key) for key in own]
    gain = max(table[key].best - table[key[0], first[key[0]], key[2]].best for key in own)
    said = {
        "gasturbine": [
            ("rounds to the target fall by up to 77 %", 0.77, cut, 0.005),
            ("4.5 times as fast", 4.5, speed, 0.05),
            ("accuracy gains up to 2.5 points", 0.025, gain, 0.0005),
            ("energy falls by up to 62 % with partial aggregation", 0.62, max(saved[2:]), 0.005),
        ],
        "images": [("accuracy gains up to 2.5 points", 0.025, gain, 0.0005)],
    }[setting.name]
    claims = [
        Claim(
            f"{setting.name}: {text} (section 5.6.2), by its own table",
            paper,
            round(ours, 4),
            abs(ours - paper) <= t,
            basis="derived",
        )
        for text, paper, ours, t in said
    ]
    claims.append(
        Claim(
            f"{setting.name}: energy falls by 29 % to 53 % in all cases (section 5.6.2), by its own table",
            "29 % to 53 %",
            f"{100 * min(saved):.0f} % to {100 * max(saved):.0f} %",
            min(saved) >= 0.285 and max(saved) <= 0.535,
            "against FedAvg or FedAvg-RP",
            basis="derived",
        )
    )
    return claims
