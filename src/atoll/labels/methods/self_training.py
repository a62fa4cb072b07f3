"""Self-training across domains: the global model's sure guesses at the target are its labels, with the classes in their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, Labelled, LocalWork, LossGradients, Movable, RoundInfo
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..domain_network import classes_of
from ..losses import cross_entropy_of_rows, mean_of, seen
from ..objectives.consistency import check_threshold
from ..pre_pass import PrePass
from ..views.base import View
from .base import Method

__all__ = ["ClassShares", "GuessSums", "SelfTraining", "SelfTrainingLoss", "align_probabilities", "confidence_of"]

# Shares of classes: what the model guesses at a party and how surely, what the labels say, and guesses moved from the one to the other.


def align_probabilities(p: Any, guessed: Any, wanted: Any) -> Any:
    """Return probabilities whose mean over the rows is moved from ``guessed`` to ``wanted``: ``p wanted / guessed``, normalised.

    Berthelot et al. 2020, "ReMixMatch", section 3.1. A class that the model guesses too often counts less, so that guesses do not feed on each other.

    Args:
        p: probabilities, ``(B, C)``.
        guessed: their mean over the party's rows, ``(C,)``.
        wanted: the shares of the classes among labels, ``(C,)``.
    """
    moved = p * wanted / guessed.clamp(min=1e-6)
    return moved / moved.sum(1, keepdim=True)


def confidence_of(sure: Any, counts: Any, portion: Any) -> Any:
    """Return the confidence of the row that ends the surest ``portion`` of some rows: ``floor(portion n)`` of ``n`` rows, at least one, are as sure.

    Args:
        sure: confidences, ``(B,)``.
        counts: 1 for a row that counts, ``(B,)``.
        portion: a number from 0 to 1.
    """
    ordered = torch.where(counts > 0, sure, torch.zeros_like(sure)).sort(descending=True)[0]
    last = (portion * counts.sum()).floor().to(torch.int64).clamp(min=1) - 1
    return ordered.gather(0, last.reshape(1)).sum()


@dataclass(frozen=True)
class GuessSums(OwnLoss):
    """What a party reads of a batch of its rows: mean guess, labels by class, and how sure the surest portion of the guesses is. It is only read.

    Attributes:
        weak: view of the rows.
    """

    weak: View | None = None
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return ``{"guessed": (C,), "labels": (C,), "taught": (), "sure": ()}``: shares of the global model's guesses at rows without a label, and of labels."""
        outputs = model(seen(self.weak, x, keys, 0, real), training=False)
        hidden, wanted = (~labelled * real).to(outputs.dtype), broadcast["wanted"]
        p = outputs.softmax(1)
        guessed = _shares((p * hidden.unsqueeze(1)).sum(0), wanted)
        sure = align_probabilities(p, guessed, wanted).amax(1)
        classes = torch.arange(outputs.shape[1], device=outputs.device)
        labels = ((target.unsqueeze(1) == classes) * (labelled * real).unsqueeze(1)).sum(0).to(p.dtype)
        return {
            "guessed": guessed,
            "labels": _shares(labels, wanted),
            "taught": (labels.sum() > 0) * 1.0,
            "sure": confidence_of(sure, hidden, broadcast["portion"].sum()),
        }


@dataclass(frozen=True, kw_only=True)
class ClassShares(PrePass):
    """A pass that trains nothing: it leaves what `GuessSums` reads for the next pass of the same contact.

    Attributes:
        batch_size: rows that it looks at.
        weak: their view.
        method: the algorithm whose private state it leaves alone.
    """

    batch_size: int | None = 512
    weak: View | None = None
    card: ClassVar[Card] = Card(part=True, note="A part of SelfTraining: it does not train.")

    @property
    def losses(self) -> tuple[Any, ...]:
        """What is read."""
        return (GuessSums(self.weak),)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with equal shares and no label."""
        del client
        shares, none = broadcast["wanted"], broadcast["wanted"].sum() * 0.0
        return {
            "params": broadcast["params"],
            "read": {"guessed": shares, "labels": shares, "taught": none, "sure": none},
        }

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Leave what was read beside the private state."""
        del broadcast, work
        return {}, {"inner": client, **local["read"]}


def _shares(counts: Any, otherwise: Any) -> Any:
    """Return ``counts / sum``, or the other shares if there is nothing to count."""
    total = counts.sum()
    none = (total <= 0) * 1.0
    return counts / (total + none) + none * otherwise


@dataclass(frozen=True)
class SelfTrainingLoss(OwnLoss):
    """``mean_S CE(y, f(strong(x))) + weight mean_K CE(guess, f(strong(x)))``; ``K`` are rows without a label of which the global model is sure.

    It is if its confidence is above ``tau``, or among the surest portion of those at the party.

    Attributes:
        weak: view under which the global model guesses.
        strong: view that is trained on.
        tau: how sure it must be.
        weight: of the guesses.
    """

    weak: View | None
    strong: View | None
    tau: float
    weight: float
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        outputs = model(seen(self.strong, x, keys, 1, real))
        with torch.no_grad():
            guess = model(seen(self.weak, x, keys, 0, real), broadcast["params"], training=False)
            check_threshold(self.tau, guess.shape[1], "SelfTraining")
            sure, label = align_probabilities(guess.softmax(1), broadcast["guessed"], broadcast["wanted"]).max(1)
        logits = outputs[:, : guess.shape[1]]
        taught = mean_of(cross_entropy_of_rows(logits, target), labelled * real)
        kept = ((sure > self.tau) | (sure >= broadcast["sure"])) * ~labelled * real * broadcast["guessing"]
        return taught + self.weight * mean_of(cross_entropy_of_rows(logits, label), kept)


