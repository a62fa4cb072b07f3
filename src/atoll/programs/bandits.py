"""Bandits: agents that choose, learn from rewards, and share what they learned under privacy."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Event, Gaussian
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.requests.task import task
from atoll.core.validation import Checked
from atoll.privacy import NoisePlan, noise_for
from atoll.privacy.discrete import GaussianLattice, words_of

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["DiscountedUCB", "FederatedBandit", "LinUCB", "NoisyPrefix", "Played"]


Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DiscountedUCB:
    """Choose ``argmax_i X_i + 2 sqrt(width log(n) / N_i)`` with discounted counts and means.

    ``N_i = sum_s g^(t-s) 1{i played at s}``, ``X_i = sum_s g^(t-s) r_s 1{i played at s} / N_i`` and ``n = sum_i N_i``, for rewards in ``[0, 1]``. An arm that was not
    played for long is tried again. With ``discount=1`` it is UCB1's index.

    Source: Garivier and Moulines 2011, "On Upper-Confidence Bound Policies for Switching Bandit Problems", with ``B = 1`` and ``xi = width``.
    All functions are pure; what they know is ``(2, arms)``: counts and sums of rewards, both discounted.

    Attributes:
        arms: number of arms.
        discount: ``g`` in (0, 1].
        width: ``xi``, at least 0; 0 exploits only, after one play of each arm.
    """

    arms: int
    discount: float = 0.95
    width: float = 0.1

    def __post_init__(self) -> None:
        if self.arms < 1 or not 0 < self.discount <= 1 or not (self.width >= 0 and math.isfinite(self.width)):
            raise ConfigError(
                f"arms={self.arms}, discount={self.discount}, width={self.width}",
                where="DiscountedUCB",
                remedy="use at least one arm, a discount above 0 and at most 1, and a width of at least 0",
            )

    def nothing(self) -> Array:
        """Return what is known before the first play."""
        return np.zeros((2, self.arms))

    def indices(self, known: Any) -> Array:
        """Return each arm's optimistic reward, ``(arms,)``; infinity for an arm that was never played."""
        counts, sums = np.asarray(known, np.float64)
        total = max(counts.sum(), 1.0)
        played = np.where(counts > 0, counts, 1.0)
        found: Array = np.where(
            counts > 0, sums / played + 2.0 * np.sqrt(self.width * math.log(total) / played), math.inf
        )
        return found

    def choose(self, known: Any) -> int:
        """Return the arm with the largest index; the first of equals."""
        return int(np.argmax(self.indices(known)))

    def seen(self, known: Any, arm: int, reward: float) -> Array:
        """Return what is known after a play.

        Raises:
            ConfigError: a reward outside ``[0, 1]``.
        """
        if not 0.0 <= reward <= 1.0:
            raise ConfigError(f"reward={reward}", where="DiscountedUCB", remedy="scale rewards to [0, 1]")
        after: Array = np.asarray(known, np.float64) * self.discount
        after[:, arm] += (1.0, reward)
        return after


# ---------------------------------------------------------------- LinUCB


