"""The capabilities of a training, in addition to those of stages, reducers and budgets (`atoll.core.capability`), and the one place that compares them.

A need is met if every part in the capability's slots offers it; for a capability for which ``some`` part is enough, if one part offers it. A part
does not meet its own needs. An empty slot lacks nothing: a need of the model waits until there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.core import capability as core
from atoll.core.capability import Capability, Need
from atoll.core.errors import CompositionError

__all__ = [
    "AFFINE_FOLD",
    "ALL",
    "BLIND",
    "BY_EXAMPLES",
    "CLASS_SCORES",
    "CURVATURE",
    "DELTA",
    "DRAW_ODDS",
    "EDGE_ROUNDS",
    "EQUAL_REPLIES",
    "EVERYONE",
    "EXAMPLES",
    "LOCAL_STEPS",
    "MARGINS",
    "MEAN_UPDATE",
    "ONE_MODEL",
    "ONE_PHASE",
    "ONE_SUM",
    "OWN_LOSSES",
    "OWN_MODELS",
    "PARTIAL_WORK",
    "PERSONAL_MEASURES",
    "PLAIN_MEAN",
    "Placed",
    "RELEASES",
    "REPORTS",
    "ROUNDS",
    "SAMPLE",
    "SELF_FOLDING",
    "SOLE_UPDATE",
    "STATELESS",
    "STATISTICS",
    "SUMMED",
    "TRAINING",
    "WHOLE_POPULATION",
    "compose",
    "lack_of",
    "require_composed",
]


# ---------------------------------------------------------------------- selection

EVERYONE = Capability(
    "everyone",
    of=("cohort", "topology"),
    means="Every client is invited in every round, or is the only client of its own server.",
    lack="invites some of them",
    instead="selection=Everyone()",
    some=True,
)
DRAW_ODDS = Capability(
    "draw odds",
    of=("selection",),
    means="The draws of a round are independent, and each probability is known.",
    lack="does not report draw probabilities, or draws without replacement",
    instead="SizeProportional() or FedProf(replace=True)",
)
BLIND = Capability(
    "blind selection",
    of=("selection",),
    means="Whom a round invites does not depend on the clients' data, sizes or replies.",
    lack="invites by what it knows of the clients",
    instead="Uniform(), PoissonSample(), FixedSample() or Everyone()",
)
SAMPLE = Capability(
    "uniform sample",
    of=("selection",),
    means="A round draws a given number or share of the clients uniformly and without memory.",
    lack="picks clients by what it knows or remembers, or invites all",
    instead="selection=Uniform(...)",
)

# ---------------------------------------------------------------------- pacing

ROUNDS = Capability(
    "closed rounds",
    of=("pacing",),
    means="A round accepts replies to its own invitations only, and reports when it closes.",
    lack="lets clients work on several models",
    instead="Synchronous()",
)
ONE_MODEL = Capability(
    "one model",
    of=("pacing",),
    means="All clients of a round begin with the same model, the server's newest.",
    lack="lets clients work on models of several versions",
    instead="Synchronous()",
)
WHOLE_POPULATION = Capability(
    "whole population",
    of=("pacing",),
    means="The cohort of a round represents all clients.",
    lack="has rounds of only part of the population",
    instead="Synchronous()",
)

# ---------------------------------------------------------------------- topology

EDGE_ROUNDS = Capability(
    "edge rounds",
    of=("topology",),
    means="Edge servers run one round each under a cloud, which averages after each round.",
    lack="has no cloud that averages after every edge round",
    instead="topology=Hierarchical(groups)",
)
ONE_SUM = Capability(
    "one sum",
    of=("topology",),
    means="The replies of a round add up over the clients of the whole population.",
    lack="adds up the replies of some clients only",
    instead="topology=Star()",
)

# ---------------------------------------------------------------------- aggregation

PLAIN_MEAN = Capability(
    "plain mean",
    of=("aggregation",),
    means="The mean over the clients that replied, with the algorithm's own weights and no memory.",
    lack="uses another rule",
    instead="Renormalised()",
)

# ---------------------------------------------------------------------- algorithm

ONE_PHASE = Capability(
    "one phase",
    of=("algorithm",),
    means="A client is contacted once in a round.",
    lack="contacts its clients several times in a round, in phases",
    instead="an algorithm of one phase, such as FedAvg()",
)
PARTIAL_WORK = Capability(
    "partial work",
    of=("algorithm",),
    means="Clients may do a different amount of local work than the algorithm sets.",
    lack="requires its own amount of local work",
    instead="an algorithm of local steps such as FedAvg, FedProx or Scaffold",
)
OWN_MODELS = Capability(
    "own models",
    of=("algorithm", "buffers"),
    means="A client has its own model in addition to the global one.",
    lack="keeps no personal models",
    instead="an algorithm such as atoll.algorithms.Ditto or PFedMe",
    some=True,
)

# ---------------------------------------------------------------------- what clients reply

MEAN_UPDATE = Capability(
    "mean update",
    of=("replies",),
    means="A reply contains the model update, and the server takes its mean.",
    lack="does not reply with the mean update of a model",
    instead="an algorithm such as FedAvg or Scaffold",
)
BY_EXAMPLES = Capability(
    "weights by examples",
    of=("replies",),
    means="Every mean in a reply is weighted by the client's examples.",
    lack="does not weight its means by examples",
    instead="an algorithm such as FedAvg",
)
SUMMED = Capability(
    "sums and means",
    of=("replies",),
    means="Every value that uplink stages act on is combined as a sum or a mean.",
    lack="does not combine its replies as sums and means",
    instead="an algorithm that averages updates, such as FedAvg()",
)
EQUAL_REPLIES = Capability(
    "equal replies",
    of=("replies",),
    means="Every value that uplink stages act on has weight 1, whatever a client holds.",
    lack="weights its replies",
    instead="an algorithm that averages updates, such as FedAvg()",
)
SOLE_UPDATE = Capability(
    "sole update",
    of=("replies",),
    means="A reply is the mean update of the model by examples, and nothing else.",
    lack="replies with more, or with something else",
    instead="FedAvg(), FedProx() or another whose reply is one mean update",
)
DELTA = Capability(
    "weighable update",
    of=("replies",),
    means="A reply can be weighted by its staleness: it is the mean update of one model, plus only sums that no weight contradicts.",
    lack="replies with more than the update of one model",
    instead="an algorithm such as FedAvg, FedProx or Scaffold, or Synchronous()",
)
SELF_FOLDING = Capability(
    "folds one reply",
    of=("replies",),
    means="The algorithm's server folds the reply of a single client.",
    lack="cannot be a server to itself",
    instead="Star(), or an algorithm that folds sums of replies",
)

STATELESS = Capability(
    "stateless clients",
    of=("replies",),
    means="A client keeps nothing from one round to the next.",
    lack="has clients that keep private state for their next round",
    instead="an algorithm whose clients keep nothing, such as FedAvg",
)

AFFINE_FOLD = Capability(
    "affine fold",
    of=("replies",),
    means="Folding a mean of replies gives the mean of their folds, whatever the share of the population that replied.",
    lack="folds in a way that is not affine",
    instead="FedAvg(), FedProx() or another whose server only adds and scales",
)

# ---------------------------------------------------------------------- model

TRAINING = Capability(
    "local training",
    of=("model",),
    means="Clients train the model on their rows.",
    lack="is not trained, but estimated from sums",
    instead="algorithm=SufficientStatistics()",
)
LOCAL_STEPS = Capability(
    "local steps",
    of=("model",),
    means="Atoll takes the local steps, so that an algorithm can change each one and training can end after any.",
    lack="runs its own training",
    instead="a model whose gradients Atoll takes (atoll.models, PyTorch)",
)
STATISTICS = Capability(
    "sufficient statistics",
    of=("model",),
    means="The model is computed from sums of statistics of the rows.",
    lack="is trained by gradients and has no such statistics",
    instead="a naive Bayes model",
)
CURVATURE = Capability(
    "curvature",
    of=("model",),
    means="Hessian-vector products of a loss that is not piecewise linear.",
    lack="has none",
    instead="a smooth loss on atoll.models.linear or a PyTorch module",
)
MARGINS = Capability(
    "margins",
    of=("model",),
    means="The loss is the log-loss of one margin, a function of y w^T x.",
    lack="has a loss that is not a function of y w^T x",
    instead="a linear model with two outputs and cross-entropy",
)
EXAMPLES = Capability(
    "single examples",
    of=("model",),
    means="The gradient of an example's loss depends on no other example, and Atoll can take it alone.",
    lack="does not give the gradients of single examples",
    instead="a model of atoll.models or a PyTorch module, with nn.GroupNorm instead of batch normalisation",
)
OWN_LOSSES = Capability(
    "losses of the algorithm",
    of=("model",),
    means="Local steps descend losses that the algorithm brings with it, on views of the rows, with what the server sent.",
    lack="knows only the training's loss",
    instead="a PyTorch module",
)
RELEASES = Capability(
    "releases",
    of=("model",),
    means="Training records privacy events before it releases anything, and sends only the algorithm's reply.",
    lack="does not record privacy events",
    instead="a PyTorch module or atoll.models.linear",
)
REPORTS = Capability(
    "reports",
    of=("model",),
    means="Clients can report on the model: losses, profiles, sketches.",
    lack="cannot report",
    instead="a model that reports (atoll.models, PyTorch)",
)
PERSONAL_MEASURES = Capability(
    "personal measures",
    of=("model",),
    means="The model can be measured for a client with a given private state: `personal(params, state)`.",
    lack="has no `personal(params, state)`",
    instead="a model of atoll.models, or a PyTorch module",
)
CLASS_SCORES = Capability(
    "class scores",
    of=("model",),
    means="Scores of classes and the gradient of a sum of them: `scores` and `pullback`.",
    lack="has none",
    instead="a classifier: a PyTorch module or atoll.models.linear",
)

ALL: tuple[Capability, ...] = (
    core.DISTINCT_CLIENTS, EVERYONE, DRAW_ODDS, SAMPLE, BLIND, core.REPLIES_ONLY,
    core.FIXED_COHORT, ROUNDS, ONE_MODEL, WHOLE_POPULATION,
    core.SERVER, core.CENTRAL_SERVER, EDGE_ROUNDS, ONE_SUM, core.RELEASED_ONLY,
    core.SINGLE_REPLIES, core.COUNTS, core.EXCESS_REMOVED, core.DROPPABLE, PLAIN_MEAN, core.NUMBERS, core.FITTED,
    ONE_PHASE, core.STEPS, PARTIAL_WORK, OWN_MODELS, core.PROTECTION,
    MEAN_UPDATE, BY_EXAMPLES, SUMMED, EQUAL_REPLIES, SOLE_UPDATE, DELTA, SELF_FOLDING, AFFINE_FOLD, STATELESS, core.UNMEASURED,
    EXAMPLES,
    TRAINING, LOCAL_STEPS, STATISTICS, CURVATURE, MARGINS, OWN_LOSSES, RELEASES, core.NO_BUFFERS, REPORTS, PERSONAL_MEASURES, CLASS_SCORES,
)  # fmt: skip
"""All capabilities, in the order of the table in ``docs/extend/composing.md``."""


# ---------------------------------------------------------------- comparing what parts need and offer


@dataclass(frozen=True)
class Placed:
    """A part in its slot, as the other parts see it.

    Attributes:
        slot: the job's slot, such as ``"selection"``.
        name: the part's name in errors.
        needs: the part's needs.
        lack: capability -> why the part does not offer it, as the end of a sentence; empty if it offers it.
        setting: the job's setting that holds the part; by default the slot.
    """

    slot: str
    name: str
    needs: Sequence[Need]
    lack: Callable[[Capability], str]
    setting: str = ""

    @classmethod
    def of(cls, slot: str, part: Any, name: str = "", setting: str = "") -> Placed:
        """Return a part that declares ``needs``, ``offers`` and, optionally, its own reasons in ``lacks``."""
        lack = lack_of(part.offers, getattr(part, "lacks", {}))
        return cls(slot, name or type(part).__name__, part.needs, lack, setting)


def lack_of(
    offers: Collection[Capability], lacks: Mapping[Capability, str] | None = None
) -> Callable[[Capability], str]:
    """Return ``Placed.lack`` of a part that offers these capabilities and has its own reasons for some that it does not offer."""
    words = lacks or {}
    return lambda capability: "" if capability in offers else words.get(capability, capability.lack)


@dataclass(frozen=True)
class Missing:
    """A need that is not met.

    Attributes:
        part: the part that has the need.
        need: the need.
        lacking: the part that does not offer the capability.
    """

    part: Placed
    need: Need
    lacking: Placed

    @property
    def error(self) -> CompositionError:
        """Return an error that names both parts, the capability, the place and the remedy."""
        wanted = self.need.capability
        remedies = [remedy for remedy in (self.need.instead, wanted.instead) if remedy]
        return CompositionError(
            f"{self.part.name} {self.need.why}, and {self.lacking.name} {self.lacking.lack(wanted)} (missing: {wanted.name})",
            where=f"Training.{self.part.setting or self.part.slot}",
            remedy=f"use {', or '.join(dict.fromkeys(remedies))}",
        )


def compose(parts: Iterable[Placed], later: Collection[str] = ()) -> Iterator[Missing]:
    """Yield every need of these parts that the others do not meet; nothing if the parts go together.

    Args:
        parts: any number of parts of one job; a slot may hold several.
        later: slots with parts not known yet, which may still meet a need for which ``some`` part is enough.
    """
    placed = list(parts)
    for part in placed:
        for need in part.needs:
            yield from _unmet(part, need, placed, later)


def require_composed(parts: Iterable[Placed], later: Collection[str] = ()) -> None:
    """Refuse parts that do not go together.

    Args:
        parts: the parts of one job.
        later: as in ``compose``.

    Raises:
        CompositionError: the first need that is not met.
    """
    for missing in compose(parts, later):
        raise missing.error


def _unmet(part: Placed, need: Need, placed: Sequence[Placed], later: Collection[str]) -> list[Missing]:
    """Return the need, once for every part that fails it; empty if it is met, or if no part that could meet it is there."""
    wanted = need.capability
    if wanted.some and set(wanted.of) & set(later):
        return []
    asked = [other for slot in wanted.of for other in placed if other.slot == slot and other is not part]
    lacking = [other for other in asked if other.lack(wanted)]
    if wanted.some and len(lacking) < len(asked):
        return []
    return [Missing(part, need, other) for other in (lacking[:1] if wanted.some else lacking)]
