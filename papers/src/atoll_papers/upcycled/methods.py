"""The seven bases, their Upcycled versions and the bases with server learning rate ``1 + u``, as configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["BASES", "COEFFICIENT", "COEFFICIENTS", "UpcycledMethod", "algorithm", "tries"]

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
