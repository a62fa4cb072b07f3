"""The federated linear bandit of Dubey and Pentland: agents play alone and share noisy statistics when they have learned enough."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.requests.task import task
from atoll.core.validation import Checked
from atoll.privacy import NoisePlan, noise_for

from .linucb import LinUCB
from .tree import NoisyPrefix

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["FederatedBandit", "Played", "play", "share"]

Array = NDArray[np.float64]


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
