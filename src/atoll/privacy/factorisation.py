"""Noise that is correlated across rounds: factorisations of the prefix sums of a training, which need no sampling.

A server adds up ``x_1, x_2, ...`` (a round's sums) and releases every prefix sum. With ``A`` the matrix of prefix sums and ``A = B C``, it releases
``B (C x + s Z) = A x + s B Z``, ``Z`` standard normal. What protects is ``C x + s Z``, so all rounds together are one Gaussian release whose sensitivity is how
far one client can move ``C x``. In a round the server adds the difference ``n_t = N_t - N_(t-1)`` of the prefix sums' noise ``N = s B Z``, so any fold works. The rounds' inputs may
depend on what was released before (Denisov, McMahan, Rush, Smith, Thakurta 2022, Theorem 2.1).

Banded factorisations have the square root of the prefix sums, cut off, or the coefficients with the least error for a number of rounds. For a lower triangular Toeplitz
matrix ``C`` with diagonals ``c_0 .. c_(b-1)`` over ``n`` rounds, the noise in the prefix sums is ``B z`` with ``B = A C^-1``, Toeplitz with
the coefficients ``w = C^-1 1``. With participations at least ``b`` rounds apart, its mean square over the rounds, for one unit of noise a participation, is

``E(c) = ||c||^2 (1 / n) sum_(i<n) (n - i) w_i^2``.

`optimal` minimises it: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu 2023, "(Amplified) Banded Matrix Factorization: A unified approach to private training",
in the Toeplitz form of McKenna 2024, "Scaling up the Banded Matrix Factorization Mechanism for Differentially Private ML".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.extras import need

__all__ = ["BandedFactorisation", "Factorisation", "TreeFactorisation", "mean_error", "optimal", "prefix_error", "root"]

Vector = NDArray[np.float64]
_STEPS = 500


def root(bands: int) -> Vector:
    """``c_j = binomial(2 j, j) / 4^j``: the square root of the matrix of prefix sums; Kalinin, Lampert 2024."""
    j = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def mean_error(coefficients: Vector, rounds: int) -> float:
    """Return ``E(c)``, the mean square of the noise in the prefix sums.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    return _error(np.asarray(coefficients, np.float64), rounds)[0]


@lru_cache(maxsize=32)
def optimal(bands: int, rounds: int) -> tuple[float, ...]:
    """Return the coefficients with the least `mean_error`, with ``c_0 = 1``; never worse than `root`.

    Args:
        bands: number of diagonals; more than ``rounds`` of them are not used.
        rounds: rounds of the training.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    begin = root(min(bands, rounds))
    if len(begin) == 1:
        return (1.0,)
    optimize = need("scipy.optimize", "dp", "coefficients of least error", where="atoll.privacy")

    def loss(free: Vector) -> tuple[float, Vector]:
        value, slope = _error(np.concatenate([[1.0], free]), rounds)
        return value, slope[1:]

    settings = {"maxiter": _STEPS, "ftol": 1e-15, "gtol": 1e-10}
    found = np.concatenate([[1.0], optimize.minimize(loss, begin[1:], jac=True, method="L-BFGS-B", options=settings).x])
    better = found if _error(found, rounds)[0] <= _error(begin, rounds)[0] else begin
    return tuple(float(c) for c in better)


def _error(c: Vector, rounds: int) -> tuple[float, Vector]:
    """``E(c)`` and its gradient: with ``v`` the solution of ``C' v = dE/dw``, ``dw`` contributes ``-sum_i v_i w_(i-j)`` to the derivative by ``c_j``."""
    w, shares = _solve_system(c, np.ones(rounds)), np.arange(rounds, 0, -1) / rounds
    spread, length = float((shares * w * w).sum()), float(c @ c)
    back = _solve_system(c, (2 * shares * w)[::-1])[::-1]
    moved = np.array([-float(back[j:] @ w[: rounds - j]) if j < rounds else 0.0 for j in range(len(c))])
    return length * spread, 2 * c * spread + length * moved


