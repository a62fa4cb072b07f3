"""FADA: adversarial adaptation on exchanged features, with sources weighted by how well the target's features cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Parts
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import SINGLE_REPLIES, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.core.requests.policy import ROW_FEATURES
from atoll.learn.algorithm import (
    Algorithm,
    Gradient,
    Helped,
    Labelled,
    LocalWork,
    LossGradients,
    Movable,
    RoundInfo,
    Stateful,
)
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..domain_network import classes_of, outputs_of, width_of
from ..losses import cross_entropy_of_rows, mean_of, seen
from ..objectives.clusters import cluster, dispersion, gain_weights
from ..objectives.domains import domain_loss
from ..pre_pass import PrePass
from ..views.base import View
from .base import Method

__all__ = ["FADA", "FeatureLook", "FoolingLoss", "RowFeatures", "judge_features", "trained_judge"]

# Features that leave their parties: what FADA's parties send, and the discriminators that its server trains on it.


_TAGS = 2**24


def judge_features(judge: Mapping[str, Any], z: Any) -> Any:
    """Return a discriminator's logits of features, ``b . tanh(z A + a) + c``, ``(B,)``: above 0 for the source."""
    return torch.tanh(z @ judge["A"] + judge["a"]) @ judge["b"] + judge["c"]


def trained_judge(source: Any, target: Any, *, hidden: int, steps: int, lr: float, rng: Rng) -> Tree:
    """Return a discriminator after gradient steps on ``mean_S a + mean_T a``, with ``a`` DANN's loss (`atoll.labels.objectives.domain_loss`).

    Args:
        source: the source's features, ``(n, D)``.
        target: the target's, ``(m, D)``.
        hidden: hidden units.
        steps: steps over all features.
        lr: learning rate.
        rng: the random stream of its first parameters.
    """
    z = torch.from_numpy(np.concatenate([source, target]))
    of = torch.cat([torch.ones(len(source)), torch.zeros(len(target))]).to(z.dtype)
    share = torch.where(of > 0, 1.0 / len(source), 1.0 / len(target)).to(z.dtype)
    draw, width = rng.generator(), z.shape[1]
    shapes = {"A": (width, hidden), "a": (hidden,), "b": (hidden,), "c": ()}
    spread = {"A": width**-0.5, "a": 0.0, "b": hidden**-0.5, "c": 0.0}
    judge = {name: torch.tensor(draw.normal(size=s) * spread[name], dtype=z.dtype) for name, s in shapes.items()}
    for _ in range(steps):
        free = {name: leaf.requires_grad_() for name, leaf in judge.items()}
        loss = (domain_loss(judge_features(free, z), of) * share).sum()
        slopes = torch.autograd.grad(loss, list(free.values()))
        judge = {name: (leaf - lr * slope).detach() for (name, leaf), slope in zip(free.items(), slopes, strict=True)}
    return {name: leaf.detach().numpy() for name, leaf in judge.items()}


