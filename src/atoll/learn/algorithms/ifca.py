"""IFCA (Ghosh et al. 2020): several models; every client trains the one that fits its data best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Parts, Sum
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet

from ..algorithm import Algorithm, Gradient, LocalWork, Movable, Phased, RoundInfo, Stateful
from ..card import Card
from ..wrapped import Wrapped

__all__ = ["IFCA"]


@dataclass(frozen=True, kw_only=True)
class IFCA(Wrapped, Stateful, Movable):
    """``clusters`` servers of the base algorithm. A client receives all models, picks ``argmin_j F_k(w_j)`` on its own data, and does the base's work on it.

    The server folds the replies of each cluster into that cluster's state. Replies have one aggregate per cluster, zero in those not chosen,
    so that they add up and can be summed securely: up and down are ``clusters`` models each. The server coordinates it, although
    some tables list it elsewhere. The state's ``params`` is the first model; measure a client's own with ``Evaluation(personal=True)``.

    Attributes:
        clusters: number of models.
        spread: standard deviation of the initial difference between models.
        seed: seed of the initial differences.
    """

    clusters: int = 2
    spread: float = 0.1
    seed: int = 0
    citation: ClassVar[str] = (
        "Ghosh, Chung, Yin, Ramchandran. An Efficient Framework for Clustered Federated Learning. NeurIPS 2020."
    )
    card: ClassVar[Card] = Card(family="wrapper", note="It finds clusters of clients. Its models must start apart.")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "citation", type(self).citation)
        inner = self.base.card
        object.__setattr__(self, "card", type(self).card)
        object.__setattr__(self, "extrapolates", ("params", "models"))
        if inner.everyone or inner.family == "admm":
            raise CompositionError(
                f"{type(self.base).__name__} balances its corrections over the whole population, but a cluster is only part of it",
                where="IFCA.base",
                remedy="use a base such as FedAvg(), FedProx() or FedNova()",
            )
        if self.clusters < 2:
            raise ConfigError(f"clusters={self.clusters}", where="IFCA", remedy="use at least 2")
        if not 0 < self.spread < math.inf:
            raise ConfigError(
                f"spread={self.spread}", where="IFCA", remedy="use a positive number: equal models stay equal"
            )

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the choice in the first phase, by the loss on all of the client's rows; then the base's passes."""
        own = tuple(replace(self, base=part) for part in facet(self.base, Phased).passes(phase))
        return (_Choice(ifca=self), *own) if phase == self.base.phases[0] else own

    def init(self, params: Tree) -> Tree:
        """Start with a server's state for each cluster."""
        draw = Rng.of(self.seed).child("ifca").generator()
        models = []
        for _ in range(self.clusters):
            apart = T.map(lambda leaf: leaf + (self.spread * draw.normal(size=leaf.shape)).astype(leaf.dtype), params)
            models.append(self.base.init(apart))
        return self._state(models)

    def _state(self, models: list[Tree]) -> Tree:
        """Return the clusters' states: what moves with the model separately, because an outer wrapper may move it, and the rest."""
        names = [name for name in facet(self.base, Movable).extrapolates if name not in facet(self.base, Movable).tied]
        parts = [{name: own[name] for name in names if name in own} for own in models]
        rest = [{name: value for name, value in own.items() if name not in names} for own in models]
        return {"params": models[0]["params"], "models": parts, "rest": rest}

    def _models(self, state: Tree) -> list[Tree]:
        """Return the clusters' states, each as the base knows it."""
        return [{**part, **rest} for part, rest in zip(state["models"], state["rest"], strict=True)]

    def client_init(self, params: Tree) -> Tree:
        """Start with no choice yet."""
        return self._keep_state(
            _unchosen(params, self.clusters), facet(self.base, Stateful).client_init(params), params
        )

    def _keep_state(self, choice: Any, client: Tree, model: Tree) -> Tree:
        """Return a client's state; without the base's if that keeps none."""
        return {"choice": choice, "model": model, **({} if client is None else {"client": client})}

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return the base's plan, from the first cluster's state."""
        return self.base.plan(self._models(state)[0])

    def wanted(self, state: Tree, phase: str) -> bool:
        """Return whether some cluster needs the phase."""
        return any(facet(self.base, Phased).wanted(own, phase) for own in self._models(state))

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the base's broadcast for every cluster: the first directly, the others as further entries."""
        first, *others = [self.base.broadcast(own, phase) for own in self._models(state)]
        return {**first, "others": others}

    def chosen(self, broadcast: Tree, choice: Any) -> Tree:
        """Return the broadcast of the chosen cluster."""
        first = {name: value for name, value in broadcast.items() if name != "others"}
        for j, other in enumerate(broadcast["others"], start=1):
            first = T.map(lambda a, b, j=j: _either(choice[j], b, a), first, other)
        return first

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state on the chosen model, and the choice."""
        sent = self.chosen(broadcast, client["choice"])
        return {**self.base.start(sent, client.get("client")), "choice": client["choice"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return the base's direction."""
        toward, after = self.base.direction(local, grad, self.chosen(broadcast, local["choice"]))
        return toward, {**after, "choice": local["choice"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step."""
        return {**self.base.step(local, grad, self.chosen(broadcast, local["choice"])), "choice": local["choice"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply in the chosen cluster's place, and zeros in the others'."""
        choice = client["choice"]
        reply, kept = self.base.finish(local, self.chosen(broadcast, choice), client.get("client"), work)
        placed: dict[str, Aggregate] = {"chosen": Sum(choice, role="side")}
        for name, aggregate in reply.items():
            for j in range(self.clusters):
                placed[f"{j}/{name}"] = _place_choice(aggregate, choice[j])
        return placed, self._keep_state(choice, kept, local["params"])

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold each cluster's own replies; a cluster that no client chose stays unchanged."""
        models = []
        for j, own in enumerate(self._models(state)):
            replied = round(float(sums["chosen"][j]))
            mine = {name.partition("/")[2]: value for name, value in sums.items() if name.startswith(f"{j}/")}
            told = replace(info, replied=replied)
            models.append(self.base.fold(own, mine, told, phase) if replied else own)
        return {**state, **self._state(models)}

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance each cluster as the base does."""
        return {**state, **self._state([facet(self.base, Phased).advance(own, info) for own in self._models(state)])}

    def moved(self, state: Tree) -> Tree:
        """Update each cluster's state as the base does."""
        return {**state, **self._state([facet(self.base, Movable).moved(own) for own in self._models(state)])}

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the client's model after its last training; the first cluster's before that."""
        return params if client is None else client["model"]


@dataclass(frozen=True, kw_only=True)
class _Choice(Algorithm, Stateful):
    """One evaluation of all models on all of the client's rows; marks the best model, the first of equals, with a 1."""

    ifca: IFCA
    batch_size: int | None = None
    steps: int | None = 1

    def client_init(self, params: Tree) -> Tree:
        """Start with the clustered algorithm's client state."""
        return self.ifca.client_init(params)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with no losses yet."""
        return {"params": broadcast["params"], "losses": client["choice"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Compute the losses."""
        models = [broadcast["params"], *(other["params"] for other in broadcast["others"])]
        return {**local, "losses": T.stack([grad.loss(model) for model in models])}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the choice; a client without rows chooses the first."""
        losses = local["losses"]
        best = 1.0 * (losses == losses.min())
        first = best * (best.cumsum(0) == 1.0)
        return {"none": Sum(first, role="side")}, {
            **client,
            "choice": 0 * client["choice"] + _of(first, client["choice"]),
        }


def _unchosen(params: Tree, clusters: int) -> Any:
    """Return zeros, one per cluster, in the parameters' dtype."""
    leaf = T.leaves(params)[0]
    return T.zeros_like(T.stack([leaf.reshape(-1)[:1].sum()] * clusters))


def _of(value: Any, like: Any) -> Any:
    """Return the value in the other's dtype, in any library."""
    return value.astype(like.dtype) if hasattr(value, "astype") else value.to(like.dtype)


def _either(choice: Any, there: Any, otherwise: Any) -> Any:
    """Return one of two leaves, in their own dtype; plain numbers are the same for all clusters."""
    if not hasattr(otherwise, "dtype") or otherwise.ndim == 0:
        return otherwise
    return T.where(choice > 0.5, there, otherwise)


def _place_choice(aggregate: Aggregate, chosen: Any) -> Aggregate:
    """Return an aggregate that counts only if it was chosen."""
    if isinstance(aggregate, Mean):
        return replace(aggregate, examples=aggregate.examples * chosen)
    if isinstance(aggregate, Parts):
        raise CompositionError(
            "IFCA adds up the replies of a cluster, but its base sends single replies",
            where="IFCA.base",
            remedy="use a base with replies that add up, such as FedAvg()",
        )
    return aggregate.with_value(T.map(lambda leaf: T.where(chosen > 0.5, leaf, T.zeros_like(leaf)), aggregate.value))