@dataclass(frozen=True, kw_only=True)
class LinUCB:
    """Choose ``argmax <theta, x> + beta ||x||_{V^-1}`` with ``V = ridge I + sum x x^T`` and ``theta = V^-1 sum x y``.

    Li, Chu, Langford, Schapire 2010; Abbasi-Yadkori, Pál, Szepesvári 2011. All functions are pure; what they know is a Gram matrix of ``(x, y)``,
    ``(dim + 1, dim + 1)``: the sum of ``z z^T`` with ``z = (x, y)``.

    Attributes:
        dim: length of a context.
        ridge: positive.
        beta: width of the confidence set.
    """

    dim: int
    ridge: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        if self.dim < 1 or not (math.isfinite(self.ridge) and self.ridge > 0 and self.beta >= 0):
            raise ConfigError(
                f"dim={self.dim}, ridge={self.ridge}, beta={self.beta}",
                where="LinUCB",
                remedy="use at least one dimension, a ridge above 0 and a beta of at least 0",
            )

    def nothing(self) -> Array:
        """The Gram matrix before anything was seen."""
        return np.zeros((self.dim + 1, self.dim + 1))

    def seen(self, x: Any, y: float) -> Array:
        """The Gram matrix of one play."""
        z = np.append(np.asarray(x, np.float64), y)
        return np.outer(z, z)

    def design(self, gram: Array) -> Array:
        """``V``. Noise can leave directions with a negative weight; they count as never seen, which no more data are needed for."""
        inner = gram[: self.dim, : self.dim]
        values, turn = np.linalg.eigh((inner + inner.T) / 2)
        found: Array = (turn * (np.maximum(values, 0.0) + self.ridge)) @ turn.T
        return found

    def choose(self, gram: Array, arms: Any) -> int:
        """The arm to play, of contexts ``(arms, dim)``."""
        inverse = np.linalg.inv(self.design(gram))
        theta = inverse @ gram[: self.dim, self.dim]
        rows = np.asarray(arms, np.float64)
        width = np.sqrt(np.maximum(np.einsum("ad,de,ae->a", rows, inverse, rows), 0.0))
        return int(np.argmax(rows @ theta + self.beta * width))

    def novelty(self, gram: Array, synced: Array, plays: int) -> float:
        """``plays ln(det V / det V_synced)``: how much an agent learned since it last shared, times how long ago that was."""
        now, then = (np.linalg.slogdet(self.design(g))[1] for g in (gram, synced))
        return float(plays * (now - then))


# ---------------------------------------------------------------- prefix sums under privacy


@dataclass(frozen=True, kw_only=True)
class NoisyPrefix:
    """Noise for the sums of the first ``t`` of ``length`` symmetric matrices, ``t = 1 .. length``.

    The prefix ``[1, t]`` is the union of at most ``L = ceil(log2(length + 1))`` nodes of a binary tree, each with its own Gaussian noise. An addend is in at most
    ``L`` nodes, so all releases together cost ``L`` Gaussian releases, however many there are. Dwork, Naor, Pitassi, Rothblum 2010; Shariff, Sheffet 2018,
    "Differentially Private Contextual Linear Bandits", section 4. The noise of a node follows from a key that only the party has: asking twice gives the same.

    Attributes:
        length: addends, at most.
        multiplier: noise of a node over the sensitivity.
        sensitivity: how far one addend moves a sum, in Frobenius norm.
    """

    length: int
    multiplier: float
    sensitivity: float

    def __post_init__(self) -> None:
        if self.length < 1 or not all(math.isfinite(v) and v > 0 for v in (self.multiplier, self.sensitivity)):
            raise ConfigError(
                f"length={self.length}, multiplier={self.multiplier}, sensitivity={self.sensitivity}",
                where="NoisyPrefix",
                remedy="use at least one addend, and finite numbers above 0",
            )

    @property
    def levels(self) -> int:
        """Nodes that an addend is in, at most."""
        return self.length.bit_length()

    @property
    def lattice(self) -> GaussianLattice:
        """Where the noise of all nodes is; addends are rounded to it, each before it is added up, so that what is told is on it too."""
        return GaussianLattice(self.multiplier * self.sensitivity)

    def event(self, unit: str = "example") -> Event:
        """What all releases together cost."""
        return Gaussian(unit=unit, noise_multiplier=self.multiplier, count=self.levels)

    def nodes(self, t: int) -> list[tuple[int, int]]:
        """The nodes whose union is ``[1, t]``, as (level, number): one for each bit of ``t``."""
        if not 0 <= t <= self.length:
            raise ConfigError(f"t={t}", where="NoisyPrefix", remedy=f"ask for 0 to {self.length} addends")
        return [(level, (t >> level) - 1) for level in range(self.levels) if t >> level & 1]

    def noise(self, key: bytes, t: int, dim: int) -> Array:
        """Noise of the prefix ``[1, t]``, symmetric, ``(dim, dim)``.

        The entries on and above the diagonal are independent; they determine the matrix, and move by at most its Frobenius norm.
        """
        total = np.zeros((dim, dim))
        for level, number in self.nodes(t):
            seed = hashlib.blake2b(f"{level}/{number}".encode(), key=key, digest_size=32).digest()
            draw = np.random.Generator(np.random.Philox(np.random.SeedSequence(int.from_bytes(seed, "little"))))
            steps = self.lattice.draw(words_of(draw), dim * dim).reshape(dim, dim)
            upper = np.triu(steps * self.lattice.step)
            total += upper + np.triu(upper, 1).T
        return total


