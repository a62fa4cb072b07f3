"""FedNL (Safaryan, Islamov, Qian, Richtárik 2022): the server learns the Hessian from compressed corrections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Parts, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Stage
from atoll.learn.algorithm import Algorithm, Compressing, Gradient, LocalWork, Phased, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.learn.curvature import Form, hessian, inverse_floored, pick, ravel, restore, shorten, step_params
from atoll.stages import Threshold

from .newton_type import NewtonType

__all__ = ["FedNL"]


@dataclass(frozen=True, kw_only=True)
class FedNL(NewtonType, Phased, Compressing, Stateful):
    """Each client keeps an estimate ``E_k`` of its Hessian and sends ``S_k = rate C(H_k - E_k)``; both sides add it.

    A client also keeps ``b_k = grad F_k(w_k) - E_k w_k`` at the model ``w_k`` of its last contact, and sends the change of ``b_k``. The server keeps the
    means over the clients that it has met, by examples, ``E = mean E_k`` and ``b = mean b_k``. So it knows ``g = b + E w``, the
    mean of ``grad F_k(w_k) + E_k (w - w_k)``. With all clients, this is the gradient; with a sampled cohort, it is a prediction from the last contacts,
    with an error that vanishes with the distance of ``w`` from the ``w_k``. For any participation, the fixed point is the optimum. The server steps
    ``w <- w - lr [E]_mu^-1 g`` (option 1, eigenvalues raised to ``mu``) or ``w <- w - lr (E + l I)^-1 g`` (option 2) with ``l = mean ||E_k - H_k||_F`` of
    the error after the correction, so that ``E + l I`` is never below the Hessian if all clients take part.

    This is FedNL-PP, the paper's Algorithm 2, which with all clients is FedNL (Algorithm 1, whose printed step uses ``E`` and ``l`` from before
    the round's correction). It differs in one place: the paper predicts gradients with ``E_k + l_k I`` instead of ``E_k``, and has only option 2.
    If the server starts with whole Hessians, this is the same on quadratics; from zero, ``E_k`` predicts better (on the survey's
    quadratics with five of ten clients, rank 1 and option 2, after 25 rounds 7e-6 of a gap of 32 is left, and with ``E_k + l_k I`` 0.01).

    In a client's first contact, whenever that is, ``E_k`` becomes its whole Hessian (``begin="exact"``). While some clients have not been
    met, rounds with compressed corrections have an extra phase ``"join"`` for this; clients met before send only an empty frame in it.
    With ``begin="zero"``, all clients start at zero. Option 1 then divides by ``mu`` in unknown directions, and may move far away before it returns.

    Up: ``d`` floats, three numbers and a correction: ``(d+1) count`` floats for ``"rank"``, ``count`` floats and positions for ``"top"``,
    ``d(d+1)/2`` for ``"full"``. Compressed corrections are single replies, so a secure reducer needs ``"full"``. Clients keep ``d^2 + d + 2``
    floats and compute ``d`` Hessian-vector products per round: too heavy for small devices. The server keeps sums of changes, like SCAFFOLD's
    control variates: what one of the training's own lossy stages removes from them is lost for good, unless it is in ``ErrorFeedback``. If the
    population's number of examples is unknown, the share of the clients replaces it.

    Attributes:
        compressor: ``"rank"``, ``"top"`` or ``"full"``.
        count: the rank, or number of entries kept of the upper triangle.
        rate: share ``a`` of the correction to learn, in (0, 1].
        option: 1 or 2.
        mu: smallest eigenvalue of option 1: a lower bound of the Hessian's, such as the weight of an l2 penalty.
        begin: ``"exact"`` or ``"zero"``.
        most: the largest accepted number of parameters.
    """

    compressor: Form = "rank"
    count: int = 1
    rate: float = 1.0
    option: int = 1
    mu: float = 1e-3
    begin: str = "exact"
    most: int = 1000
    phases: ClassVar[tuple[str, ...]] = ("begin", "join", "train")
    citation: ClassVar[str] = (
        "Safaryan, Islamov, Qian, Richtárik. FedNL: Making Newton-Type Methods Applicable to Federated Learning. ICML 2022."
    )
    card: ClassVar[Card] = Card(
        family="second order", unbiased=True, note="For convex losses with few parameters.", example={"begin": "zero"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("compressor", ("rank", "top", "full")), ("option", (1, 2)), ("begin", ("exact", "zero"))):
            if getattr(self, name) not in known:
                remedy = f"use one of {', '.join(map(str, known))}"
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="FedNL", remedy=remedy)
        self._check("count", self.count >= 1, "use a rank, or a number of entries, of at least 1")
        self._check("rate", 0.0 < self.rate <= 1.0, "use a share above 0 and at most 1")
        self._check("mu", self.mu > 0, "use a positive smallest eigenvalue")
        self._check("most", self.most >= 1, "accept at least 1 parameter")
        object.__setattr__(self, "phases", ("begin", "join", "train") if self._short else ("train",))

    @property
    def _short(self) -> bool:
        """Whether a whole Hessian is larger than a correction, and needs its own exchange."""
        return self.begin == "exact" and self.compressor != "full"

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return one exchange; one more for the whole Hessians of new clients, while there may be some."""
        if state["cold"]:
            return ("begin",)
        return ("join", "train") if self._short and state["met"] < 1.0 - 1e-9 else ("train",)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the normal pass, or the one for whole Hessians."""
        return (self,) if phase == "train" else (replace(self, compressor="full", rate=1.0),)

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply a stage that does not send the zeros of clients met before."""
        return (Threshold(0.0),) if phase == "join" else ()

    def init(self, params: Tree) -> Tree:
        """Start with the model, and no client met: ``E``, ``b``, ``l`` and their total weight are zero sums over the population.

        Raises:
            ConfigError: the model has too many parameters for whole Hessians.
        """
        d = T.size(params)
        if d > self.most:
            raise ConfigError(
                f"with {d} parameters, each client would form a Hessian of {d} x {d}",
                where="FedNL",
                remedy=f"use DANE or GIANT, or raise most={self.most}",
            )
        sums = {"hessian": np.zeros((d, d)), "constant": np.zeros(d), "left": 0.0, "known": 0.0}
        return {"params": params, **sums, "met": 0.0, "cold": self._short}

    def client_init(self, params: Tree) -> Tree:
        """Start with ``E_k = 0``, as a client not met."""
        flat = ravel(params)
        d, kind = len(flat), flat.dtype
        zero = {"hessian": (d, d), "constant": (d,), "left": (), "met": ()}
        return {name: np.zeros(shape, dtype=kind) for name, shape in zero.items()}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model, and whether only new clients are asked."""
        sent = {"params": state["params"]}
        return {**sent, "joining": 1.0} if phase == "join" else sent

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model; the step computes gradient and Hessian."""
        params = broadcast["params"]
        return {"params": params, "gradient": T.zeros_like(params), "hessian": client["hessian"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Compute the gradient and the Hessian."""
        params = local["params"]
        gradient = grad(params)
        flat = ravel(params)
        rows = T.namespace(flat).diag(flat * 0 + 1)
        found = hessian(lambda vectors: grad.hvps(params, vectors), params, rows)
        return {"params": params, "gradient": gradient, "hessian": 0.5 * (found + found.T)}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Send the correction and the changes of ``b_k`` and ``l_k``, and learn them. A client not asked changes nothing."""
        met, held = client["met"], client["hessian"]
        new = 1.0 - met
        # A client that missed the phase for new clients waits for the next one.
        asked = new if "joining" in broadcast else met if self._short else new * 0.0 + 1.0
        rate = new + self.rate * met if self.begin == "exact" else new * 0.0 + self.rate
        short = shorten(local["hessian"] - held, self.compressor, self.count)
        short = {name: leaf if name in ("axes", "places") else leaf * (rate * asked) for name, leaf in short.items()}
        held = held + restore(short, held.shape[-1])
        constant = ravel(local["gradient"]) - held @ ravel(local["params"])
        found = {"constant": constant, "left": T.norm(held - local["hessian"])}
        change = {name: (value - client[name]) * asked for name, value in found.items()}
        kept = {name: pick(asked > 0, value, client[name]) for name, value in found.items()}
        came = new * asked
        return {
            "change": Sum(T.scale(change, work.examples)),
            "met": Sum(
                {"clients": came, "known": came * work.examples}, role="side"
            ),  # counts, which no stage may change
            "correction": Sum(T.scale(short, work.examples)) if "upper" in short else Parts(short, work.examples),
        }, {"hessian": held, **kept, "met": met + came}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Add up the changes, then step; once per round."""
        d, share = len(state["hessian"]), 1.0 / (info.weight or info.population)
        met, changes = sums["met"], {**sums["change"], "hessian": _total(sums["correction"], d)}
        changes["known"] = met["known"]
        now = {name: state[name] + share * np.asarray(value, dtype=np.float64)[()] for name, value in changes.items()}
        now = {name: float(value) if np.ndim(value) == 0 else value for name, value in now.items()}
        state = {**state, **now, "met": state["met"] + float(met["clients"]) / info.population, "cold": False}
        if phase == "join" or not state["known"] > 0:
            return state
        estimate, constant, left = (state[name] / state["known"] for name in ("hessian", "constant", "left"))
        gradient = constant + estimate @ ravel(state["params"]).astype(np.float64)
        if self.option == 1:
            toward = inverse_floored(estimate, gradient, self.mu)
        else:
            toward = np.linalg.solve(estimate + max(left, 1e-12) * np.eye(d), gradient)
        return {**state, "params": step_params(state["params"], self.lr * toward)}


def _total(correction: Any, d: int) -> Any:
    """Return ``sum n_k S_k``."""
    if not isinstance(correction, list):
        return restore(correction, d)
    return sum(part.weight * restore(part.value, d) for part in correction)
