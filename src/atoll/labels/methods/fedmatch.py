"""FedMatch (Jeong et al. 2021): labels move one part of the model, unlabelled rows another, and similar clients' models help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Parts, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.capability import SINGLE_REPLIES, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.core.requests.stage import Stage
from atoll.learn.algorithm import (
    Algorithm,
    Compressing,
    Gradient,
    LocalWork,
    LossGradients,
    Movable,
    RoundInfo,
    Stateful,
)
from atoll.learn.card import Card
from atoll.stages import Threshold

from ..look import OneLook, looked
from ..views.base import View
from ..views.defaults import strong, weak
from .disjoint import AgreementLoss, DisjointGradient, NearestHelpers, Unlabelled, split, together
from .fixmatch import require_threshold
from .labelled_party import LabelledParty
from .supervised import SupervisedLoss

__all__ = ["FedMatch"]


@dataclass(frozen=True, kw_only=True)
class FedMatch(LabelledParty, Compressing):
    """The model is ``sigma + psi``: labelled rows move sigma alone, unlabelled rows move psi alone, so that neither overwrites the other.

    ``psi`` also agrees with ``neighbours``: models of other clients that say the most similar things of noise. It is drawn to 0 and to sigma, and small entries are dropped, so that
    clients send few: an entry's index and value for each change that counts. A client without labels leaves sigma alone and sends psi only.

    After the round, the server keeps up to ``pool`` clients' psi and sends them down, new ones every ``refresh`` rounds; each client compares their outputs with
    those of its own last model, which is private state, and takes the nearest. The authors' server compares and sends each client its own. A helper that says something
    far off is not used. If most clients of a round say so, the server forgets it. If they say so of half of the pool at most, it never takes
    another model of these clients, and names them in the round's ``outlying_clients``. **Clients see each other's models**; with ``neighbours=0`` none is kept or sent, and replies can
    be summed. A helper is the received sigma with the other client's psi.

    The algorithm inside takes its steps on both parts at once: FedProx pulls both, SCAFFOLD corrects both. With all labels and ``weight=1``, FedMatch is that algorithm to rounding.
    The weights are the authors' divided by ten, and their rate of .001 times ten or more.

    Attributes:
        neighbours: models of others that a client agrees with, the *helpers*, 0 for none.
        pool: models that the server sends to choose from, at least ``neighbours``.
        refresh: rounds between two pools.
        farthest: the largest squared distance of a helper's distributions on noise, up to 2.
        tau: how sure the model must be, a probability above ``1/C``.
        weight: of labelled rows.
        icc: of the agreement with helpers.
        agree: of the agreement with the vote on strong views.
        l1: how strongly psi is drawn to 0.
        l2: how strongly psi is drawn to sigma.
        share: psi's share of the first model; sigma has the rest.
        floor: entries of psi below it become 0 after local steps.
        least: changes of psi that are not larger are not sent.
        weak: the view of labelled rows, and for votes.
        strong: the view that must agree.
        labels_at: ``"clients"``, or ``"server"``: a party of its own moves sigma, and clients, which have no label, move psi.
        warm_up, label_steps, label_batch: the steps of that party; see `SemiFL`.
    """

    neighbours: int = 2
    pool: int = 4
    refresh: int = 10
    farthest: float = 1.0
    tau: float = 0.75
    weight: float = 1.0
    icc: float = 1e-3
    agree: float = 1e-3
    l1: float = 1e-5
    l2: float = 1.0
    share: float = 1 / 6
    floor: float = 5e-6
    least: float = 5e-5
    weak: View | None = field(default_factory=lambda: weak("images"))
    strong: View | None = field(default_factory=lambda: strong("images"))
    labels_at: str = "clients"
    citation: ClassVar[str] = (
        "Jeong, Yoon, Yang, Hwang. Federated Semi-Supervised Learning with Inter-Client Consistency & Disjoint Learning. ICLR 2021."
    )
    card: ClassVar[Card] = Card(
        family="wrapper", note="Disjoint parts for labelled and unlabelled rows; clients see models of others."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_threshold(self.tau, self.icc, "FedMatch")
        numbers = (self.weight, self.agree, self.l1, self.l2, self.floor, self.least, self.farthest)
        if self.neighbours < 0 or self.pool < self.neighbours or self.refresh < 1 or not 0 <= self.share <= 1:
            raise ConfigError(
                f"neighbours={self.neighbours}, pool={self.pool}, refresh={self.refresh}, share={self.share}",
                where="FedMatch",
                remedy="use 0 or more neighbours out of a pool that is not smaller, a refresh of 1 or more, and a share from 0 to 1",
            )
        if not all(0 <= number < np.inf for number in numbers):
            raise ConfigError(
                f"weight={self.weight}, agree={self.agree}, l1={self.l1}, l2={self.l2}, floor={self.floor}, least={self.least}, farthest={self.farthest}",
                where="FedMatch",
                remedy="use finite numbers of 0 or more",
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and single replies if clients' models help others."""
        single = Need(SINGLE_REPLIES, "shows clients' models to others, as helpers", "FedMatch(neighbours=0)")
        return (*super().needs, single) if self.neighbours else super().needs

    @property
    def losses(self) -> tuple[Any, ...]:
        """Of labelled rows, of unlabelled rows, the count of these, and the choice of helpers."""
        agreement = AgreementLoss(self.weak, self.strong, self.tau, self.icc, self.agree)
        return (SupervisedLoss(self.weak), agreement, Unlabelled(), NearestHelpers(self.neighbours, self.farthest))

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Send what is not zero."""
        return (*super().uplink(phase), Threshold(bound=0.0))

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Choose helpers in one pass, then run the base's passes; at the party with labels, run SGD."""
        if phase in self.label_phases:
            return super().passes(phase)
        return (_Choice(method=self), *super().passes(phase)) if self.neighbours else super().passes(phase)

    # ---------------------------------------------------------------- the server

    def init(self, params: Tree) -> Tree:
        """Divide the model, and start with no helpers."""
        psi = T.scale(params, self.share)
        sigma = T.sub(params, psi)
        made = self.base.init(together(sigma, psi))
        nobody = {
            "psi": T.map(lambda leaf: np.stack([np.zeros_like(leaf)] * self.pool), psi),
            "there": np.zeros(self.pool, np.float32),
        }
        none = np.full(self.pool, -1, np.int64)
        owners = {"who": none, "denied": none, "by": none, "barred": np.zeros(0, np.int64)}
        pool = {"pool": nobody, "owners": owners} if self.neighbours else {}
        return {**made, **pool, "params": params, "sigma": sigma, "psi": psi, "turn": 0}

    def _inner(self, state: Tree) -> Tree:
        """Return the state as the algorithm inside knows it."""
        rest = {name: value for name, value in state.items() if name not in ("sigma", "psi", "pool", "owners", "turn")}
        return {**rest, "params": together(state["sigma"], state["psi"])}

    def _outer(self, state: Tree, made: Tree) -> Tree:
        sigma, psi = split(made["params"])
        kept = {name: state[name] for name in ("pool", "owners", "turn") if name in state}
        return {**made, **kept, "params": T.add(sigma, psi), "sigma": sigma, "psi": psi}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model, psi, and the pool; the model alone to the party with labels."""
        if phase in self.label_phases:
            return super().broadcast(state, phase)
        sent = self.base.broadcast(self._inner(state), phase)
        if "lr" in sent:
            sent = {**sent, "lr": sent["lr"] * self.rate(state["turn"])}
        pool = {"pool": state["pool"]} if self.neighbours else {}
        return {**sent, **pool, "params": state["params"], "psi": state["psi"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold the mean of the updates as the base does; every ``refresh`` rounds, keep some clients' psi."""
        if phase in self.label_phases:
            return super().fold(state, sums, info, phase)
        if not self.neighbours:
            return self._outer(state, self.base.fold(self._inner(state), sums, info, phase))
        parts = sums["update"]
        total = sum(part.weight for part in parts)
        mean = T.map(
            lambda *leaves: sum(part.weight / total * leaf for part, leaf in zip(parts, leaves, strict=True)).astype(
                leaves[0].dtype
            ),
            *(T.map(np.asarray, part.value) for part in parts),
        )
        rest = {name: value for name, value in sums.items() if name not in ("update", "denied")}
        made = self._outer(state, self.base.fold(self._inner(state), {**rest, "update": mean}, info, phase))
        return {**made, **self._helpers(state, parts, np.asarray(sums["denied"]), info)}

    def _helpers(self, state: Tree, parts: Sequence[Any], denied: Any, info: RoundInfo) -> dict[str, Tree]:
        """Return the pool without models that most clients deny, whose owners are remembered, and every ``refresh`` rounds another pool.

        Where most models of a pool are denied, clients differ, and nobody is singled out.
        """
        pool, owners = state["pool"], state["owners"]
        far = (pool["there"] > 0) & (denied * 2 > max(1, info.replied))
        alone = 2 * far.sum() <= pool["there"].sum()
        who = np.where(far & alone, owners["who"], -1)
        barred = np.union1d(owners["barred"], who[who >= 0]).astype(np.int64)
        owners = {**owners, "denied": who, "by": np.where(far, denied, -1).astype(np.int64), "barred": barred}
        pool = {**pool, "there": (pool["there"] * ~far).astype(np.float32)}
        if state["turn"] % self.refresh == 0:
            draw = info.rng.child("helpers").generator()
            usable = [i for i, part in enumerate(parts) if part.sender not in barred]
            drawn: Any = draw.choice(len(usable), min(self.pool, len(usable)), replace=False) if usable else []
            chosen = [usable[i] for i in np.sort(drawn)]
            models = [T.add(state["psi"], split(parts[i].value)[1]) for i in chosen]
            models += [T.zeros_like(state["psi"])] * (self.pool - len(models))
            there = (np.arange(self.pool) < len(chosen)).astype(np.float32)
            pool = {"psi": T.map(lambda *leaves: np.stack(leaves), *models), "there": there}
            names = [parts[i].sender for i in chosen] + [-1] * (self.pool - len(chosen))
            owners = {**owners, "who": np.array(names, np.int64)}
        return {"pool": pool, "owners": owners}

    def outliers(self, state: Tree) -> dict[int, str]:
        """Return whose models most clients of the round denied as helpers, and why; they help nobody from then on."""
        owners = state.get("owners", {"denied": (), "by": ()})
        return {
            int(
                who
            ): f"its model says something far off of noise, say {int(by)} clients, so it is no helper from now on"
            for who, by in zip(owners["denied"], owners["by"], strict=True)
            if who >= 0
        }

    def taught(self, state: Tree, update: Tree) -> Tree:
        """Put what labels taught into sigma."""
        sigma = T.add(state["sigma"], update)
        return {**state, "sigma": sigma, "params": T.add(sigma, state["psi"])}

    def moved(self, state: Tree) -> Tree:
        """Put what a wrapper moved into sigma."""
        moved = {**state, "sigma": T.sub(state["params"], state["psi"])}
        return self._outer(moved, facet(self.base, Movable).moved(self._inner(moved)))

    # ---------------------------------------------------------------- the clients

    def client_init(self, params: Tree) -> Tree:
        """Start with the base's private state, and psi of no model."""
        inner = facet(self.base, Stateful).client_init(together(params, params))
        return {"base": inner, "psi": T.scale(params, self.share)} if self.neighbours else inner

    def _sent(self, broadcast: Tree) -> Tree:
        """Return the broadcast as the algorithm inside knows it."""
        psi = broadcast["psi"]
        return {**broadcast, "params": together(T.sub(broadcast["params"], psi), psi)}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state on both parts, and the models of the helpers."""
        if not self.neighbours:
            return self.base.start(self._sent(broadcast), client)
        own, found = looked(client)
        made = self.base.start(self._sent(broadcast), own["base"])
        return {**made, "near": _chosen(broadcast["pool"], found["chosen"])} if found else made

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step along the disjoint gradient."""
        near = {"near": local["near"]} if "near" in local else {}
        weights = {"weight": self.weight, "l1": self.l1, "l2": self.l2}
        oracle = DisjointGradient(grad, self.losses[:3], weights, local.get("near"))
        inner = {name: value for name, value in local.items() if name != "near"}
        return {**self.base.step(inner, oracle, self._sent(broadcast)), **near}  # type: ignore[arg-type]

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Send what changed enough, as a single reply if models are to help others."""
        sent = self._sent(broadcast)
        sigma, psi = split(local["params"])
        dropped = T.map(lambda leaf: leaf * (abs(leaf) >= self.floor), psi)
        change = T.map(lambda now, was: (now - was) * (abs(now - was) > self.least), dropped, broadcast["psi"])
        inner = {name: value for name, value in local.items() if name != "near"}
        inner["params"] = together(sigma, T.add(broadcast["psi"], change))
        own, found = looked(client)
        reply, kept = self.base.finish(inner, sent, own["base"] if self.neighbours else own, work)
        update = reply.get("update")
        if not isinstance(update, Mean):
            raise CompositionError(
                f"{type(self.base).__name__} does not reply with the mean update of a model",
                where="FedMatch.base",
                remedy="use FedAvg(), FedProx() or Scaffold()",
            )
        if not self.neighbours:
            return reply, kept
        denied = found.get("denied", np.zeros(self.pool, np.float32))
        single = {"update": Parts(update.value, examples=update.examples), "denied": Sum(denied, role="side")}
        return {**reply, **single}, {"base": kept, "psi": split(inner["params"])[1]}

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the base's model for this client."""
        return params