@dataclass(frozen=True)
class RowFeatures(OwnLoss):
    """Reads features of a mini-batch's rows: by the model that was sent, or by each of ``broadcast["models"]``; and a random tag.

    Attributes:
        view: of the rows.
        rows: how many there are with padding, a mini-batch or more.
    """

    view: View | None = None
    rows: int = 64

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return ``{"features": (rows, D) or (models, rows, D), "real": (rows,), "tag": ()}``; ``real`` is 0 for padding."""
        rows, params = seen(self.view, x, keys, 0, real), broadcast["params"]
        if "models" in broadcast:
            count = len(next(iter(broadcast["models"].values())))
            sent = [{name: leaf[i] for name, leaf in broadcast["models"].items()} for i in range(count)]
            z = torch.stack([outputs_of(model(rows, one), params, "FADA").features for one in sent])
        else:
            z = outputs_of(model(rows, params), params, "FADA").features
        more = self.rows - len(real)
        z, real = torch.nn.functional.pad(z, (0, 0, 0, more)), torch.nn.functional.pad(real, (0, more))
        return {"features": z, "real": real, "tag": (keys[0] % _TAGS + 1).to(z.dtype)}


@dataclass(frozen=True, kw_only=True)
class FeatureLook(PrePass):
    """A pass that trains nothing: a party sends features of a mini-batch of its rows. A source keeps its tag."""

    view: View | None = None
    card: ClassVar[Card] = Card(part=True, note="A part of FADA: it does not train.")

    @property
    def losses(self) -> tuple[Any, ...]:
        """What is read."""
        return (RowFeatures(self.view, self.batch_size or 1),)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with padding alone."""
        del client
        params, rows = broadcast["params"], self.batch_size or 1
        none = next(leaf for name, leaf in params.items() if name.startswith("classifier.") and len(leaf.shape) == 2)
        z = T.stack([none[0] * 0.0] * rows)
        if "models" in broadcast:
            z = T.stack([z] * len(next(iter(broadcast["models"].values()))))
        real = z.reshape(-1, rows, z.shape[-1])[0, :, 0]
        return {"params": params, "read": {"features": z, "real": real, "tag": none[0, 0] * 0.0}}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the features, and with the tag that the party has or now gets."""
        del broadcast
        read = local["read"]
        tag = client["tag"] + read["tag"] * (client["tag"] == 0)
        return {"look": Parts({**read, "tag": tag}, examples=work.examples, role="side")}, {**client, "tag": tag}


TARGET = "target"
"""Name and role of the party whose rows have no labels."""

_KEPT = ("tags", "judges", "before", "weights", "updates", "rest")


@dataclass(frozen=True)
class FoolingLoss(OwnLoss):
    """``mean_S CE - weight sum_i w_i mean a_i``: labelled rows are learnt, and features ascend the loss of discriminators that stay as they are.

    ``broadcast["play"]`` has the discriminators' weights: at a source 1 for its own pair, at the target the sources' weights.

    Attributes:
        view: of all rows.
        weight: of the adversarial part.
    """

    view: View | None
    weight: float
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        out = outputs_of(model(seen(self.view, x, keys, 0, real)), broadcast["params"], "FADA")
        loss = mean_of(cross_entropy_of_rows(out.logits, target), labelled * real)
        for i in range(len(broadcast["play"])):
            score = judge_features({name: leaf[i] for name, leaf in broadcast["judges"].items()}, out.features)
            game = domain_loss(score, labelled)
            both = mean_of(game, labelled * real) + mean_of(game, ~labelled * real)
            loss = loss - self.weight * broadcast["play"][i] * both
        return loss


@dataclass(frozen=True, kw_only=True)
class FADA(Method, Labelled, Helped, Stateful, Movable):
    """Adversarial adaptation from labelled clients to one target, on features that leave their parties (Peng et al. 2020).

    Clients are the sources. The target is a helper party: ``islands.with_others({"target": rows})``, with ``labelled`` false. A round has five contacts:

    1. Each source sends features of ``rows`` rows, and 2. so does the target. The server trains a discriminator for each pair of a source and the target.
    3. Each source trains on its labels, and its features learn to fool its pair's discriminator.
    4. The target sends features by each source's new model. ``I_i`` is their dispersion in ``clusters`` clusters, and the new model is the sources' mean with weights
       ``softmax_i(I_i^{r-1} - I_i^r)`` (`gain_weights`; equal ones in the first round).
    5. The target's features learn to fool all discriminators, with the same weights.

    The server sees features of single rows. So every site must allow ``row-features`` by this name in its policy (`SitePolicy.allow`); one that does not refuses the training.
    `FADE` needs no such consent. Discriminators look at features alone, and those of the network are not used. A source keeps a random number, by which it finds its pair.

    Attributes:
        weight: of the adversarial gradient on the features, 0 or more.
        rows: of a party whose features are sent in a contact.
        clusters: of the target's features; ``None`` for as many as there are classes.
        squared: squared distances in the dispersion, as in the gap statistic's paper; otherwise distances, as the survey prints.
        hidden: hidden units of a discriminator.
        judge_steps: steps of a discriminator in a round, from a fresh start.
        judge_lr: their learning rate.
        view: of all rows; ``None`` for the rows as they are.
    """

    weight: float = 0.1
    rows: int = 64
    clusters: int | None = None
    squared: bool = False
    hidden: int = 16
    judge_steps: int = 50
    judge_lr: float = 0.5
    view: View | None = None
    consents: ClassVar[tuple[str, ...]] = (ROW_FEATURES,)
    citation: ClassVar[str] = "Peng, Huang, Zhu, Saenko. Federated Adversarial Domain Adaptation. ICLR 2020."
    card: ClassVar[Card] = Card(
        family="wrapper",
        everyone=True,
        note="Labelled clients, one target; shares features of single rows, which each site must allow as row-features.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = (self.rows, self.hidden, 1 if self.clusters is None else self.clusters)
        if not self.weight >= 0.0 or min(counts) < 1 or self.judge_steps < 0 or not self.judge_lr > 0.0:
            raise ConfigError(
                f"weight={self.weight}, rows={self.rows}, clusters={self.clusters}, hidden={self.hidden}, judge_steps={self.judge_steps}, "
                f"judge_lr={self.judge_lr}",
                where="FADA",
                remedy="use a weight of 0 or more, a positive rate, and at least 1 row, cluster and hidden unit",
            )
        if self.base.phases != ("train",):
            raise CompositionError(
                f"FADA around {type(self.base).__name__}, which has phases {', '.join(self.base.phases)}",
                where="FADA",
                remedy="use a base with one contact a round, such as FedAvg or FedProx",
            )
        object.__setattr__(self, "phases", ("sources", "target", "train", "gain", "adapt"))
        object.__setattr__(self, "card", type(self).card)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and single replies."""
        return (*super().needs, Need(SINGLE_REPLIES, "looks at features of single rows", "FADE()"))

    @property
    def losses(self) -> tuple[Any, ...]:
        """Cross-entropy of labelled rows and the game against fixed discriminators."""
        return (FoolingLoss(self.view, self.weight),)

    @property
    def helpers(self) -> Mapping[str, str]:
        """The target."""
        return {**facet(self.base, Helped).helpers, TARGET: TARGET}

    def asks(self, phase: str) -> tuple[str, ...]:
        """Ask the target in its phases."""
        return (TARGET,) if phase in ("target", "gain", "adapt") else facet(self.base, Helped).asks(phase)

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return all phases."""
        del state
        return self.phases

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Send features, or train."""
        if phase in ("train", "adapt"):
            return super().passes("train")
        return (FeatureLook(batch_size=self.rows, view=self.view, method=self),)

    # ---------------------------------------------------------------- the parties

    def client_init(self, params: Tree) -> Tree:
        """Start with the base's private state and no tag."""
        return {"inner": super().client_init(params), "tag": T.leaves(params)[0].reshape(-1)[:1].sum() * 0.0}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the weights of the discriminators: at a source, 1 for that of its tag."""
        mine = (broadcast["tags"] == client["tag"]) * (broadcast["weights"] * 0.0 + 1.0)
        given = broadcast["at_target"]
        play = given * broadcast["weights"] + (1.0 - given) * mine
        return {**super().start(broadcast, client["inner"]), "play": play}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the method's step."""
        inner = {name: value for name, value in local.items() if name != "play"}
        oracle: Any = cast("LossGradients", grad).on(None, play=local["play"])
        return {**super().step(inner, oracle, broadcast), "play": local["play"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Send the update as a single reply, with the tag."""
        inner = {name: value for name, value in local.items() if name != "play"}
        reply, kept = super().finish(inner, broadcast, client["inner"], work)
        update = reply.get("update")
        if not isinstance(update, Mean):
            raise CompositionError(
                f"{type(self.base).__name__} does not reply with the mean update of a model",
                where="FADA.base",
                remedy="use FedAvg(), FedProx() or Scaffold()",
            )
        single = Parts({"model": update.value, "tag": client["tag"]}, examples=update.examples)
        return {**reply, "update": single}, {**client, "inner": kept}

    # ---------------------------------------------------------------- the server

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model; to those who train the discriminators too, and to the target the sources' models."""
        made = super().broadcast(state, "train")
        if phase == "gain":
            moved = {name: state["params"][name] + leaf for name, leaf in state["updates"].items()}
            return {**made, "models": {**_repeat_params(state["params"], len(state["tags"])), **moved}}
        if phase not in ("train", "adapt"):
            return made
        at = np.asarray(float(phase == "adapt"), state["weights"].dtype)
        return {**made, "at_target": at, **{name: state[name] for name in ("tags", "judges", "weights")}}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Keep features, train discriminators, keep the sources' updates, weigh them, or take over the target's."""
        if phase == "sources":
            return {**state, "looks": [_features_of(part.value) for part in sums["look"]], "tags": _tags(sums["look"])}
        if phase == "target":
            return self._train_judges(state, _features_of(sums["look"][0].value), info)
        if phase == "train":
            return self._order_updates(state, sums)
        if phase == "gain":
            return self._weigh_sources(state, sums["look"][0].value, info)
        own = sums["update"][0].value["model"]
        return {**state, "params": {**state["params"], **{name: state["params"][name] + own[name] for name in own}}}

    def _train_judges(self, state: Tree, target: Any, info: RoundInfo) -> Tree:
        """Train a discriminator for each source."""
        terms: dict[str, Any] = {"hidden": self.hidden, "steps": self.judge_steps, "lr": self.judge_lr}
        rng = info.rng.child("judge")
        each = [trained_judge(one, target, rng=rng, **terms) for one in state["looks"]]
        judges = {name: np.stack([judge[name] for judge in each]) for name in each[0]}
        equal = np.full(len(each), 1.0 / len(each), target.dtype)
        rest = {name: value for name, value in state.items() if name != "looks"}
        return {**rest, "judges": judges, "weights": equal}

    def _order_updates(self, state: Tree, sums: Mapping[str, Any]) -> Tree:
        """Keep the sources' updates; the discriminators and weights of those who have replied, in the same order."""
        parts = sums["update"]
        tags = np.array([np.asarray(part.value["tag"]) for part in parts])
        at = np.array([int(np.flatnonzero(state["tags"] == tag)[0]) for tag in tags])
        stacked = {
            name: np.stack([np.asarray(p.value["model"][name]) for p in parts]) for name in parts[0].value["model"]
        }
        judges = {name: leaf[at] for name, leaf in state["judges"].items()}
        rest = {name: value for name, value in sums.items() if name != "update"}
        return {**state, "tags": tags, "judges": judges, "updates": stacked, "rest": rest}

    def _weigh_sources(self, state: Tree, look: Any, info: RoundInfo) -> Tree:
        """Weigh the sources by the gain of the target's clusters, and fold their mean as the base does."""
        there, kind = np.asarray(look["real"]) > 0, state["weights"].dtype
        k = min(self.clusters or classes_of(state["params"]), int(there.sum()))
        now = {}
        for tag, z in zip(state["tags"].tolist(), np.asarray(look["features"]), strict=True):
            rows = z[there]
            now[f"{tag:.0f}"] = dispersion(
                rows, cluster(rows, k, info.rng.child("clusters").generator()), squared=self.squared
            )
        before = state.get("before", {})
        weights = gain_weights([before.get(tag, value) for tag, value in now.items()], list(now.values())).astype(kind)
        mean = {name: np.tensordot(weights, leaf, 1) for name, leaf in state["updates"].items()}
        rest = {name: value for name, value in state.items() if name not in ("updates", "rest")}
        made = super().fold(rest, {**state["rest"], "update": mean}, info, "train")
        return {**made, **_pick_kept(rest), "before": now, "weights": weights}

    def init(self, params: Tree) -> Tree:
        """Start as the base does, if the network is one in parts."""
        width_of(params, "FADA")
        return super().init(params)

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance as the base does."""
        return {**super().advance(state, info), **_pick_kept(state)}

    def moved(self, state: Tree) -> Tree:
        """Bring the state up to date as the base does."""
        return {**super().moved(state), **_pick_kept(state)}


def _pick_kept(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: state[name] for name in _KEPT if name in state}


def _tags(parts: Any) -> Any:
    return np.array([np.asarray(part.value["tag"]) for part in parts])


def _features_of(look: Any) -> Any:
    return np.asarray(look["features"])[np.asarray(look["real"]) > 0]


def _repeat_params(params: Tree, count: int) -> Tree:
    return {name: np.stack([np.asarray(leaf)] * count) for name, leaf in params.items()}
