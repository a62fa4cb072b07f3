"""Amplification by shuffling: replies that are private one by one protect better if nobody can tell whose is whose.

``n`` clients each send a reply of an ``epsilon0``-private randomiser, and the adversary sees the replies in random order, or only something that does not
depend on their order, such as their sum. Every other client is, with probability ``e^-epsilon0``, a clone of the one that is attacked: it sends what either of its
two possible inputs would. So all that the adversary sees follows from the pair

    P = (A + D, C - A + 1 - D),  Q = (A + 1 - D, C - A + D),
    C ~ Binomial(n - 1, e^-epsilon0),  A ~ Binomial(C, 1/2),  D ~ Bernoulli(e^epsilon0 / (e^epsilon0 + 1))

for neighbours by replacing one: Feldman, McMillan, Talwar 2021, "Hiding Among the Clones", theorem 3.1 and its numerical form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import Event, register_event

from .events import Perturbed

__all__ = ["Shuffled", "as_seen", "excess_of", "shuffled_divergence", "shuffled_epsilon"]

Array = npt.NDArray[np.float64]
_LARGEST = 100_000  # more clients protect more: their bound holds for any larger number too
_TAIL = 1e-18  # mass of each binomial that is cut off on either side, at most
_CUT = 4 * _TAIL + 1e-15  # what the pair may lose by that, and by rounding; it counts as the largest loss


@register_event
@dataclass(frozen=True, kw_only=True)
class Shuffled(Event):
    """A reply of an ``epsilon``-private randomiser among those of ``clients`` clients, in an order that the adversary does not know.

    Attributes:
        epsilon: of the randomiser alone, ``epsilon0``.
        clients: replies that are shuffled, at least.
        shuffled_by: who hides whose reply is whose: ``"server"`` (it sees single replies and is trusted not to pass them on) or ``"reducer"`` (a secure sum
            or a helper: the server does not see them either). Against the server, the first does not count.
    """

    epsilon: float
    clients: int = 1
    shuffled_by: Literal["server", "reducer"] = "server"
    kind: ClassVar[str] = "shuffled"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.epsilon) and self.epsilon > 0 and self.clients >= 1):
            raise ConfigError(
                f"epsilon={self.epsilon}, clients={self.clients}",
                remedy="use a finite epsilon > 0, and at least one client",
            )
        if self.shuffled_by not in ("server", "reducer"):
            raise ConfigError(f"shuffled_by={self.shuffled_by!r}", remedy="use 'server' or 'reducer'")

    def hidden(self, adversary: str) -> bool:
        """Whether the adversary does not see whose reply is whose."""
        return self.clients > 1 and not (adversary == "server" and self.shuffled_by == "server")


def as_seen(event: Event, adversary: str) -> Event:
    """The event as an adversary meets it: replies that nobody shuffled for it are the randomiser's own."""
    if not isinstance(event, Shuffled) or event.hidden(adversary):
        return event
    return Perturbed(unit=event.unit, scope=event.scope, count=event.count, epsilon=event.epsilon)


@checked_call
def shuffled_epsilon(epsilon: float, clients: int, delta: float, method: str = "numeric") -> float:
    """Epsilon of one round of shuffled replies.

    Args:
        epsilon: of the randomiser.
        clients: number of replies.
        delta: in (0, 1).
        method: ``"numeric"`` (the pair's own curve), or ``"closed"``: theorem 3.1's
            ``ln(1 + (e^e0 - 1) / (e^e0 + 1) (8 sqrt(e^e0 ln(4 / delta) / n) + 8 e^e0 / n))`` where
            ``e0 <= ln(n / (16 ln(2 / delta)))``; elsewhere it promises nothing beyond ``e0``.

    Raises:
        ConfigError: a value outside its range.
    """
    event = Shuffled(epsilon=epsilon, clients=clients)
    if not 0 < delta < 1 or method not in ("numeric", "closed"):
        raise ConfigError(
            f"delta={delta}, method={method!r}",
            where="shuffled_epsilon",
            remedy="use delta in (0, 1), and method 'numeric' or 'closed'",
        )
    if method == "closed":
        if epsilon > math.log(clients / (16 * math.log(2 / delta))):
            return epsilon
        grown = math.exp(epsilon)
        spread = 8 * math.sqrt(grown * math.log(4 / delta) / clients) + 8 * grown / clients
        return min(epsilon, math.log1p(math.expm1(epsilon) / (grown + 1) * spread))
    low, high = 0.0, epsilon
    if float(excess_of(event, np.zeros(1))[0]) <= delta:
        return 0.0
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(excess_of(event, np.array([middle]))[0]) > delta else (low, middle)
    return high