def _chosen(pool: Tree, chosen: Any) -> Tree:
    """Return the chosen models of a pool, by a matrix ``(helpers, pool)`` of ones and zeros."""

    def picked(leaf: Any) -> Any:
        ones = [1] * (leaf.ndim - 1)
        return (chosen.reshape(*chosen.shape, *ones) * leaf.reshape(1, *leaf.shape)).sum(1)

    return {"psi": T.map(picked, pool["psi"]), "there": chosen.sum(1)}


@dataclass(frozen=True, kw_only=True)
class _Choice(OneLook):
    """One comparison of the client's last model with the pool."""

    method: FedMatch
    batch_size: int | None = 1

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the client's last psi and no choice."""
        zero = broadcast["pool"]["there"] * 0.0
        return {
            "params": broadcast["params"],
            "psi": client["psi"],
            "chosen": {"chosen": T.stack([zero] * self.method.neighbours), "denied": zero},
        }

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Choose."""
        own = {"sigma": T.sub(broadcast["params"], broadcast["psi"]), "psi": local["psi"]}
        return {
            **local,
            "chosen": cast("LossGradients", grad).on(None, own=own).read(self.method.losses[3], local["params"]),
        }

    def found(self, local: Tree) -> dict[str, Tree]:
        """Return the choice."""
        return {**local["chosen"]}
