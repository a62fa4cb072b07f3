"""3-block decentralised ADMM for matrix factorisation, in which the server sees every user's message, or only sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.federation.federation import Federation
from atoll.core.federation.reducer import Reducer
from atoll.learn.card import Card

from ..checks import require_choice, require_count, require_positive
from ..proximal import nuclear_norm, svt
from .sums_only import SumsOnly
from .user import user_step

__all__ = ["Factorised", "MatrixFactorisation", "ServerView"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ServerView:
    """The server's view of one round.

    Attributes:
        round: the 1-based round.
        items: the published ``V``, ``(items, rank)``.
        replies: user -> ``{"message": rho x + pi, "u": u}``; empty in aggregate form.
        sums: ``A`` and ``B``, summed over the cohort; empty in clear form.
    """

    round: int
    items: Array
    replies: dict[str, Tree]
    sums: dict[str, Array]


@dataclass(frozen=True)
class Factorised:
    """The result.

    Attributes:
        items: the item profiles ``V``, ``(items, rank)``. The users keep theirs.
        objective: ``sum_i ||m_i (u_i V^T - r_i)||^2 + user_weight sum ||u_i|| + item_weight ||V||_*``, of the last round with all users.
        primal: ``sqrt(sum_i ||x_i - u_i V^T||^2)`` of the last cohort.
        dual: ``rho ||U||_F ||V - V_old||_F``.
        balance: ``user_weight sum ||u_i||`` and ``item_weight ||V||_*``, equal at a stationary point.
        rounds: number of rounds done.
        reason: why the program stopped.
    """

    items: Array
    objective: float
    primal: float
    dual: float
    balance: tuple[float, float]
    rounds: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class MatrixFactorisation:
    """``min sum_i ||m_i (u_i V^T - r_i)||^2 + user_weight sum_i ||u_i||_2 + item_weight ||V||_*`` over user profiles and item profiles, by ADMM on ``x_i = u_i V^T``.

    It is a program: ``atoll.simulate(MatrixFactorisation(items=20).program, islands)``. A client is a user; its rows are ``x = (n,)`` or ``(n, 1)`` numbers of
    items and ``y = (n,)`` ratings. User: ``x_i``, ``u_i``, ``pi_i`` (see ``user_step``). Server: ``inner`` times
    ``V <- SVT(V - eta (rho V A - B), item_weight eta)`` with ``A = sum u_i^T u_i``, ``B = sum (rho x_i + pi_i)^T u_i``, ``eta = 1 / (rho ||A||)``.

    ``form="clear"`` is the printed protocol: each user sends ``(rho x_i + pi_i, u_i)``, from which the server can compute the ratings
    (`atoll.learn.admm.attack`). ``form="aggregate"``, the default, sends the change of ``(A_i, B_i)`` to a reducer that reveals sums: the same iterates,
    ``M D + D^2`` floats up. Sums over few users and ``V`` still reveal something. With three nonconvex blocks, no convergence guarantee is known.

    Attributes:
        items: ``M``.
        rank: ``D``, latent dimensions.
        rho: the penalty, positive.
        user_weight: ``lambda``, not negative.
        item_weight: ``mu``, not negative.
        inner: proximal steps for ``V`` per round.
        rounds: the largest number of rounds.
        cohort: users per round; ``None`` is all.
        form: ``"aggregate"`` or ``"clear"``.
        reducer: the reducer of the aggregate form.
        tolerance: stop when primal and dual residual are both below it; 0 never stops.
        observe: called with a ``ServerView`` after every round.
    """

    items: int
    rank: int = 5
    rho: float = 1.0
    user_weight: float = 0.3
    item_weight: float = 0.8
    inner: int = 5
    rounds: int = 500
    cohort: int | None = None
    form: str = "aggregate"
    reducer: Reducer = field(default_factory=SumsOnly)
    tolerance: float = 0.0
    observe: Callable[[ServerView], None] | None = field(default=None, compare=False)
    citation: ClassVar[str] = (
        "Advancements in Federated Learning: Models, Methods, and Privacy (survey), Algorithm 3; aggregate form: ours."
    )
    card: ClassVar[Card] = Card(
        family="admm",
        down="M D + 2",
        up="M D + D^2",
        state="M D + D^2 + M + D",
        secure=True,
        note='A program: 3-block ADMM for matrix factorisation. With form="clear", clients send M + D up, and the server can read ratings.',
    )

    def __post_init__(self) -> None:
        where = "MatrixFactorisation"
        require_positive(where, rho=self.rho)
        require_count(where, items=self.items, rank=self.rank, inner=self.inner, rounds=self.rounds)
        require_choice(where, "form", self.form, ("aggregate", "clear"))
        for name, value in (("user_weight", self.user_weight), ("item_weight", self.item_weight), ("tolerance", self.tolerance)):  # fmt: skip
            if not value >= 0:
                raise ConfigError(f"{name}={value}", where=where, remedy="use 0 or more")
        if self.rank > self.items:
            raise ConfigError(
                f"rank={self.rank} of {self.items} items", where=where, remedy="use a rank of at most items"
            )
        if self.cohort is not None:
            require_count(where, cohort=self.cohort)

    async def program(self, fed: Federation) -> Factorised:
        """Run the program, with a checkpoint after every round if the run has a folder.

        Raises:
            CompositionError: the cohort is larger than the population, or a secure reducer meets the clear form's single replies.
        """
        if self.cohort is not None and self.cohort > len(fed.parties):
            raise CompositionError(
                f"cohort={self.cohort} of {len(fed.parties)} users",
                where="MatrixFactorisation",
                remedy="use fewer users",
            )
        state = await fed.restore(self._initial(fed))
        while state["round"] < self.rounds and not state["done"]:
            state = await self._round(fed, state)
            fed.record({"round": state["round"], **state["facts"]})
            if fed.durable:
                await fed.checkpoint(state)
        facts, done = state["facts"], state["done"]
        return Factorised(
            items=state["items"],
            objective=facts["objective"],
            primal=facts["primal"],
            dual=facts["dual"],
            balance=(state["norms"] * self.user_weight, self.item_weight * nuclear_norm(state["items"])),
            rounds=state["round"],
            reason="residuals are below the tolerance" if done else f"all {self.rounds} rounds are done",
        )

    def _initial(self, fed: Federation) -> Tree:
        shape = (self.items, self.rank)
        start = fed.rng.child("items").generator().normal(size=shape)
        zero = np.zeros(shape)
        facts = {"objective": float("nan"), "primal": float("inf"), "dual": float("inf")}
        return {"items": start, "A": np.zeros((self.rank, self.rank)), "B": zero, "users": {}, "round": 0, "done": False, "norms": 0.0, "facts": facts}  # fmt: skip

    async def _round(self, fed: Federation, state: Tree) -> Tree:
        number, clear = state["round"] + 1, self.form == "clear"
        users = fed.parties
        if self.cohort is not None:
            draw = fed.rng.child("cohort", number).generator()
            users = users[np.sort(draw.choice(len(users), self.cohort, replace=False))]
        message = {"items": state["items"], "rho": self.rho, "weight": self.user_weight, "clear": clear}
        reducer = None if clear else self.reducer
        found = await fed.sum(users, user_step, message, reducer=reducer, at=number, quorum=len(users))
        replies = dict(zip(found.senders.names, found["reply"], strict=True)) if clear else {}
        if self.observe is not None:
            single = {name: part.value for name, part in replies.items()}
            sums = {} if clear else {"A": found["A"], "B": found["B"]}
            self.observe(ServerView(number, state["items"], single, sums))
        state = self._absorbed(state, found.value, replies)
        fresh = self._minimised(state["items"], state["A"], state["B"])
        moved = self.rho * float(np.sqrt(max(np.trace(state["A"]), 0.0)) * np.linalg.norm(fresh - state["items"]))
        facts = {"primal": float(found["gap"]) ** 0.5, "dual": moved, "objective": state["facts"]["objective"]}
        norms = state["norms"]
        if len(users) == len(fed.parties):
            norms = float(found["norm"])
            facts["objective"] = float(found["fit"]) + self.user_weight * norms + self.item_weight * nuclear_norm(state["items"])  # fmt: skip
        done = bool(max(facts["primal"], moved) < self.tolerance)
        return {**state, "items": fresh, "round": number, "done": done, "norms": norms, "facts": facts}

    def _absorbed(self, state: Tree, value: Tree, replies: Tree) -> Tree:
        """Return ``A`` and ``B`` with this round's replies: sums of changes, or of the last reply of every user."""
        if not replies:
            return {**state, "A": state["A"] + value["A"], "B": state["B"] + value["B"]}
        users = {**state["users"], **{name: part.value for name, part in replies.items()}}
        profiles = np.array([users[name]["u"] for name in sorted(users)])
        messages = np.array([users[name]["message"] for name in sorted(users)])
        return {**state, "users": users, "A": profiles.T @ profiles, "B": messages.T @ profiles}

    def _minimised(self, items: Array, square: Array, cross: Array) -> Array:
        """Return ``inner`` proximal gradient steps on ``item_weight ||V||_* + (rho/2) <V A, V> - <B, V>``."""
        top = self.rho * float(np.linalg.norm(square, 2))
        if top == 0.0:
            return items
        for _ in range(self.inner):
            items = svt(items - (self.rho * items @ square - cross) / top, self.item_weight / top)
        return items
