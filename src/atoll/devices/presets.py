"""Fleets with the constants of published studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, nearest

from .fleet import Fleet
from .rules import Backhaul, BatchRate, Cycles, Power, Shannon, Throughput
from .traces import GeneratedTrace
from .traits import Equal, Exponential, Normal, Trait, probability

__all__ = ["exponential", "mec", "safa"]

Study = TypeVar("Study")

_NOTE = 256
"""Bytes of a message without a model: SAFA's note to continue takes about 65, a linear model of 12 inputs 384."""


def _find_study(task: str, studies: Mapping[str, Study], preset: str) -> Study:
    if task not in studies:
        raise ConfigError(
            f"task={task!r}.{nearest(task, studies)}", where=preset, remedy=f"use one of {', '.join(studies)}"
        )
    return studies[task]


@checked_call
def exponential(
    crash: Trait = 0.0,
    *,
    mean: float = 1.0,
    minimum: float = 0.0,
    rate: float = 175_000.0,
    model_bytes: float | None = None,
    model_over: int = _NOTE,
    seed: int = 0,
) -> Fleet:
    """Devices with exponential speeds, equal in everything else.

    Args:
        crash: probability of a crash in a round.
        mean: mean number of mini-batches per second.
        minimum: slower devices are drawn again.
        rate: bytes per second of each link, both ways.
        model_bytes: fixed size of the model.
        model_over: messages of at most this many bytes contain no model, such as a note to continue.
        seed: seed of speeds and crashes.
    """
    speed = BatchRate(Exponential(mean, minimum))
    trace = GeneratedTrace(crash, seed=seed)
    return Fleet(speed, Throughput(rate), trace, model_bytes=model_bytes, model_over=model_over, seed=seed)


@dataclass(frozen=True)
class _Safa:
    minimum: float
    batch: int
    scale: float


_SAFA = {
    "boston": _Safa(0.05, 5, 1 / 0.7),
    "mnist": _Safa(0.016, 40, 7 / 6),
    "kdd": _Safa(0.012, 100, 1 / 0.7),
}


@checked_call
def safa(
    task: Literal["boston", "mnist", "kdd"] = "mnist",
    crash: Trait = 0.1,
    *,
    compat: bool = False,
    model_over: int = _NOTE,
    seed: int = 0,
) -> Fleet:
    """The devices of SAFA's study (W. Wu, PhD thesis, Warwick 2021, section 3.7; IEEE Trans. Computers 70(5), 2021).

    Speeds are exponential with mean 1 batch per second, links have 1.4 Mbit/s both ways (57.14 s for the 10 MB that every model counts as), the server
    sends at 10 Gbit/s (0.008 s a copy), and a device crashes at a uniform point of its training. The smallest speed of each task (0.05, 0.016, 0.012)
    is from the author's published program.

    Args:
        task: one of the three tasks.
        crash: probability of a crash in a round: the thesis has 0.1, 0.3, 0.5 and 0.7.
        compat: charge training time as that program does: fractional batches, and the device's test rows too.
        model_over: messages of at most this many bytes contain no model, such as a note to continue. The thesis' tables charge a model each way even then: 0.
        seed: seed of speeds and crashes.
    """
    of = _find_study(task, _SAFA, "safa")
    speed = Exponential(1.0, of.minimum)
    compute = BatchRate(speed, of.batch, of.scale) if compat else BatchRate(speed)
    trace = GeneratedTrace(crash, seed=seed)
    link = Throughput(175_000.0)
    return Fleet(compute, link, trace, egress=1.25e9, model_bytes=10e6, model_over=model_over, seed=seed)


@dataclass(frozen=True)
class _Mec:
    hertz: tuple[float, float]
    bandwidth: tuple[float, float]
    bits: float
    cycles: float
    model_bytes: float
    edges: int


_MEC = {
    "aerofoil": _Mec((0.5e9, 0.1e9), (0.5e6, 0.1e6), 384.0, 300.0, 5e6, 3),
    "mnist": _Mec((1e9, 0.3e9), (1e6, 0.3e6), 6272.0, 400.0, 10e6, 10),
    "gas-turbine": _Mec((0.5e9, 0.1e9), (0.5e6, 0.1e6), 704.0, 300.0, 5e6, 1),
    "digits": _Mec((1e9, 0.1e9), (1e6, 0.1e6), 6272.0, 400.0, 10e6, 1),
}


def _straggling(mean: float, std: float) -> Normal:
    """Normal, clipped at the extreme straggler of the thesis, three standard deviations below the mean."""
    return Normal(mean, std, low=mean - 3.0 * std)


@checked_call
def mec(
    task: Literal["aerofoil", "mnist", "gas-turbine", "digits"] = "mnist",
    drop_out: Trait = 0.0,
    *,
    regions: int | Sequence[str] | None = None,
    edges: int | None = None,
    model_over: int = 0,
    seed: int = 0,
) -> Fleet:
    """The mobile edge computing of HybridFL's and FedProf's studies (thesis, Tables 4.2 and 5.2).

    Clock rates and bandwidths are normal, clipped three standard deviations below the mean (the thesis' extreme straggler; it does not say what happens
    to smaller or negative draws). The signal-to-noise ratio is 100; models have 5 or 10 MB; transmitting takes 0.5 W, computing 0.7 W at 1 GHz. The
    drop-out probability of each device is normal about ``drop_out`` with standard deviation 0.05, clipped to [0, 1]; a device drops out at a uniform
    instant of its round; edges share 1 Gbit/s to the cloud.

    Args:
        task: one of the four tasks. For the last two, the thesis does not give the size of the model: that of the first two is used.
        drop_out: mean probability of a drop-out in a round, 0 for none at all; or the distribution of the probability over devices.
        regions: number of regions, or each device's region; by default as many as the study has edges.
        edges: number of edges that share the backhaul; by default as in the study.
        model_over: messages of at most this many bytes contain no model, such as a profile of ``8 q`` bytes.
        seed: seed of traits and drop-outs.
    """
    of = _find_study(task, _MEC, "mec")
    crash = probability(drop_out, "drop_out", "mec")
    if isinstance(crash, Equal) and crash.value > 0.0:
        crash = Normal(crash.value, 0.05)
    return Fleet(
        Cycles(_straggling(*of.hertz), of.bits, of.cycles),
        Shannon(_straggling(*of.bandwidth)),
        GeneratedTrace(crash, "uniform", seed=seed),
        backhaul=Backhaul(125e6, of.edges if edges is None else edges),
        model_bytes=of.model_bytes,
        model_over=model_over,
        power=Power(),
        regions=of.edges if regions is None else regions,
        seed=seed,
    )
