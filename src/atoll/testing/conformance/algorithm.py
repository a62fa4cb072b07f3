"""What every learning algorithm must do, whatever it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Totals, merge_totals
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.facets import facet
from atoll.learn.algorithm import Phased

from .laws import require, same

if TYPE_CHECKING:
    from atoll.learn.algorithm import Algorithm

__all__ = ["check_algorithm"]

_CLIENTS = 5


def check_algorithm(algorithm: Algorithm, *, rounds: int = 3, descends: bool = True, seed: int = 0) -> None:
    """Require an algorithm to keep the contract of ``Algorithm``, on a small least-squares problem over five clients.

    * Its state holds ``"params"``, and every broadcast does; both are messages.
    * A reply is a dict of aggregates; shapes and dtypes of parameters stay what they are, for float32 and float64.
    * It is pure: it changes none of its inputs, and the same input gives the same output.
    * It is resumable: from its encoded and decoded state it reaches the same next state to the bit.
    * It continues when only some of the clients reply, unless its card says that it needs everyone.
    * ``descends``: the loss is smaller after ``rounds`` than before.

    Args:
        algorithm: the algorithm, with settings that suit losses of curvature about 1.
        rounds: how many rounds to run.
        descends: whether the loss must fall.
        seed: of the problem and the mini-batches.

    Raises:
        AssertionError: it breaks the contract.
    """
    for dtype in (np.float32, np.float64):
        problem = _Problem(algorithm, seed, dtype)
        first = last = problem.start()
        for number in range(1, rounds + 1):
            some = number == 2 and not algorithm.card.everyone
            last = problem.round(last, number, 3 if some else _CLIENTS)
        before, after = problem.loss(first["params"]), problem.loss(last["params"])
        require(not descends or after < before, f"{problem.name}: the loss went from {before:g} to {after:g}")


class _Problem:
    """Least squares over a few clients of different sizes."""

    def __init__(self, algorithm: Algorithm, seed: int, dtype: Any) -> None:
        self.algorithm = algorithm
        self.name = f"{type(algorithm).__name__} with {np.dtype(dtype).name}"
        self.dtype = dtype
        self.rng = Rng.of(seed)
        draw = self.rng.child("data").generator()
        truth = draw.normal(size=(3, 2))
        self.data = []
        for i in range(_CLIENTS):
            x = draw.normal(size=(6 + 3 * i, 3))
            self.data.append((x.astype(dtype), (x @ truth + 0.1 * draw.normal(size=(len(x), 2))).astype(dtype)))
        self.clients: dict[int, Tree] = {}

    def start(self) -> Tree:
        params = {"weight": np.zeros((3, 2), self.dtype), "bias": np.zeros(2, self.dtype)}
        state = self.algorithm.init(params)
        require(isinstance(state, dict) and "params" in state, f"{self.name}: init gives no state with 'params'")
        self._fits(state["params"], "init")
        self.clients = dict.fromkeys(range(_CLIENTS))
        return state

    def _fits(self, params: Tree, where: str) -> None:
        wanted = {"weight": (3, 2), "bias": (2,)}
        require(set(params) == set(wanted), f"{self.name}: {where} leaves parameters {sorted(params)}")
        for name, shape in wanted.items():
            leaf = params[name]
            require(np.shape(leaf) == shape, f"{self.name}: {where} gives {name} the shape {np.shape(leaf)}")
            require(leaf.dtype == self.dtype, f"{self.name}: {where} makes {name} {leaf.dtype}")
            require(np.isfinite(leaf).all(), f"{self.name}: {where} makes {name} not finite")

    def gradient(self, params: Tree, x: Any, y: Any) -> tuple[float, Tree]:
        off = x @ params["weight"] + params["bias"] - y
        scale = self.dtype(1.0 / len(x))
        return float((off**2).sum() / (2 * len(x))), {"weight": x.T @ off * scale, "bias": off.sum(axis=0) * scale}

    def curvature(self, params: Tree, x: Any, y: Any, vector: Tree) -> Tree:
        del params, y
        turn, scale = x @ vector["weight"] + vector["bias"], self.dtype(1.0 / len(x))
        return {"weight": x.T @ turn * scale, "bias": turn.sum(axis=0) * scale}

    def loss(self, params: Tree) -> float:
        rows = [(self.gradient(params, x, y)[0], len(x)) for x, y in self.data]
        return sum(loss * n for loss, n in rows) / sum(n for _, n in rows)

    def round(self, state: Tree, number: int, replied: int) -> Tree:
        """Run one round twice: from the state, and from what a checkpoint would restore."""
        kept = M.encode({"state": state, "clients": {str(i): c for i, c in self.clients.items()}})
        again = M.decode(kept, copy=True)
        other = {int(i): c for i, c in again["clients"].items()}
        ours, clients = self._once(state, dict(self.clients), number, replied)
        theirs, others = self._once(again["state"], other, number, replied)
        same(ours, theirs, f"{self.name}: round {number} from a checkpoint")
        for i, client in clients.items():
            same(client, others[i], f"{self.name}: state of client {i} after round {number} from a checkpoint")
        unchanged = M.encode({"state": state, "clients": {str(i): c for i, c in self.clients.items()}})
        require(unchanged == kept, f"{self.name}: round {number} changes what it was given")
        self.clients = clients
        return ours

    def _once(self, state: Tree, clients: dict[int, Tree], number: int, replied: int) -> tuple[Tree, dict[int, Tree]]:
        from atoll.learn.algorithm import RoundInfo
        from atoll.learn.local.update import local_contact

        for phase in self.algorithm.plan(state):
            if not facet(self.algorithm, Phased).wanted(state, phase):
                continue
            broadcast = self.algorithm.broadcast(state, phase)
            require("params" in broadcast, f"{self.name}: the broadcast of phase {phase!r} holds no 'params'")
            M.encode(broadcast)
            totals: list[Totals] = []
            for i, (x, y) in list(enumerate(self.data))[:replied]:
                key = self.rng.child(number, phase, i).key
                reply, kept, _ = local_contact(
                    self.algorithm, phase, self.gradient, broadcast, clients[i], x, y, key, self.curvature
                )
                clients[i] = clients[i] if kept is None else kept
                self._is_reply(reply, phase)
                totals.append({name: aggregate.total() for name, aggregate in reply.items()})
            sums = {name: total.result() for name, total in merge_totals(totals).items()}
            info = RoundInfo(number, _CLIENTS, replied, _CLIENTS, rng=self.rng.child("server", number))
            state = self.algorithm.fold(state, sums, info, phase)
            self._fits(state["params"], f"the fold of phase {phase!r}")
        info = RoundInfo(number, _CLIENTS, replied, _CLIENTS, rng=self.rng.child("server", number))
        return facet(self.algorithm, Phased).advance(state, info), clients

    def _is_reply(self, reply: Any, phase: str) -> None:
        right = isinstance(reply, dict) and reply and all(isinstance(v, Aggregate) for v in reply.values())
        if not right:
            raise AssertionError(f"{self.name}: the reply of phase {phase!r} is not a dict of aggregates: {reply!r}")
        for name, aggregate in reply.items():
            for path, leaf in T.items(aggregate.value):
                kept = (
                    not hasattr(leaf, "dtype")
                    or leaf.dtype.kind != "f"
                    or leaf.dtype == self.dtype
                    or np.ndim(leaf) == 0
                )
                require(kept, f"{self.name}: {name}/{path} of the reply is {getattr(leaf, 'dtype', None)}")