@dataclass(frozen=True, kw_only=True)
class SelfTraining(Method, Labelled, Movable):
    """Labelled parties teach, and the global model's sure guesses teach the target, aligned to the classes of the labels.

    A guess is ``p wanted / guessed``, normalised: ``guessed`` is the mean guess over a sample of the party's rows, computed there and kept there, and
    ``wanted`` the mean share of each class among the labels of all parties, of which the server sees the sum. Without this alignment, guesses collapse onto the
    classes that survive the change of domain.

    A guess counts if the model is surer of it than ``tau``, or if it is among the surest ``portion`` of the party's guesses. The portion begins at a quarter of its
    size and grows over ``grow`` rounds (Zou et al. 2018): in a new domain a model is rarely sure, and a threshold alone would leave most rows unused. The strong view must bridge the domains: on digits, inverted colours make dark digits on light
    ground from light ones on dark ground.

    Attributes:
        tau: how sure the global model must be of a guess, a probability above ``1/C``.
        portion: of a party's guesses that count at least; 0 for those above ``tau`` alone.
        grow: rounds over which the portion grows, after those to warm up; 0 for its full size at once.
        weight: of the guesses' loss, 0 or more. At 0, parties without labels have no weight either: only labelled rows teach.
        warm: rounds of labelled rows alone, before guesses count.
        weak: view under which the global model guesses.
        strong: view that is trained on.
        sample: rows from which a party takes the mean guess and the surest ones, each round.
    """

    tau: float = 0.9
    portion: float = 0.0
    grow: int = 0
    weight: float = 1.0
    warm: int = 0
    weak: View | None = None
    strong: View | None = None
    sample: int = 512
    citation: ClassVar[str] = (
        "Zou, Yu, Vijaya Kumar, Wang. Unsupervised Domain Adaptation for Semantic Segmentation via Class-Balanced Self-Training. ECCV 2018; "
        "aligned as in Berthelot et al. ReMixMatch. ICLR 2020."
    )
    card: ClassVar[Card] = Card(
        family="wrapper",
        note="Labels at sources, none at the target; the global model guesses, and the server sees shares of classes.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = 0.0 < self.tau <= 1.0 and 0.0 <= self.portion <= 1.0
        if not shares or not self.weight >= 0.0 or min(self.warm, self.grow) < 0 or self.sample < 1:
            raise ConfigError(
                f"tau={self.tau}, portion={self.portion}, grow={self.grow}, weight={self.weight}, warm={self.warm}, sample={self.sample}",
                where="SelfTraining",
                remedy="use a tau between 1/C and 1, a portion from 0 to 1, a weight of 0 or more, 0 rounds or more to grow and to warm up, and a sample of rows",
            )
        object.__setattr__(self, "card", type(self).card)
        object.__setattr__(self, "citation", type(self).citation)

    @property
    def losses(self) -> tuple[Any, ...]:
        """Cross-entropy of labels and of sure guesses."""
        return (SelfTrainingLoss(self.weak, self.strong, self.tau, self.weight),)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Look at the shares of classes; then run the base's passes."""
        return (ClassShares(batch_size=self.sample, weak=self.weak, method=self), *super().passes(phase))

    def init(self, params: Tree) -> Tree:
        """Start with equal shares."""
        classes = classes_of(params)
        wanted = np.full(classes, 1.0 / classes, next(iter(params.values())).dtype)
        return {**super().init(params), "wanted": wanted}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the shares of the classes, 1 once guesses count, and the portion that counts at least."""
        sent, kind = super().broadcast(state, phase), state["wanted"].dtype
        grown = 1.0 if not self.grow else min(1.0, max(0, state["turn"] - self.warm) / self.grow)
        now = {"guessing": state["turn"] >= self.warm, "portion": self.portion * (1.0 + 3.0 * grown) / 4.0}
        return {**sent, "wanted": state["wanted"], **{name: np.full(1, value, kind) for name, value in now.items()}}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start as the base does, with the shares."""
        read = {name: client[name] for name in ("guessed", "labels", "taught", "sure")}
        return {"inner": super().start(broadcast, client["inner"]), "params": broadcast["params"], **read}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step; the loss reads the shares, and what is sure here."""
        counting = broadcast["portion"].sum() > 0
        sure = local["sure"] * counting + 2.0 * ~counting  # no probability is 2: then tau decides alone
        oracle = cast("LossGradients", grad).on(None, guessed=local["guessed"], sure=sure)
        inner = super().step(local["inner"], oracle, broadcast)
        return {**local, "inner": inner, "params": inner["params"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the base does, with the labels' shares; before guesses count, a party without labels has no weight."""
        counts = local["taught"] + (1.0 - local["taught"]) * broadcast["guessing"].sum() * float(self.weight > 0)
        work = LocalWork(examples=work.examples * counts, steps=work.steps)
        reply, kept = super().finish(local["inner"], broadcast, client["inner"], work)
        return {**reply, "labels": Sum(local["labels"], role="side")}, kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does; parties without a label repeat what they were sent, and so change the shares slowly."""
        made = super().fold(state, sums, info, phase)
        shares = sums["labels"]
        return {**made, "wanted": (shares / shares.sum()).astype(state["wanted"].dtype)}

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance as the base does."""
        return {**super().advance(state, info), "wanted": state["wanted"]}

    def moved(self, state: Tree) -> Tree:
        """Bring the state up to date as the base does."""
        return {**super().moved(state), "wanted": state["wanted"]}
