"""Matrix factorisation by ADMM, whose item vectors are shared and user vectors are not, and what a server could read of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Parts, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.federation.federation import Federation
from atoll.core.federation.reducer import Reducer, Reduction
from atoll.core.redaction import private
from atoll.core.requests.chain import Chain
from atoll.core.requests.party import Parties
from atoll.core.requests.request import Reduced
from atoll.core.requests.results import Terms
from atoll.core.requests.task import Task, task
from atoll.data.missing import known_rows
from atoll.learn.card import Card
from atoll.learn.checks import require_choice, require_count, require_positive
from atoll.learn.proximal import nuclear_norm, svt

__all__ = [
    "MatrixFactorisation",
    "SumsOnly",
    "group_lasso_row",
    "rating_step",
    "ratings_from_messages",
    "ratings_from_sums",
]


@dataclass(frozen=True)
class SumsOnly(Reducer):
    """Adds up as the plain reducer does, but passes on no single reply. It models secure aggregation in a simulation and provides none itself.

    Attributes:
        least: smallest number of replies in a sum, so that it does not reveal too much about one party; at least 2.
    """

    least: int = 2
    secure: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.least < 2:
            raise ConfigError(
                f"least={self.least}", where="SumsOnly", remedy="use at least 2: a sum of one reply is that reply"
            )

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse cohorts of fewer parties.

        Raises:
            CompositionError: there are too few parties, or stages with encodings that cannot be added up.
        """
        super().check(uplink, parties, terms, task)
        self._require(len(parties), "are asked")

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Return the sum.

        Raises:
            CompositionError: there are too few replies, or they contain single replies.
        """
        found = await reduction.fold()
        self._require(len(found.senders), "replied")
        if any(total.kind == "parts" for total in found.totals.values()):
            raise CompositionError(
                "a reply contains parts", where="SumsOnly", remedy="reply with Sum or Mean, or use the plain reducer"
            )
        return found

    def _require(self, count: int, what: str) -> None:
        if count < self.least:
            raise CompositionError(
                f"{count} parties {what}, but a sum needs {self.least}",
                where="SumsOnly",
                remedy="use larger cohorts: a sum of one reply is that reply",
            )


# ---------------------------------------------------------------- a user's computation in the matrix factorisation


Array = np.ndarray[Any, np.dtype[Any]]


def rating_step(ratings: Array, mask: Array, predicted: Array, dual: Array, rho: float) -> Array:
    """Return ``x = (2 m r + rho u V^T - pi) / (2 m + rho)``, entry by entry: the minimiser over ``x`` of ``||m (x - r)||^2 + <pi, x> + (rho/2) ||x - u V^T||^2``.

    Args:
        ratings: ``r``, ``(items,)``.
        mask: ``m``, 1 for rated items.
        predicted: ``u V^T``.
        dual: ``pi``.
        rho: the penalty.
    """
    return np.asarray((2.0 * mask * ratings + rho * predicted - dual) / (2.0 * mask + rho))


def group_lasso_row(items: Array, target: Array, rho: float, weight: float) -> Array:
    """Return ``argmin_u weight ||u||_2 + (rho/2) ||c - u V^T||^2``, exact.

    ``u = 0`` if ``rho ||c V|| <= weight``. Otherwise with ``rho V^T V = Q diag(w) Q^T`` and ``b = Q^T (rho V^T c)`` the norm ``t = ||u||`` solves
    ``||b / (w t + weight)|| = 1``. Its left side decreases, so bisection finds ``t`` to the last bit. ``u = Q (t b / (w t + weight))``.

    Args:
        items: ``V``, ``(items, rank)``.
        target: ``c``, ``(items,)``.
        rho: the penalty.
        weight: weight of the norm.
    """
    pull = rho * (target @ items)
    if np.linalg.norm(pull) <= weight:
        return np.zeros(items.shape[1])
    values, turn = np.linalg.eigh(rho * items.T @ items)
    values, b = np.maximum(values, 0.0), turn.T @ pull
    if weight == 0:
        keep = values > values.max() * 1e-13
        return np.asarray(turn @ np.where(keep, b / np.where(keep, values, 1.0), 0.0))
    high = _root(values, b, weight)
    return np.asarray(turn @ (high * b / (values * high + weight)))


def _root(values: Array, b: Array, weight: float) -> float:
    """Return the ``t`` of ``group_lasso_row``."""

    def below(t: float) -> bool:
        ratio = b / (values * t + weight)
        return math.sqrt(ratio @ ratio) > 1.0  # a norm, computed sixty times per user: without NumPy's overhead

    low, high = 0.0, 1.0
    while below(high):
        low, high = high, 2.0 * high
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if below(middle) else (low, middle)
    return high


@task
def user_step(island: Any, message: Tree) -> dict[str, Aggregate]:
    """Update ``x``, ``u`` and ``pi``, in this order, with the item profiles ``V`` of the message.

    In clear form, the reply is ``(rho x + pi, u)``, as in the paper; in aggregate form, the change of ``A_i = u^T u`` and ``B_i = (rho x + pi)^T u``.
    """
    items, rho, weight = message["items"], message["rho"], message["weight"]
    ratings, mask = _read_ratings(island, len(items))
    state = island.state or _fresh(*items.shape)
    x = rating_step(ratings, mask, items @ state["u"], state["dual"], rho)
    u = group_lasso_row(items, x + state["dual"] / rho, rho, weight)
    gap = x - items @ u
    dual = state["dual"] + rho * gap
    sent = rho * x + dual
    square, cross = np.outer(u, u), np.outer(sent, u)
    island.state = {"u": u, "dual": dual, "square": square, "cross": cross}
    values = {
        "fit": (mask * (items @ u - ratings) ** 2).sum(),
        "norm": np.linalg.norm(u),
        "gap": gap @ gap,
        "dual": dual @ dual,
    }
    metrics = {name: Sum(np.float64(value), role="metric") for name, value in values.items()}
    if message["clear"]:
        return {"reply": Parts({"message": sent, "u": u}), **metrics}
    return {"A": Sum(square - state["square"]), "B": Sum(cross - state["cross"]), **metrics}


def _fresh(items: int, rank: int) -> dict[str, Array]:
    zeros = np.zeros
    return {"u": zeros(rank), "dual": zeros(items), "square": zeros((rank, rank)), "cross": zeros((items, rank))}


def _read_ratings(island: Any, items: int) -> tuple[Array, Array]:
    """Return the ratings and the mask of a user: rows ``(item, rating)``, or all items in order.

    Raises:
        DataError: an item is unknown, or rated twice.
    """
    data = known_rows(island.data, "MatrixFactorisation")
    x, y = np.asarray(data.x), np.asarray(data.y, np.float64)
    at = np.reshape(x, (len(y), -1))[:, 0].astype(np.int64)
    if len(at) and (at.min() < 0 or at.max() >= items):
        raise DataError(
            f"{island.name} rates item {private(int(at.max() if at.max() >= items else at.min()))} of {items}",
            where="MatrixFactorisation.items",
            remedy=f"number items 0 to {items - 1}, or raise items",
        )
    if len(np.unique(at)) < len(at):
        raise DataError(f"{island.name} rates an item twice", where="ratings", remedy="keep one rating per item")
    ratings, mask = np.zeros(items), np.zeros(items)
    ratings[at], mask[at] = y, 1.0
    return ratings, mask


# ---------------------------------------------------------------- 3-block decentralised ADMM for matrix factorisation


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
    (`ratings_from_messages`). ``form="aggregate"``, the default, sends the change of ``(A_i, B_i)`` to a reducer that reveals sums: the same iterates,
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
        state = self._absorb_replies(state, found.value, replies)
        fresh = self._minimise_items(state["items"], state["A"], state["B"])
        moved = self.rho * float(np.sqrt(max(np.trace(state["A"]), 0.0)) * np.linalg.norm(fresh - state["items"]))
        facts = {"primal": float(found["gap"]) ** 0.5, "dual": moved, "objective": state["facts"]["objective"]}
        norms = state["norms"]
        if len(users) == len(fed.parties):
            norms = float(found["norm"])
            facts["objective"] = float(found["fit"]) + self.user_weight * norms + self.item_weight * nuclear_norm(state["items"])  # fmt: skip
        done = bool(max(facts["primal"], moved) < self.tolerance)
        return {**state, "items": fresh, "round": number, "done": done, "norms": norms, "facts": facts}

    def _absorb_replies(self, state: Tree, value: Tree, replies: Tree) -> Tree:
        """Return ``A`` and ``B`` with this round's replies: sums of changes, or of the last reply of every user."""
        if not replies:
            return {**state, "A": state["A"] + value["A"], "B": state["B"] + value["B"]}
        users = {**state["users"], **{name: part.value for name, part in replies.items()}}
        profiles = np.array([users[name]["u"] for name in sorted(users)])
        messages = np.array([users[name]["message"] for name in sorted(users)])
        return {**state, "users": users, "A": profiles.T @ profiles, "B": messages.T @ profiles}

    def _minimise_items(self, items: Array, square: Array, cross: Array) -> Array:
        """Return ``inner`` proximal gradient steps on ``item_weight ||V||_* + (rho/2) <V A, V> - <B, V>``."""
        top = self.rho * float(np.linalg.norm(square, 2))
        if top == 0.0:
            return items
        for _ in range(self.inner):
            items = svt(items - (self.rho * items @ square - cross) / top, self.item_weight / top)
        return items


