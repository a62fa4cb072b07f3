"""Oort: clients with high utility that take little time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties
from atoll.learn.checks import require_count

from .base import Candidates, Seen, draw, members, places_of, top
from .uniform import Uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["Oort"]


@dataclass(frozen=True)
class Oort(Uniform):
    """Exploits clients of high utility and explores new ones, fast ones first.

    F. Lai, X. Zhu, H. V. Madhyastha and M. Chowdhury, "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021,
    Algorithm 1. The utility of a client that replied before, in round ``R``:

        ``Util_k = (S_k + sqrt(0.1 ln R / L_k)) * (T / t_k)^alpha if t_k > T else 1``

    * ``S_k``: statistical utility ``|B_k| sqrt((1/|B_k|) sum loss^2)``. Clients report the mean of their losses, so the rule uses
      ``|B_k| * mean loss``, a lower bound (equal if all losses are the same). Utilities above the ``clip`` quantile count as that quantile. As in the
      authors' code, and not in the paper, they are then scaled to 0..1; otherwise they would dwarf the next term.
    * ``L_k``: round of its last reply: older knowledge is less certain.
    * ``t_k``: seconds of its last reply. ``T``, the preferred length of a round, is a quantile of these. The *pacer* raises the quantile by
      ``pace`` when the utility gathered in the last ``window`` rounds is below that of the ``window`` before, at most once per window.

    A round exploits ``(1 - epsilon)`` of its places: among clients tried before, it draws from all within ``cutoff`` of the utility of the last place,
    with probability proportional to utility. The other places explore: clients that never replied, with probability proportional to ``1 / forecast``
    (uniformly without forecasts). ``epsilon`` decays; a fractional number of places is rounded at random. Places that one side cannot fill go to the
    other. A client that replied more than ``most`` times is left out, at most ``barred`` of the population, those with the most replies first.

    Attributes:
        count: clients per round, as in ``Uniform``.
        alpha: penalty of slow clients; 0 ignores time.
        epsilon: share of new clients in the first round.
        decay: factor of ``epsilon`` per round.
        least: the smallest ``epsilon``.
        preferred: initial quantile of the durations for ``T``; 1 is the slowest.
        pace: step of the pacer, as a quantile.
        window: rounds of the pacer's windows.
        clip: quantile at which utilities are clipped; 1 clips nothing.
        cutoff: share of the utility of the last place that a client needs to enter the draw.
        most: replies after which a client is left out; ``None`` leaves no client out.
        barred: the largest share of the population to leave out.
    """

    citation: ClassVar[str] = "Lai et al. 2021, Oort: Efficient FL via Guided Participant Selection"
    alpha: float = 2.0
    epsilon: float = 0.9
    decay: float = 0.98
    least: float = 0.2
    preferred: float = 0.3
    pace: float = 0.05
    window: int = 20
    clip: float = 0.95
    cutoff: float = 0.95
    most: int | None = None
    barred: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("Oort", window=self.window)
        if self.most is not None:
            require_count("Oort", most=self.most)
        if not (self.alpha >= 0 and math.isfinite(self.alpha)):
            raise ConfigError(f"alpha={self.alpha}", where="Oort", remedy="use a number of at least 0")
        for name in ("epsilon", "decay", "least", "preferred", "pace", "clip", "cutoff", "barred"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)}", where="Oort", remedy="use a number in [0, 1]")

    @property
    def reports(self) -> Mapping[str, Any]:
        """The loss."""
        return {"loss": None}

    def init(self, parties: Parties) -> Tree:
        """Start with no client tried."""
        n = len(parties)
        return {
            "who": members(parties),
            "utility": np.zeros(n),
            "seconds": np.zeros(n),
            "last": np.zeros(n, dtype=np.int64),
            "replies": np.zeros(n, dtype=np.int64),
            "gathered": np.zeros(0),
            "quantile": self.preferred,
        }

    def utilities(self, number: int, state: Tree) -> NDArray[np.float64]:
        """Return ``Util_k`` of every client in a round, ``-inf`` for those that never replied.

        Args:
            number: the round ``R``, from 1.
            state: the rule's memory.
        """
        tried = state["last"] > 0
        found = np.full(len(tried), -np.inf)
        if not tried.any():
            return found
        raw = state["utility"][tried]
        clipped = np.minimum(raw, np.quantile(raw, self.clip, method="lower"))
        reach = clipped.max() - clipped.min()
        scaled = (clipped - clipped.min()) / reach if reach > 0 else np.ones(len(clipped))
        # Lai et al. 2021, Algorithm 1: a client that was not heard of for long is worth another look, as an arm of a bandit is.
        value = scaled + np.sqrt(0.1 * math.log(number) / state["last"][tried])
        spent = state["seconds"][tried]
        preferred = np.quantile(spent, state["quantile"], method="lower")
        slow = spent > preferred
        # Their Eq. 1: only clients slower than the preferred duration are penalised; faster ones gain nothing.
        value[slow] *= (preferred / spent[slow]) ** self.alpha
        found[tried] = value
        return found

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Exploit, then explore."""
        where = places_of(state["who"], candidates.parties.positions)
        out = self._left_out(state, candidates.parties.roster.ranks(state["who"]))[where]
        utility = np.where(out, -np.inf, self.utilities(candidates.round, state)[where])
        fresh = state["last"][where] == 0
        epsilon = max(self.least, self.epsilon * self.decay ** (candidates.round - 1))
        new = min(int(fresh.sum()), int(epsilon * count + candidates.rng.child("places").generator().random()))
        old = self._exploit_clients(candidates, utility, count - new)
        return np.concatenate([old, self._explore_clients(candidates, fresh, count - len(old))])

    def _exploit_clients(self, candidates: Candidates, utility: NDArray[np.float64], places: int) -> NDArray[np.int64]:
        best = top(candidates.rng.child("ties"), utility, places)
        if not len(best):
            return best
        admitted = utility >= self.cutoff * utility[best[-1]]
        with np.errstate(divide="ignore"):
            logits = np.log(np.where(admitted, np.maximum(utility, np.finfo(float).tiny), 0.0))
        return draw(candidates.rng.child("exploit"), logits, places)

    def _explore_clients(self, candidates: Candidates, fresh: NDArray[np.bool_], places: int) -> NDArray[np.int64]:
        forecast = candidates.seconds() if places and fresh.any() else None
        speed = np.zeros(len(fresh)) if forecast is None else -np.log(np.maximum(forecast, 1e-9))
        return draw(candidates.rng.child("explore"), np.where(fresh, speed, -np.inf), places)

    def _left_out(self, state: Tree, ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which clients have had their turns; of equally many replies the first by name."""
        out = np.zeros(len(state["replies"]), dtype=bool)
        if self.most is not None:
            many = np.flatnonzero(state["replies"] > self.most)
            often = many[np.lexsort((ranks[many], -state["replies"][many]))]
            out[often[: int(self.barred * len(out))]] = True
        return out

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Update the utilities and durations of the clients that replied, and the pacer."""
        who = places_of(state["who"], seen.replied.positions)
        told = np.asarray(seen.reports.get("loss", []), dtype=np.float64)
        new = {name: np.array(state[name]) for name in ("utility", "seconds", "last", "replies")}
        if len(told):
            new["utility"][who] = seen.examples * told
            new["seconds"][who] = seen.seconds
            new["last"][who] = seen.round
            new["replies"][who] += 1
        gathered = np.append(state["gathered"], (seen.examples * told).sum() if len(told) else 0.0)
        return {**state, **new, **self._pace_window(gathered, state["quantile"])}

    def _pace_window(self, gathered: NDArray[np.float64], quantile: float) -> dict[str, Any]:
        """Return the quantile of preferred durations, once a window is full; the rule remembers two windows."""
        w = self.window
        if len(gathered) < 2 * w:
            return {"gathered": gathered, "quantile": quantile}
        if gathered[:w].sum() > gathered[w:].sum():
            quantile = min(1.0, quantile + self.pace)
            return {"gathered": gathered[w:], "quantile": quantile}
        return {"gathered": gathered[1:], "quantile": quantile}
