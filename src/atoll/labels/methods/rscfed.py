"""RSCFed (Liang et al. 2022): clients without labels follow a teacher, and sub-consensus models leave out who strays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Part, Parts
from atoll.core.algebra.tree import Tree
from atoll.core.capability import SINGLE_REPLIES, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.algorithm import Gradient, LocalWork, LossGradients, RoundInfo
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..losses import cross_entropy_of_rows, mean_of, seen
from ..objectives.consistency import check_threshold, mean_teacher
from ..streams import Stream, Trailing
from ..views.base import View
from ..views.defaults import strong, weak
from .base import Method
from .fixmatch import require_threshold

__all__ = ["RSCFed", "TeacherLoss", "WarmTeacher", "consensus_weights", "sub_consensus"]


@dataclass(frozen=True)
class WarmTeacher(Trailing):
    """A moving copy that follows closely at first: after ``n`` steps it keeps ``min(1 - 1 / (n + 1), keep)`` (Tarvainen and Valpola 2017).

    Losses read its parameters as ``broadcast[name]["at"]``.
    """

    def of(self, params: Tree) -> Tree:
        """Return a copy that has made no step."""
        found = super().of(params)
        first = T.leaves(found)[0].reshape(-1)
        return {"at": found, "steps": first[:1].sum() * 0.0}

    def move_copy(self, copy: Tree, params: Tree) -> Tree:
        """Return the copy after one step that ended at these parameters."""
        steps = copy["steps"] + 1.0
        warm, cold = 1.0 / (steps + 1.0), 1.0 - self.keep
        share = (warm + cold + abs(warm - cold)) / 2.0  # the larger one, in NumPy and PyTorch
        at = T.map(lambda m, w: m + (w - m) * share, copy["at"], super().of(params))
        return {"at": at, "steps": steps}


@dataclass(frozen=True)
class TeacherLoss(OwnLoss):
    """``mean_L CE(y, f(weak x)) + weight / |U| sum_U [max q > tau] |p(strong x) - q|^2 / C`` with the teacher's probabilities ``q`` of the weak view."""

    weak: View | None
    strong: View | None
    tau: float
    weight: float
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        shown = seen(self.weak, x, keys, 0, real)
        near = model(shown)
        loss = mean_of(cross_entropy_of_rows(near, target), labelled * real)
        check_threshold(self.tau, near.shape[1], "RSCFed")
        if self.weight == 0.0:
            return loss
        teacher = model(shown, broadcast["teacher"]["at"], training=False).detach()
        apart = mean_teacher(model(seen(self.strong, x, keys, 1, real)), teacher)
        sure = torch.softmax(teacher, 1).amax(1) > self.tau
        return loss + self.weight * mean_of(torch.where(sure, apart, 0.0), ~labelled * real)


@dataclass(frozen=True)
class HasLabels(OwnLoss):
    """The number of labelled rows of a mini-batch."""

    def __call__(self, *, labelled: Any, real: Any) -> Any:
        """Return it."""
        return (labelled * real).sum()


