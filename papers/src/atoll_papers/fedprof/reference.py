"""Time and energy of a round in chapter 5, NumPy alone and without training: (5.27) to (5.34).

No client drops out and there is no deadline. Only selected clients are charged; for CFCFM, those whose updates were
picked. The model's sizes are chapter 4's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import ConfigError

from .setting import FedProfSetting

__all__ = [
    "RULES",
    "Expected",
    "FedProfDevices",
    "draw",
    "energy",
    "expected_round",
    "profile_energy",
    "profile_seconds",
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
