"""HybridFL, HierFAVG and FedAvg in the thesis's model of time and energy, NumPy alone and without training.

Written from the equations and independent of Atoll's clock, fleets and pacing, so that it can judge them: a round is a
draw of clients, a draw of drop-outs and a comparison of times. Our readings where the text is unclear:

* the logarithm of (4.40) has base 2, a MB has 8e6 bits, MHz times bit/s/Hz gives Mbit/s (these give the tables' limits
  to the digit);
* draws of speed and bandwidth are cut at ``mu - 3 sigma``, the straggler that defines the time limit;
* a HybridFL round whose quota is not met lasts until the limit, as section 4.5.2 says and (4.38) does not;
* FedAvg and HierFAVG select ``ceil(C N)`` of all clients (for HierFAVG, ``ceil(C N_r)`` in each region gives longer
  rounds and more energy than the tables have at C = 0.1), HybridFL ``ceil(C_r N_r)`` in each region;
* HierFAVG pays for the transfer between cloud and edges once in ``kappa_2 = 10`` rounds;
* a client that drops out has used half of the energy of its round; a late client has used all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import ConfigError
from atoll.learn.pacing.slack import LateCount, SlackEstimator

from .paper import AEROFOIL, HybridSetting

__all__ = [
    "HybridDevices",
    "HybridRounds",
    "METHODS",
    "TOY",
    "ToyTrace",
    "backhaul_seconds",
    "draw",
    "energy",
    "limit",
    "simulate",
    "trace",
    "transfer_seconds",
    "work_seconds",
]


# ------------------------------------------------------------------ the model of time and energy

Floats = NDArray[np.float64]
METHODS = ("FedAvg", "HierFAVG", "HybridFL")
_RADIO_WATTS, _BASE_WATTS, _HALF = 0.5, 0.7, 0.5


def transfer_seconds(setting: HybridSetting, bandwidth: ArrayLike) -> Floats:
    """(4.40): ``3 msize / (bw log2(1 + SNR))``: down, and up at half the rate; bandwidth in MHz."""
    return np.asarray(3 * setting.model_bits / (np.asarray(bandwidth) * 1e6 * np.log2(1 + setting.snr)))


def work_seconds(setting: HybridSetting, samples: ArrayLike, speed: ArrayLike) -> Floats:
    """(4.41): ``|D| tau BPS CPB / s``; speed in GHz."""
    return np.asarray(np.asarray(samples) * setting.epochs * setting.bits * setting.cycles / (np.asarray(speed) * 1e9))


def backhaul_seconds(setting: HybridSetting) -> float:
    """(4.39): ``3 msize M / BR``."""
    return 3 * setting.model_bits * setting.regions / (setting.backhaul * 1e6)


def limit(setting: HybridSetting) -> float:
    """``T_lim``: the response of a client at ``mu - 3 sigma`` in speed and bandwidth with a mean partition."""
    speed, bandwidth = (mean - 3 * spread for mean, spread in (setting.speed, setting.bandwidth))
    return float(transfer_seconds(setting, bandwidth) + work_seconds(setting, setting.samples[0], speed))


def energy(setting: HybridSetting, samples: ArrayLike, speed: ArrayLike, bandwidth: ArrayLike) -> Floats:
    """(4.42): ``P_trans T_comm + P_base s^3 T_train`` in joules, s in GHz; 0.5 W and 0.7 W."""
    work = work_seconds(setting, samples, speed)
    return _RADIO_WATTS * transfer_seconds(setting, bandwidth) + _BASE_WATTS * np.asarray(speed) ** 3 * work


@dataclass(frozen=True)
class HybridDevices:
    """A draw of the clients, all arrays ``(N,)``: region, examples, GHz, MHz and drop-out probability."""

    region: NDArray[np.int64]
    samples: Floats
    speed: Floats
    bandwidth: Floats
    drop: Floats

    def seconds(self, setting: HybridSetting) -> Floats:
        """Response times without failures."""
        return transfer_seconds(setting, self.bandwidth) + work_seconds(setting, self.samples, self.speed)


def draw(
    setting: HybridSetting, drop: float, rng: np.random.Generator, populations: NDArray[np.int64] | None = None
) -> HybridDevices:
    """Draw the clients of a run.

    Args:
        setting: a column of Table 4.2.
        drop: ``E[dr]``.
        rng: of the draw.
        populations: clients of each region; drawn from their normal law and scaled to N by default.
    """
    if populations is None:
        populations = region_sizes(setting, rng)
    n = int(populations.sum())

    def normal(law: tuple[float, float]) -> Floats:
        return np.maximum(rng.normal(*law, n), law[0] - 3 * law[1])

    return HybridDevices(
        region=np.repeat(np.arange(len(populations)), populations),
        samples=np.maximum(1.0, np.rint(normal(setting.samples))),
        speed=normal(setting.speed),
        bandwidth=normal(setting.bandwidth),
        drop=np.clip(rng.normal(drop, setting.drop_spread, n), 0.0, 1.0),
    )


def region_sizes(setting: HybridSetting, rng: np.random.Generator) -> NDArray[np.int64]:
    """Clients of each region: drawn, at least one each, and scaled to N by largest remainders."""
    drawn = np.maximum(rng.normal(*setting.population, setting.regions), 1.0)
    free = setting.clients - setting.regions
    exact = free * drawn / drawn.sum()
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: free - int(sizes.sum())]] += 1
    return np.asarray(sizes + 1)


@dataclass(frozen=True)
class HybridRounds:
    """What happened, one row for each round.

    Attributes:
        length: seconds, ``(rounds,)``.
        full: whether the round closed because its quota was met (FedAvg, HierFAVG: because every client answered).
        selected: clients asked in each region, ``(rounds, M)``.
        survived: of those, the clients that would answer within the limit.
        submitted: of those, the clients whose models were taken.
        theta: slack factors of the round's selection, ``(rounds, M)``; NaN for the baselines.
        joules: spent by each client over all rounds, ``(N,)``.
    """

    length: Floats
    full: NDArray[np.bool_]
    selected: NDArray[np.int64]
    survived: NDArray[np.int64]
    submitted: NDArray[np.int64]
    theta: Floats
    joules: Floats

    def mean_length(self) -> float:
        """Return the mean round length in seconds."""
        return float(self.length.mean())

    def watt_hours(self, rounds: int | None = None) -> float:
        """Return the mean energy of a client over all rounds, or scaled to another number of rounds."""
        scale = 1.0 if rounds is None else rounds / len(self.length)
        return float(self.joules.mean()) / 3600 * scale


def simulate(
    setting: HybridSetting,
    devices: HybridDevices,
    method: str,
    share: float,
    rng: np.random.Generator,
    *,
    rounds: int | None = None,
    estimator: SlackEstimator | None = None,
) -> HybridRounds:
    """Run rounds without training.

    Args:
        setting: a column of Table 4.2.
        devices: from `draw`.
        method: one of `METHODS`.
        share: ``C``.
        rng: draws selections and drop-outs.
        rounds: number of rounds; ``t_max`` by default.
        estimator: HybridFL's; `LateCount` by default.

    Raises:
        ConfigError: an unknown method.
    """
    if method not in METHODS:
        raise ConfigError(f"method={method!r}", where="simulate", remedy=f"use one of {', '.join(METHODS)}")
    run = _Run(setting, devices, method, share, rng, estimator or LateCount())
    rows = [run.round(number) for number in range(1, (rounds or setting.rounds) + 1)]
    length, full, selected, survived, submitted, theta = (np.array(column) for column in zip(*rows, strict=True))
    return HybridRounds(length, full, selected, survived, submitted, theta, run.joules)


class _Run:
    """The state of a run: the edges' models, and the clients' energy."""

    def __init__(
        self,
        setting: HybridSetting,
        devices: HybridDevices,
        method: str,
        share: float,
        rng: np.random.Generator,
        estimator: SlackEstimator,
    ) -> None:
        self.setting, self.devices, self.method, self.share, self.rng = setting, devices, method, share, rng
        self.estimator, self.state = estimator, estimator.init(int(devices.region.max()) + 1)
        self.sizes = np.bincount(devices.region)
        self.members = [np.flatnonzero(devices.region == region) for region in range(len(self.sizes))]
        self.seconds, self.cap = devices.seconds(setting), limit(setting)
        self.cost = energy(setting, devices.samples, devices.speed, devices.bandwidth)
        self.joules = np.zeros(len(devices.region))

    def round(self, number: int) -> tuple[float, bool, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats]:
        asked = self._select()
        alive = asked & (self.rng.random(len(asked)) >= self.devices.drop)
        self.joules += self.cost * (asked * _HALF + alive * (1 - _HALF))
        answers = alive & (self.seconds <= self.cap)
        theta = np.full(len(self.sizes), np.nan)
        if self.method == "HybridFL":
            theta = np.array(self.estimator.theta(self.state))
            end, full = self._close(answers)
            length = end + backhaul_seconds(self.setting)
        else:
            full = bool((answers == asked).all())
            end = float(self.seconds[asked].max()) if full else self.cap
            cloud = self.method == "HierFAVG" and number % self.setting.kappa == 0
            length = end + (backhaul_seconds(self.setting) if cloud else 0.0)
        taken = answers & (self.seconds <= end)
        counts = [np.bincount(self.devices.region[who], minlength=len(self.sizes)) for who in (asked, answers, taken)]
        if self.method == "HybridFL":
            self.state = self.estimator.update(
                self.state, counts[0], counts[2], full, counts[1], wanted=self.share * self.sizes
            )
        return length, full, counts[0], counts[1], counts[2], theta

    def _select(self) -> NDArray[np.bool_]:
        asked = np.zeros(len(self.seconds), dtype=bool)
        if self.method != "HybridFL":
            n = int(np.ceil(self.share * len(asked) - 1e-9))
            asked[self.rng.choice(len(asked), n, replace=False)] = True
            return asked
        for members, n in zip(self.members, self.estimator.counts(self.state, self.share, self.sizes), strict=True):
            asked[self.rng.choice(members, int(n), replace=False)] = True
        return asked

    def _close(self, answers: NDArray[np.bool_]) -> tuple[float, bool]:
        """Return when the cloud has its quota, or gives up."""
        quota = int(np.ceil(self.share * len(answers) - 1e-9))
        times = np.sort(self.seconds[answers])
        return (float(times[quota - 1]), True) if len(times) >= quota else (self.cap, False)


# ------------------------------------------------------------------ the slack factors of Figure 4.4

TOY = replace(AEROFOIL, name="toy", clients=20, regions=2, rounds=100)
"""Section 4.4.2: speeds ``N(0.5, 0.1^2)``; bandwidth and data are as in Task 1, since the text leaves them out."""
_REGIONS, _RELIABLE, _SPREAD, _SHARE = (11, 9), (0.43, 0.57), 0.15, 0.3


@dataclass(frozen=True)
class ToyTrace:
    """A run of the toy, region by region.

    Attributes:
        theta: factors by round, ``(rounds, 2)``.
        truth: mean survival probability of each region's clients, ``(2,)``.
        survivors: ``|X_r| / N_r`` by round.
        asked: ``C_r`` as carried out, by round.
        quality: the surrogate ``q_r = |Psi_r| / (C N_r)``, by round.
        true_quality: ``|Psi_r| / |X_r|``, NaN if no client survived.
    """

    theta: NDArray[np.float64]
    truth: NDArray[np.float64]
    survivors: NDArray[np.float64]
    asked: NDArray[np.float64]
    quality: NDArray[np.float64]
    true_quality: NDArray[np.float64]


def trace(estimator: SlackEstimator, seed: int, rounds: int = 100) -> ToyTrace:
    """Run the toy with an estimator."""
    rng = np.random.default_rng(seed)
    devices = _devices(rng)
    run = simulate(TOY, devices, "HybridFL", _SHARE, rng, rounds=rounds, estimator=estimator)
    sizes = np.array(_REGIONS)
    truth = np.array([1 - devices.drop[devices.region == r].mean() for r in range(2)])
    quality = np.where(run.survived > 0, run.submitted / np.maximum(run.survived, 1), np.nan)
    return ToyTrace(
        run.theta, truth, run.survived / sizes, run.selected / sizes, run.submitted / (_SHARE * sizes), quality
    )


def _devices(rng: np.random.Generator) -> HybridDevices:
    """Clients whose reliability is ``N(mu_r, 0.15^2)``."""
    made = draw(TOY, 0.0, rng, np.array(_REGIONS))
    mean = np.array(_RELIABLE)[made.region]
    return replace(made, drop=1 - np.clip(rng.normal(mean, _SPREAD), 0.0, 1.0))