@dataclass(frozen=True, kw_only=True)
class RSCFed(Method):
    """Clients without labels learn from a teacher; the server averages sub-consensus models in which far-off clients weigh less.

    Labelled rows are learnt as they are, unlabelled ones by agreement with a moving average of the client's own models (equations 86 and 87 of the survey). Of a round's
    replies the server draws ``groups`` random subsets of ``size``. In each, with the mean ``m`` by examples,

        ``a_i ~ n_i exp(-beta d(w_i, m) / n_i)``, ``w = sum_i a_i w_i``, ``d`` the sum over tensors of Euclidean distances,

    and the next model is the plain mean of the subsets' models. Equal models give FedAvg's weights ``n_i / n``. The authors train a client anew for each subset that it is in; one
    update serves all of them here. The server needs single replies, so sums that hide them are refused.

    ``beta`` counts examples: with clients of 100 rows, 1e4 of the authors' 5,000-row clients is 200.

    Attributes:
        groups: subsets of a round.
        size: replies in a subset; ``None`` or more than there are: all.
        beta: how fast a client's weight falls with its distance, 0 or more; 0 gives FedAvg's weights.
        beta_labelled: the same for clients with labels. They are few and stray most, so the authors' is 100 times smaller; ``None`` is ``beta``.
        keep: share of the teacher that remains after a step, once it is warm.
        memory: ``"client"``: the teacher is private state, as the authors have it; ``"round"``: it starts at every round's model.
        tau: how sure the teacher must be, a probability above ``1/C``.
        weight: of the unlabelled rows' loss. At 0, local steps are those of `Supervised` with the weak view.
        weak: the view of labelled rows and of the teacher.
        strong: the view of the student.
    """

    groups: int = 3
    size: int | None = 5
    beta: float = 1e4
    beta_labelled: float | None = 100.0
    keep: float = 0.999
    memory: str = "client"
    tau: float = 0.9
    weight: float = 0.02
    weak: View | None = field(default_factory=lambda: weak("images"))
    strong: View | None = field(default_factory=lambda: strong("images"))
    citation: ClassVar[str] = (
        "Liang, Lin, Fu, Zhu, Li. RSCFed: Random Sampling Consensus Federated Semi-Supervised Learning. CVPR 2022."
    )
    card: ClassVar[Card] = Card(
        family="wrapper", note="Labels at some clients; single replies; a moving teacher at each client."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_threshold(self.tau, self.weight, "RSCFed")
        betas = (self.beta, 0.0 if self.beta_labelled is None else self.beta_labelled)
        if self.groups < 1 or not (self.size is None or self.size >= 1) or not all(0 <= b < np.inf for b in betas):
            raise ConfigError(
                f"groups={self.groups}, size={self.size}, beta={self.beta}, beta_labelled={self.beta_labelled}",
                where="RSCFed",
                remedy="use at least one group of one reply, and finite betas of 0 or more",
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and single replies."""
        return (
            *super().needs,
            Need(SINGLE_REPLIES, "weighs each client by the distance of its own model", "FixMatch()"),
        )

    @property
    def losses(self) -> tuple[Any, ...]:
        """The teacher's loss, and a count."""
        return (TeacherLoss(self.weak, self.strong, self.tau, self.weight), HasLabels())

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The teacher."""
        return (WarmTeacher(name="teacher", keep=self.keep, memory=self.memory),)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with no labelled row seen."""
        made = super().start(broadcast, client)
        return {**made, "labels": T.leaves(made["params"])[0].reshape(-1)[:1].sum() * 0.0}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step and move the teacher; count labelled rows."""
        inner = {name: value for name, value in local.items() if name != "labels"}
        found = cast("LossGradients", grad).read(self.losses[1], local["params"])
        return {**super().step(inner, grad, broadcast), "labels": local["labels"] + found}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Send the update as a single reply, with whether it comes from labels."""
        inner = {name: value for name, value in local.items() if name != "labels"}
        reply, kept = super().finish(inner, broadcast, client, work)
        update = reply.get("update")
        if not isinstance(update, Mean):
            raise CompositionError(
                f"{type(self.base).__name__} does not reply with the mean update of a model",
                where="RSCFed.base",
                remedy="use FedAvg(), FedProx() or Scaffold()",
            )
        single = Parts(update.value, examples=update.examples)
        return {**reply, "update": single, "labels": Parts(1.0 * (local["labels"] > 0), role="side")}, kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold the mean of the sub-consensus updates."""
        parts: Sequence[Part] = sums["update"]
        known = np.array([float(part.value) > 0 for part in sums["labels"]])
        betas = np.where(known, self.beta if self.beta_labelled is None else self.beta_labelled, self.beta)
        draw = info.rng.child("subsets").generator()
        size = len(parts) if self.size is None else min(self.size, len(parts))
        subsets = [np.sort(draw.choice(len(parts), size, replace=False)) for _ in range(self.groups)]
        rest = {name: value for name, value in sums.items() if name not in ("update", "labels")}
        return super().fold(state, {**rest, "update": sub_consensus(parts, betas, subsets)}, info, phase)


def consensus_weights(distances: Any, examples: Any, betas: Any) -> NDArray[np.float64]:
    """Return ``a_i = n_i exp(-beta_i d_i / n_i) / sum``, ``(clients,)``: positive, adding up to 1, and ``n_i / n`` for equal distances per example."""
    n = np.asarray(examples, np.float64)
    logs = np.log(np.maximum(n, 1e-300)) - np.asarray(betas, np.float64) * np.asarray(
        distances, np.float64
    ) / np.maximum(n, 1e-300)
    raised = np.exp(logs - logs.max())
    found: NDArray[np.float64] = raised / raised.sum()
    return found


def sub_consensus(parts: Sequence[Part], betas: Any, subsets: Sequence[Any]) -> Tree:
    """Return the plain mean of the subsets' weighted means of updates; see `RSCFed`."""
    total, dtypes = None, T.map(lambda leaf: np.asarray(leaf).dtype, parts[0].value)
    values = [T.map(lambda leaf: np.asarray(leaf, np.float64), part.value) for part in parts]
    n = np.array([part.weight for part in parts])
    for subset in subsets:
        plain = _mean([values[i] for i in subset], n[subset] / n[subset].sum())
        away = [sum(float(np.linalg.norm(leaf)) for leaf in T.leaves(T.sub(values[i], plain))) for i in subset]
        made = _mean([values[i] for i in subset], consensus_weights(away, n[subset], np.asarray(betas)[subset]))
        total = made if total is None else T.add(total, made)
    return T.map(lambda leaf, dtype: (leaf / len(subsets)).astype(dtype), total, dtypes)


def _mean(values: Sequence[Tree], weights: Any) -> Tree:
    return T.map(lambda *leaves: sum(w * leaf for w, leaf in zip(weights, leaves, strict=True)), *values)