# ---------------------------------------------------------------- rating recovery


def ratings_from_messages(views: Sequence[ServerView], rho: float) -> dict[str, Array]:
    """Return every user's ratings from the clear protocol, exactly: two views of a user are enough.

    The ``x``-step is ``2 m (x - r) + rho (x - u_old V^T) + pi_old = 0``, the message ``s = rho x + pi`` and ``pi = pi_old + rho (x - u V^T)``. So
    ``2 m (r - x) = rho (u - u_old) V^T + pi`` where everything on the right except ``pi`` is known, and ``pi`` follows from ``pi_old`` and ``s``:
    ``2 rho x = s - pi_old + rho u V^T``. ``pi`` starts at zero. The right side vanishes for items not rated, so the server also reads the mask.

    Args:
        views: the server's views of all rounds, in order, from the first.
        rho: the penalty, which every party knows.

    Returns:
        User -> ratings ``(items,)``, with NaN for items not rated.
    """
    dual: dict[str, Array] = {}
    profile: dict[str, Array] = {}
    found: dict[str, Array] = {}
    for view in views:
        for name, reply in view.replies.items():
            old, before = dual.get(name, np.zeros(len(view.items))), profile.get(name, np.zeros(view.items.shape[1]))
            predicted = view.items @ reply["u"]
            x = (reply["message"] - old + rho * predicted) / (2.0 * rho)
            dual[name], profile[name] = reply["message"] - rho * x, reply["u"]
            slope = old + rho * (x - view.items @ before)  # 2 m (r - x)
            rated = np.abs(slope) > 1e-9 * (1.0 + np.abs(rho * x))
            found[name] = np.where(rated, x + 0.5 * slope, found.get(name, np.full(len(x), np.nan)))
    return found


def ratings_from_sums(views: Sequence[ServerView], rho: float, names: Sequence[str]) -> dict[str, Array]:
    """Return the best guess from sums: the cohort's change of ``(A, B)`` treated as if it came from one user.

    ``B = s^T u`` has rank 1 for one user. Its singular vectors then give ``s`` and ``u`` up to a sign, and the clear attack continues from there. For two
    users or more, it gives a mixture, the same for all.

    Args:
        views: the server's views of all rounds, in order, from the first.
        rho: the penalty.
        names: names of the users.
    """
    guesses: list[ServerView] = []
    square, cross = np.zeros_like(views[0].sums["A"]), np.zeros_like(views[0].sums["B"])
    for view in views:
        square, cross = square + view.sums["A"], cross + view.sums["B"]
        values, turn = np.linalg.eigh(square)
        u = turn[:, -1] * np.sqrt(max(values[-1], 0.0))
        if not u.any():
            continue
        guesses.append(ServerView(view.round, view.items, {"one": {"u": u, "message": cross @ u / (u @ u)}}, {}))
    one = ratings_from_messages(guesses, rho).get("one", np.full(len(views[0].items), np.nan))
    return dict.fromkeys(names, one)