def excess_of(event: Shuffled, epsilons: Array) -> Array:
    """``sup_S P(S) - exp(e) Q(S)`` of the pair at each ``e >= 0``."""
    losses, above, below, cut = _losses(event.epsilon, min(event.clients, _LARGEST))
    at = np.searchsorted(losses, epsilons, side="right")
    found: Array = np.maximum(above[at] - np.exp(epsilons) * below[at], 0.0) + cut
    return np.where(epsilons >= event.epsilon, 0.0, found)  # no pair is further apart than the randomiser itself


def shuffled_divergence(event: Shuffled, order: float) -> float:
    """The Rényi divergence of the pair, ``ln E_Q (P / Q)^a / (a - 1)``; at most that of the randomiser."""
    losses, _, below, cut = _losses(event.epsilon, min(event.clients, _LARGEST))
    with np.errstate(divide="ignore"):
        logs = np.log(below[:-1] - below[1:]) + order * losses
    total = np.logaddexp(np.logaddexp.reduce(logs), math.log(cut or 1e-300) + order * event.epsilon)
    return max(0.0, float(total) / (order - 1))


@lru_cache(maxsize=16)
def _losses(epsilon: float, clients: int) -> tuple[Array, Array, Array, float]:
    """The pair's losses ``ln P/Q`` in ascending order; the mass of P, and that of Q, from each on; and the mass that was cut off.

    ``P(a, b) = P[C = a + b - 1] (q Bin(a - 1) + (1 - q) Bin(a))`` with ``Bin`` that of A given C, so that
    ``P / Q = (q a + (1 - q) b) / ((1 - q) a + q b)``.
    """
    q = 1 / (1 + math.exp(-epsilon))
    some, mass = _binomial(clients - 1, math.exp(-epsilon))
    losses, first, second = [], [], []
    for c, weight in zip(some.tolist(), mass.tolist(), strict=True):
        ones, share = _binomial(c, 0.5)
        place = np.arange(ones[0], ones[-1] + 2)  # a = A or A + 1
        without, within = np.append(share, 0.0), np.insert(share, 0, 0.0)  # P[A = a], P[A = a - 1]
        b = c + 1 - place
        first.append(weight * (q * within + (1 - q) * without))
        second.append(weight * ((1 - q) * within + q * without))
        losses.append(np.log(q * place + (1 - q) * b) - np.log((1 - q) * place + q * b))
    loss, p, other = np.concatenate(losses), np.concatenate(first), np.concatenate(second)
    order = np.argsort(loss)
    above, below = (np.append(np.cumsum(part[order][::-1])[::-1], 0.0) for part in (p, other))
    return loss[order], above, below, _CUT if clients > 1 else 0.0


def _binomial(n: int, chance: float) -> tuple[npt.NDArray[np.int64], Array]:
    """Values of a binomial and their probabilities, without tails of mass `_TAIL`."""
    if n == 0:
        return np.zeros(1, np.int64), np.ones(1)
    spread = math.sqrt(-0.5 * n * math.log(_TAIL))  # Hoeffding, and for small chances Chernoff below
    rare = math.sqrt(-2 * n * chance * math.log(_TAIL)) - math.log(_TAIL)
    reach = min(spread, rare)
    low, high = max(0, math.floor(n * chance - reach)), min(n, math.ceil(n * chance + reach))
    k = np.arange(low, high + 1)
    logs = _log_factorials(n)
    terms = logs[n] - logs[k] - logs[n - k] + k * math.log(chance) + (n - k) * math.log1p(-chance)
    masses = np.exp(terms - terms.max())
    return k, masses / masses.sum()


@lru_cache(maxsize=1)
def _all_logs(size: int) -> Array:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size + 1)))])


def _log_factorials(n: int) -> Array:
    return _all_logs(1 << max(10, n.bit_length()))