def _solve_system(c: Vector, right: Vector) -> Vector:
    """Solve ``C x = right``."""
    signal: Any = need("scipy.signal", "dp", "coefficients of least error", where="atoll.privacy")
    made: Vector = signal.lfilter([1.0], c, right)
    return made


# ---------------------------------------------------------------- noise that is correlated across rounds

Draw = Callable[[], Vector]
Memory = dict[str, Any]


@dataclass(frozen=True)
class Factorisation(ABC):
    """Base class: what a participation costs, and the noise of the rounds."""

    @abstractmethod
    def cost(self, most: int, separation: int) -> float:
        """Return a bound of the squared sensitivity for each participation, for contributions of norm 1 a round.

        A client that takes part in ``j`` rounds moves ``C x`` by at most ``sqrt(j cost)``, so each participation is one Gaussian release of noise multiplier
        ``s / sqrt(cost)``, and the releases add up as others do.

        Args:
            most: rounds in which a client takes part at most.
            separation: rounds from one of them to the next, at least.

        Raises:
            ConfigError: the factorisation does not go with this separation.
        """

    @abstractmethod
    def step(self, memory: Memory | None, draw: Draw) -> tuple[Vector, Memory]:
        """Return the noise of a round for ``s = 1``, and the memory for the next.

        Args:
            memory: of the round before; ``None`` in the first.
            draw: gives a fresh vector of standard normal numbers.
        """


