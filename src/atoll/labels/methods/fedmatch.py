"""FedMatch (Jeong et al. 2021): labels move one part of the model, unlabelled rows another, and similar clients' models help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F

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
from atoll.learn.local.own_loss import OwnLoss
from atoll.stages import Threshold

from ..losses import cross_entropy_of_rows, mean_of, seen
from ..objectives.consistency import check_threshold, mean_teacher
from ..pre_pass import PrePass, split_pre_pass
from ..views.base import View
from ..views.defaults import strong, weak
from .fixmatch import require_threshold
from .labelled_party import LabelledParty
from .supervised import SupervisedLoss

__all__ = [
    "AgreementLoss",
    "DisjointGradient",
    "FedMatch",
    "NearestHelpers",
    "Unlabelled",
    "join_parts",
    "split",
    "together",
]

# Disjoint learning: a model that is the sum of two, one for rows with labels and one for rows without; FedMatch's losses and gradients.


_SIGMA, _PSI = "sigma/", "psi/"


def together(sigma: Tree, psi: Tree) -> Tree:
    """Return both parts in one tree, as the algorithm inside sees its parameters."""
    return {
        **{_SIGMA + name: leaf for name, leaf in sigma.items()},
        **{_PSI + name: leaf for name, leaf in psi.items()},
    }


def split(both: Tree) -> tuple[Tree, Tree]:
    """Return sigma and psi; the inverse of `together`."""
    parts = ({name.removeprefix(p): leaf for name, leaf in both.items() if name.startswith(p)} for p in (_SIGMA, _PSI))
    return next(parts), next(parts)


def join_parts(both: Tree) -> Tree:
    """Return the model ``sigma + psi``."""
    return T.add(*split(both))


class DisjointGradient:
    """The gradient of labelled rows by sigma and of unlabelled rows by psi: neither learns from the other's rows.

    ``d/dsigma = weight grad CE`` and ``d/dpsi = grad l_u + 1{there are unlabelled rows} (l1 sign(psi) + 2 l2 (psi - sigma))``, both at ``sigma + psi``.

    Args:
        grad: the gradient of a model.
        losses: of labelled rows, of unlabelled rows, and the count of unlabelled rows.
        weights: ``weight``, ``l1``, ``l2``.
        near: models of helpers, ``{"psi": leaves (H, ...), "there": (H,)}``; ``None`` for none.
    """

    def __init__(self, grad: Any, losses: tuple[Any, ...], weights: Mapping[str, float], near: Tree = None) -> None:
        self._grad, self._losses, self._weights, self._near = grad, losses, weights, near

    def __call__(self, both: Tree) -> Tree:
        """Return the gradient by both parts."""
        sigma, psi = split(both)
        at, (labelled, unlabelled, count), by = T.add(sigma, psi), self._losses, self._weights
        slope = T.scale(self._grad.on(labelled)(at), by["weight"])
        given = {} if self._near is None else {"near": {**self._near, "sigma": sigma}}
        there = self._grad.read(count, at)
        pull = T.add(T.scale(T.sign(psi), by["l1"]), T.scale(T.sub(psi, sigma), 2.0 * by["l2"]))
        other = T.add(self._grad.on(unlabelled, **given)(at), T.scale(pull, there))
        return together(slope, other)

    def loss(self, both: Tree) -> Any:
        """Return the loss of labelled rows."""
        return self._grad.on(self._losses[0]).loss(join_parts(both))

    def hvp(self, both: Tree, vector: Tree) -> Tree:
        """Refuse: the two parts descend different losses."""
        raise CompositionError(
            "FedMatch descends two losses, which have no common curvature",
            where="FedMatch.base",
            remedy="use an algorithm of gradient steps, such as FedAvg(), FedProx() or Scaffold()",
        )


@dataclass(frozen=True)
class Unlabelled(OwnLoss):
    """1.0 if a mini-batch has a row without a label, else 0.0."""

    def __call__(self, *, x: Any, labelled: Any, real: Any) -> Any:
        """Return it."""
        return ((~labelled * real).sum() > 0).to(real.dtype)


@dataclass(frozen=True)
class AgreementLoss(OwnLoss):
    """What unlabelled rows say: agree with helpers, and with the vote of all on a strong view.

    ``icc mean_U (1/H) sum_h KL(p_h || p) + agree mean_U [max p > tau] CE(y, f(strong x))``, with ``y`` the class with most votes of the model and its helpers on
    the weak view.
    """

    weak: View | None
    strong: View | None
    tau: float
    icc: float
    agree: float
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        shown = seen(self.weak, x, keys, 0, real)
        near = model(shown)
        check_threshold(self.tau, near.shape[1], "FedMatch")
        hidden = ~labelled * real
        belief = torch.softmax(near.detach(), 1)
        votes, apart = _votes(belief), torch.zeros_like(real)
        for there, theirs in _helpers(model, shown, broadcast):
            votes = votes + there * _votes(theirs)
            apart = apart + there * mean_teacher(near, theirs, "kl")
        count = max(1, len(broadcast["near"]["there"])) if "near" in broadcast else 1
        loss = self.icc / count * mean_of(apart, hidden)
        far = model(seen(self.strong, x, keys, 1, real))
        agreed = cross_entropy_of_rows(far, votes.argmax(1))
        return loss + self.agree * mean_of(torch.where(belief.amax(1) > self.tau, agreed, 0.0), hidden)


def _votes(outputs: Any) -> Any:
    """Return one vote for the class with the largest output, the first of equals."""
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    return (outputs.argmax(1, keepdim=True) == classes).to(outputs.dtype)


def _helpers(model: Any, rows: Any, broadcast: Any) -> Any:
    """Yield each helper's weight, 1 or 0, and its outputs."""
    if "near" not in broadcast:
        return
    near = broadcast["near"]
    for h in range(len(near["there"])):
        at = {name: near["sigma"][name] + leaf[h] for name, leaf in near["psi"].items()}
        yield near["there"][h], model(rows, at, training=False).detach()


