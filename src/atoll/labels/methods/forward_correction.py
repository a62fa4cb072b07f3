"""Forward correction (Patrini et al. 2017): training on labels of which many are wrong, once it is known how labels go wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..domain_network import classes_of
from ..losses import mean_of, seen
from ..objectives.label_noise import check_transition, estimate_transition, forward_corrected, label_triples
from ..pre_pass import PrePass, split_pre_pass
from ..views.base import View
from .base import Method

__all__ = ["ForwardCorrection", "ForwardLoss", "TripleCounts"]


@dataclass(frozen=True)
class ForwardLoss(OwnLoss):
    """``mean_L -log sum_c p_c(view(x)) T[c, y]`` over the labelled rows ``L`` of a mini-batch; 0 if none has a label.

    Attributes:
        view: the view; ``None`` for the rows as they are.
    """

    view: View | None = None
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        outputs = model(seen(self.view, x, keys, 0, real))
        return mean_of(forward_corrected(outputs, target, broadcast["transition"]), labelled * real)


@dataclass(frozen=True)
class TripleCounts(OwnLoss):
    """The labels of the labelled rows of a batch, each with its two nearest neighbours', counted: `label_triples`. It is only read.

    Rows are near if the model says much the same of them, ``log p(x)``, whatever it is that it says.
    """

    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, real: Any) -> Any:
        """Return the counts, ``(C, C, C)``."""
        said = torch.log_softmax(model(x, training=False), 1)
        return label_triples(said, target, labelled & (real > 0), said.shape[1])


@dataclass(frozen=True, kw_only=True)
class ForwardCorrection(Method):
    """Train on labels of which many are wrong: learn how labels go wrong, and let the model explain the labels through it.

    ``T[c, y]`` is the probability that a row of class ``c`` has the label ``y``. Local steps descend ``-log sum_c p_c(x) T[c, y]``
    (`atoll.labels.objectives.forward_corrected`), so ``p`` learns the classes and ``T`` accounts for the wrong labels. Cross-entropy would have to say .6 and .4 of a
    class of which .4 of the labels are wrong, and what little drift a client adds then decides which comes first.

    ``T`` comes from the labels alone, without a row that is known to be right. In each contact a client counts the labels of its rows with those of their two
    nearest neighbours, where rows are near if the global model says the same of them. The counts add up over clients, and fade. From their sum, the server
    estimates ``T`` (`atoll.labels.objectives.estimate_transition`). The server sees ``C x C x C`` counts, or their sum under a secure reducer; clients keep nothing.

    The first ``after`` rounds train as if no label were wrong. Forward correction alone can leave a class out for good: once ``p_c`` is next to 0, its gradient is
    too. Cross-entropy gives each class its place first.

    It rests on three things: a row's label depends on its class alone, the most frequent label of each class is right, and labels go wrong much alike at all
    clients.

    Attributes:
        transition: ``T`` where it is known, ``C`` rows of ``C`` probabilities; clients then count nothing. With the identity, it is `Supervised`, bit for bit.
        view: the view of all rows; ``None`` for the rows as they are. A strong view keeps single wrong labels from being learned by heart.
        sample: rows among which a client counts neighbours, in each contact.
        keep: share of the counts that stays from round to round.
        after: rounds before the loss takes wrong labels out.
    """

    transition: Sequence[Sequence[float]] | None = None
    view: View | None = None
    sample: int = 512
    keep: float = 0.8
    after: int = 8
    citation: ClassVar[str] = (
        "Patrini, Rozza, Menon, Nock, Qu. Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach. CVPR 2017; Zhu, Song, Liu. "
        "Clusterability as an Alternative to Anchor Points When Learning with Noisy Labels. ICML 2021."
    )
    card: ClassVar[Card] = Card(
        family="wrapper",
        note="For wrong labels: neighbours' labels tell how labels go wrong, without one known to be right.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample < 3 or not 0.0 <= self.keep < 1.0 or self.after < 0:
            raise ConfigError(
                f"sample={self.sample}, keep={self.keep}, after={self.after}",
                where="ForwardCorrection",
                remedy="use a sample of 3 rows or more, keep a share from 0 to below 1, and 0 rounds or more before",
            )
        if self.transition is not None:
            known = check_transition(self.transition, "ForwardCorrection")
            object.__setattr__(self, "transition", tuple(tuple(row) for row in known.tolist()))

    @property
    def losses(self) -> tuple[Any, ...]:
        """Forward-corrected cross-entropy of labelled rows."""
        return (ForwardLoss(self.view),)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Count neighbours' labels, unless it is known how labels go wrong; then run the base's passes."""
        made = super().passes(phase)
        own = next((i for i, part in enumerate(made) if isinstance(part, ForwardCorrection)), None)
        if self.transition is not None or own is None:
            return made
        return (*made[:own], _Count(batch_size=self.sample, method=self), *made[own:])

    def init(self, params: Tree) -> Tree:
        """Start with the known matrix, or with the identity and nothing counted."""
        classes, kind = classes_of(params), next(iter(params.values())).dtype
        known = np.eye(classes) if self.transition is None else np.array(self.transition)
        if len(known) != classes:
            raise ConfigError(
                f"a transition of {len(known)} classes for a model with {classes} outputs",
                where="ForwardCorrection",
                remedy="give one row and one column for each output of the model",
            )
        counts = {} if self.transition is not None else {"triples": np.zeros((classes,) * 3, kind)}
        return {**super().init(params), "transition": known.astype(kind), **counts}

    def _outer(self, state: Tree, made: Tree) -> Tree:
        kept = {name: state[name] for name in ("transition", "triples") if name in state}
        return {**super()._outer(state, made), **kept}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send how labels go wrong with the base's broadcast; in the first rounds, that none does."""
        found = state["transition"]
        believed = found if state["turn"] >= self.after else np.eye(len(found), dtype=found.dtype)
        return {**super().broadcast(state, phase), "transition": believed}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the base does, with the counts."""
        reply, kept = super().finish(local, broadcast, client, work)
        found = split_pre_pass(client)[1]
        return ({**reply, "triples": Sum(found["triples"], role="side")} if found else reply), kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does, and estimate from the counts so far how labels go wrong."""
        made = super().fold(state, sums, info, phase)
        if "triples" not in sums:
            return made
        kind = state["transition"].dtype
        counts = (self.keep * state["triples"] + sums["triples"]).astype(kind)
        return {**made, "triples": counts, "transition": estimate_transition(counts).astype(kind)}


@dataclass(frozen=True, kw_only=True)
class _Count(PrePass):
    """One look at a sample of the client's rows, with the received model."""

    card: ClassVar[Card] = Card(part=True, note="A part of ForwardCorrection: it does not train.")

    @property
    def losses(self) -> tuple[Any, ...]:
        """What is read."""
        return (TripleCounts(),)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with nothing counted."""
        del client
        none = broadcast["transition"] * 0.0
        return {"params": broadcast["params"], "read": none[:, :, None] * none[0]}

    def read_found(self, local: Tree) -> dict[str, Tree]:
        """Return the counts."""
        return {"triples": local["read"]}