@dataclass(frozen=True)
class TreeFactorisation(Factorisation):
    """Binary trees over ``restart`` rounds each: a prefix sum is a sum of at most ``log2(restart) + 1`` nodes, each of which has noise of its own.

    Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021, "Practical and Private (Deep) Learning without Sampling or Shuffling" (DP-FTRL, with tree restarts). With
    ``honaker=True`` a node is estimated from all nodes below it too (Honaker 2015, "Efficient Use of Differentially Private Binary Trees", the estimate from below),
    which costs nothing and has almost half the variance.

    A client in ``j`` rounds that are ``b`` apart has ``m_l = min(k, ceil(2^l / b))`` of them in a node of ``2^l`` rounds at most, so a level contributes at most
    ``j m_l`` to its squared sensitivity. Only nodes that are complete are used. The cost is ``sum_l m_l`` over the levels ``2^l <= restart``.

    Attributes:
        restart: rounds of a tree; then a new one begins.
        honaker: whether nodes are estimated from those below.
    """

    restart: int = 64
    honaker: bool = True

    def __post_init__(self) -> None:
        if self.restart < 1:
            raise ConfigError(f"restart={self.restart} rounds", where="TreeFactorisation", remedy="use 1 or more")

    @property
    def levels(self) -> int:
        """Levels of a tree."""
        return self.restart.bit_length()

    def cost(self, most: int, separation: int) -> float:
        """``sum_l min(most, ceil(2^l / separation))``."""
        _require(most, separation)
        return float(sum(min(most, -(-(1 << level) // separation)) for level in range(self.levels)))

    def variances(self) -> list[float]:
        """The variance of a node's noise by level: 1, or ``1 / (1 + 1 / (2 v))`` with ``v`` that of the level below."""
        made = [1.0]
        for _ in range(1, self.levels):
            made.append(1 / (1 + 1 / (2 * made[-1])) if self.honaker else 1.0)
        return made

    def step(self, memory: Memory | None, draw: Draw) -> tuple[Vector, Memory]:
        """Count one round up: nodes that it completes are estimated, and the prefix sum has the noise of those that stand."""
        node, variances = draw(), self.variances()
        if memory is None or int(memory["count"]) == self.restart:
            memory = {"count": 0, "last": np.zeros_like(node), "nodes": np.zeros((self.levels, len(node)))}
        count, nodes = int(memory["count"]), np.array(memory["nodes"])
        level = 0
        while count >> level & 1:
            own, below = draw(), node + nodes[level]
            if self.honaker:
                share = variances[level + 1]
                node = share * own + (1 - share) * below
            else:
                node = own
            nodes[level] = 0.0
            level += 1
        nodes[level] = node
        prefix = nodes.sum(axis=0)
        return prefix - memory["last"], {"count": count + 1, "last": prefix, "nodes": nodes}


@dataclass(frozen=True)
class BandedFactorisation(Factorisation):
    """``C`` a lower triangular Toeplitz matrix with ``bands`` diagonals: the square root of ``A``, cut off; or, for ``rounds`` rounds, those of least error.

    Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu 2023, "(Amplified) Banded Matrix Factorization: A unified approach to private training". The
    square root's coefficients ``c_j = binomial(2 j, j) / 4^j`` are those of Kalinin, Lampert 2024, "Banded Square Root Matrix Factorization for Differentially Private Model
    Training", which need no optimisation. See `optimal`. With participations at least ``bands`` rounds apart, the columns of ``C`` that a client moves have no row in common. So ``j`` participations have exactly
    the squared sensitivity ``j sum_i c_i^2``, whatever the client sends. One band is independent noise.

    The noise of a round is ``y_t = z_t - sum_(i=1)^(bands-1) c_i y_(t-i)``; the memory is that of ``bands - 1`` rounds.

    Attributes:
        bands: number of diagonals.
        rounds: number of rounds for which the mean squared error is least; 0 for the square root. SciPy finds the coefficients.
    """

    bands: int = 8
    rounds: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.bands <= 4096:
            raise ConfigError(f"bands={self.bands}", where="BandedFactorisation", remedy="use 1 to 4096")
        if self.rounds < 0:
            raise ConfigError(f"rounds={self.rounds}", where="BandedFactorisation", remedy="use 0 or more")

    @property
    def coefficients(self) -> Vector:
        """``c_0 .. c_(bands-1)``.

        Raises:
            MissingExtraError: there are rounds, and SciPy is not installed.
        """
        if not self.rounds:
            return root(self.bands)
        found = optimal(self.bands, self.rounds)
        return np.array([*found, *[0.0] * (self.bands - len(found))])

    def cost(self, most: int, separation: int) -> float:
        """``sum_i c_i^2``, the squared norm of a column."""
        _require(most, separation)
        if most > 1 and separation < self.bands:
            raise ConfigError(
                f"bands={self.bands}, and a client may take part again after {separation} rounds",
                where="BandedFactorisation",
                remedy=f"use bands={separation} or fewer, or a selection such as CyclicGroups(count) with at least {self.bands} groups of clients",
            )
        return float((self.coefficients**2).sum())

    def step(self, memory: Memory | None, draw: Draw) -> tuple[Vector, Memory]:
        """Solve ``C y = z`` for one more row."""
        noise = np.array(draw())
        past = np.zeros((self.bands - 1, len(noise))) if memory is None else np.asarray(memory["past"])
        noise -= self.coefficients[1:] @ past  # c_0 is 1
        return noise, {"past": np.concatenate([noise[None], past])[: self.bands - 1]}


def prefix_error(factorisation: Factorisation, rounds: int, most: int, separation: int) -> float:
    """Return the root mean square of the noise in the prefix sums, for a release of noise multiplier 1 a participation: what choices are compared by."""
    scale, total = math.sqrt(factorisation.cost(most, separation)), 0.0
    memory: Memory | None = None
    rows, prefix = _Recorder(rounds, factorisation), np.zeros(0)
    for _ in range(rounds):
        made, memory = factorisation.step(memory, rows.draw)
        prefix = made if not len(prefix) else prefix + made
        total += float(prefix @ prefix)
    return scale * math.sqrt(total / rounds)


class _Recorder:
    """Draws unit vectors in place of noise, so that a step's output is a row of the matrix."""

    def __init__(self, rounds: int, factorisation: Factorisation) -> None:
        self.size = 2 * rounds if isinstance(factorisation, TreeFactorisation) else rounds
        self.count = 0

    def draw(self) -> Vector:
        """Return the next unit vector."""
        made = np.zeros(self.size)
        made[self.count] = 1.0
        self.count += 1
        return made


def _require(most: int, separation: int) -> None:
    if most < 1 or separation < 1:
        raise ConfigError(f"most={most}, separation={separation}", where="Factorisation", remedy="use 1 or more")