# ---------------------------------------------------------------- the federated linear bandit of Dubey and Pentland


@task
def play(island: Island, message: Tree) -> dict[str, Sum]:
    """Play one turn with what the agents shared and what this one has seen since; without privacy, also say what it earned and whether it is time to share."""
    policy = LinUCB(**message["policy"])
    arms = np.asarray(island.data["arms"], np.float64)[message["turn"]]
    state = island.state or {"own": policy.nothing(), "total": policy.nothing(), "plays": 0, "shared": 0, "earned": 0.0}
    common = np.asarray(message["common"])
    arm = policy.choose(common + state["own"], arms)
    reward = float(np.asarray(island.data["rewards"])[message["turn"], arm])
    if np.linalg.norm(arms[arm]) > 1 + 1e-9 or abs(reward) > 1 + 1e-9:
        raise DataError(
            f"a context of norm {np.linalg.norm(arms[arm]):.3g} with reward {reward:.3g}",
            where=f"turn {message['turn']}",
            remedy="scale contexts to norm 1 and rewards to [-1, 1]: the noise is made for these",
        )
    gram, step = policy.seen(arms[arm], reward), message["step"]
    if step:  # towards zero: no addend grows
        gram = np.trunc(gram / step) * step
    own, plays = state["own"] + gram, state["plays"] + 1
    island.state = {
        **state,
        "own": own,
        "total": state["total"] + gram,
        "plays": plays,
        "earned": state["earned"] + reward,
    }
    if not message["open"]:  # when to share is public, and what was earned stays here
        return {"due": Sum(np.float64(message["due"]))}
    best = float(np.asarray(island.data["rewards"])[message["turn"]].max())
    due = message["due"] or policy.novelty(common + own, common, plays) >= message["threshold"]
    return {"due": Sum(np.float64(due)), "reward": Sum(np.float64(reward)), "regret": Sum(np.float64(best - reward))}


@task
def share(island: Island, message: Tree) -> dict[str, Sum]:
    """Release the Gram matrix of everything this agent has seen, with the noise of its prefix; then begin to count anew."""
    state = dict(island.state)
    state["shared"] += 1
    if message["tree"] is None:
        released = state["total"]
    else:
        tree = NoisyPrefix(**message["tree"])
        if "key" not in state:
            state["key"] = np.frombuffer(island.secret.bytes(32), np.uint8)
            island.spend(tree.event())
        released = state["total"] + tree.noise(state["key"].tobytes(), state["shared"], len(state["total"]))
    own = np.zeros_like(state["own"])
    island.state = {**state, "own": own, "plays": 0}
    return {"gram": Sum(np.asarray(released))}