@dataclass(frozen=True)
class NearestHelpers(OwnLoss):
    """Which of a pool of models say the most similar things of noise: a matrix ``(count, pool)`` with a 1 for the chosen one, and who is too far off, ``(pool,)``.

    The distance is the mean over ``rows`` fixed rows of noise of the squared distance of the two distributions, between 0 and 2. Models beyond ``farthest``, or with outputs that are
    not finite, are not used. A client's own model, at distance 0, is no helper.
    """

    count: int
    farthest: float
    rows: int = 16

    def __call__(self, *, model: Any, x: Any, broadcast: Any) -> Any:
        """Return the choice."""
        pool, own = broadcast["pool"], broadcast["own"]
        noise = np.random.default_rng(0).normal(0.5, 0.25, size=(self.rows, *x.shape[1:]))
        shown = torch.as_tensor(noise, dtype=x.dtype, device=x.device)
        sigma, mine = own["sigma"], torch.softmax(model(shown, T.add(own["sigma"], own["psi"]), training=False), 1)
        away = torch.stack([
            F.mse_loss(torch.softmax(model(shown, T.add(sigma, _row(pool["psi"], j)), training=False), 1), mine) * mine.shape[1]
            for j in range(len(pool["there"]))
        ])  # fmt: skip
        there = pool["there"] > 0
        usable = there & (away <= self.farthest) & (away > 1e-12)
        ranked = torch.where(usable, away, torch.inf)
        order = torch.arange(len(ranked), device=x.device)
        ahead = (ranked.unsqueeze(0) < ranked.unsqueeze(1)) | (
            (ranked.unsqueeze(0) == ranked.unsqueeze(1)) & (order.unsqueeze(0) < order.unsqueeze(1))
        )
        place = ahead.sum(1)
        slots = torch.arange(self.count, device=x.device).unsqueeze(1)
        chosen = ((place.unsqueeze(0) == slots) & usable.unsqueeze(0)).to(mine.dtype)
        denied = (there & ~(away <= self.farthest)).to(mine.dtype)
        return {"chosen": chosen, "denied": denied}


def _row(stacked: Tree, j: int) -> Tree:
    return {name: leaf[j] for name, leaf in stacked.items()}


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

    def _make_inner_broadcast(self, broadcast: Tree) -> Tree:
        """Return the broadcast as the algorithm inside knows it."""
        psi = broadcast["psi"]
        return {**broadcast, "params": together(T.sub(broadcast["params"], psi), psi)}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state on both parts, and the models of the helpers."""
        if not self.neighbours:
            return self.base.start(self._make_inner_broadcast(broadcast), client)
        own, found = split_pre_pass(client)
        made = self.base.start(self._make_inner_broadcast(broadcast), own["base"])
        return {**made, "near": _pick_models(broadcast["pool"], found["chosen"])} if found else made

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step along the disjoint gradient."""
        near = {"near": local["near"]} if "near" in local else {}
        weights = {"weight": self.weight, "l1": self.l1, "l2": self.l2}
        oracle = DisjointGradient(grad, self.losses[:3], weights, local.get("near"))
        inner = {name: value for name, value in local.items() if name != "near"}
        return {**self.base.step(inner, oracle, self._make_inner_broadcast(broadcast)), **near}  # type: ignore[arg-type]

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Send what changed enough, as a single reply if models are to help others."""
        sent = self._make_inner_broadcast(broadcast)
        sigma, psi = split(local["params"])
        dropped = T.map(lambda leaf: leaf * (abs(leaf) >= self.floor), psi)
        change = T.map(lambda now, was: (now - was) * (abs(now - was) > self.least), dropped, broadcast["psi"])
        inner = {name: value for name, value in local.items() if name != "near"}
        inner["params"] = together(sigma, T.add(broadcast["psi"], change))
        own, found = split_pre_pass(client)
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


def _pick_models(pool: Tree, chosen: Any) -> Tree:
    """Return the chosen models of a pool, by a matrix ``(helpers, pool)`` of ones and zeros."""

    def pick_leaf(leaf: Any) -> Any:
        ones = [1] * (leaf.ndim - 1)
        return (chosen.reshape(*chosen.shape, *ones) * leaf.reshape(1, *leaf.shape)).sum(1)

    return {"psi": T.map(pick_leaf, pool["psi"]), "there": chosen.sum(1)}


@dataclass(frozen=True, kw_only=True)
class _Choice(PrePass):
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

    def read_found(self, local: Tree) -> dict[str, Tree]:
        """Return the choice."""
        return {**local["chosen"]}