@dataclass(frozen=True)
class Played:
    """The result of a bandit.

    Attributes:
        rewards: sum of all agents' rewards in each turn; empty under privacy, where rewards stay at the agents.
        regrets: the best arm's reward minus theirs, in each turn; empty under privacy.
        shared: turns after which the agents shared.
        gram: what they shared last, ``(dim + 1, dim + 1)``.
    """

    rewards: list[float]
    regrets: list[float]
    shared: list[int]
    gram: Array = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class FederatedBandit(Checked):
    """Agents in lockstep, each with contexts and rewards of its own, learn one linear model of rewards.

    When ``ln(det V / det V_shared) * plays >= threshold`` at some agent, all share: each sends the Gram matrix of its contexts and rewards, privatised by a
    binary tree of Gaussian noise. Without noise and with threshold 0 this is centralised LinUCB over all agents' plays. Dubey, Pentland 2020,
    "Differentially-Private Federated Linear Bandits", algorithm 1.

    Unit: one play of an agent (its context and reward). Neighbours: add or remove one. Adversary: the server and the other agents: everything shared
    is noisy by itself. We deviate: negative directions of a noisy Gram matrix are cut off instead of shifted. When an agent has learned enough tells of its data, and
    the paper's noise does not cover it: under privacy agents share in every ``every`` turns instead, and their rewards stay with them.

    An agent's data are ``{"arms": (turns, arms, dim), "rewards": (turns, arms)}``; contexts have norm 1 at most, rewards are in [-1, 1].

    Attributes:
        policy: how an agent chooses.
        turns: number of turns.
        threshold: when to share, as above; ``None`` leaves it to ``every``.
        every: share after every so many turns, whatever was learned.
        epsilon: of one play; ``None`` shares without noise.
        delta: its delta.
        reducer: how what they share is added up.
    """

    policy: LinUCB
    turns: int
    threshold: float | None = None
    every: int | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    reducer: Reducer = field(default_factory=Plain)
    citation: ClassVar[str] = "Dubey, Pentland. Differentially-Private Federated Linear Bandits. NeurIPS 2020."

    def __post_init__(self) -> None:
        whole = self.turns >= 1 and (self.every is None or self.every >= 1)
        if not whole or (self.threshold is not None and not self.threshold >= 0):
            raise ConfigError(
                f"turns={self.turns}, every={self.every}, threshold={self.threshold}",
                where="FederatedBandit",
                remedy="use at least one turn, and a threshold of at least 0",
            )
        if (self.threshold is None) == (self.every is None):
            raise ConfigError(
                f"every={self.every}, threshold={self.threshold}",
                where="FederatedBandit",
                remedy="say when to share: give threshold= or every=, not both",
            )
        if self.epsilon is not None and self.every is None:
            raise ConfigError(
                f"threshold={self.threshold} tells when an agent has learned, which the noise of epsilon={self.epsilon} does not cover",
                where="FederatedBandit",
                remedy="share by a public schedule: every=10",
            )

    @property
    def tree(self) -> NoisyPrefix | None:
        """The noise of what one agent shares: ``z z^T`` with ``||x||, |y| <= 1`` has a Frobenius norm of at most 2."""
        if self.epsilon is None or self.every is None or self.every > self.turns:
            return None
        length = self.turns // self.every
        plan = NoisePlan(
            mechanism="gaussian",
            noise=1.0,
            delta=self.delta,
            steps=length.bit_length(),
            unit="example",
            adversary="server",
        )
        return NoisyPrefix(length=length, multiplier=noise_for(plan, self.epsilon, "pld").noise, sensitivity=2.0)

    def program(self, data: Any = None) -> Callable[[Federation], Awaitable[Played]]:
        """Return the program; ``data`` is not looked at."""
        del data
        tree = self.tree

        async def program(fed: Federation) -> Played:
            state = await fed.restore(
                {"common": self.policy.nothing(), "turn": 0, "rewards": [], "regrets": [], "shared": []}
            )
            while state["turn"] < self.turns:
                turn = state["turn"]
                done = await fed.sum(
                    fed.parties, play, self._turn(turn, state["common"]), at=turn, quorum=len(fed.parties)
                )
                shared, common = state["shared"], state["common"]
                if float(done["due"]) > 0:
                    asked = {"tree": None if tree is None else asdict(tree)}
                    sent = await fed.sum(
                        fed.parties, share, asked, at=("share", turn), quorum=len(fed.parties), reducer=self.reducer
                    )
                    common, shared = np.asarray(sent["gram"]), [*shared, turn]
                told = {name: float(done[name]) for name in ("reward", "regret") if self.epsilon is None}
                state = {**state, "common": common, "turn": turn + 1, "shared": shared}
                for name, value in told.items():
                    state[f"{name}s"] = [*state[f"{name}s"], value]
                fed.record({"round": turn + 1, "shares": len(shared), **told})
                if fed.durable:
                    await fed.checkpoint(state)
            return Played(
                [float(v) for v in state["rewards"]],
                [float(v) for v in state["regrets"]],
                [int(v) for v in state["shared"]],
                np.asarray(state["common"]),
            )

        return program

    def _turn(self, turn: int, common: Array) -> Tree:
        """What the server asks in a turn."""
        due = self.every is not None and (turn + 1) % self.every == 0
        threshold = float("inf") if self.threshold is None else self.threshold
        return {
            "turn": turn, "common": common, "policy": asdict(self.policy), "due": due, "threshold": threshold,
            "open": self.epsilon is None, "step": 0.0 if self.tree is None else self.tree.lattice.step,
        }  # fmt: skip
