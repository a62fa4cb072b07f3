"""FedCA: SimCLR with a dictionary of all clients' features, and features of public rows that agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Parts
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.policy import ROW_FEATURES
from atoll.learn.algorithm import Algorithm, Gradient, Helped, Labelled, LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..heads import embedding_of, parts_of, seen_by
from ..losses import mean_of
from ..objectives.contrastive import nt_xent
from ..views.base import View
from .fedsimclr import FedSimCLR
from .selfsupervised import prepare_embeddings, sgd, two_views

__all__ = ["FedCA", "FedCALoss", "PoolFeatures"]


@dataclass(frozen=True)
class PoolFeatures(OwnLoss):
    """Reads the global model's projections of the first rows of a mini-batch, and those rows if they are public.

    Attributes:
        count: rows.
        normalise: whether projections are standardised over these rows, as losses compare them.
        rows: whether the rows themselves are read too.
    """

    count: int
    normalise: bool = False
    rows: bool = False

    def __call__(self, *, model: Any, x: Any, real: Any, broadcast: Any) -> Any:
        """Return the projections, ``(count, width)``, zeros for padding; and the rows if asked."""
        params, there = broadcast["params"], real[: self.count]
        made = parts_of(seen_by(model, x[: self.count], there, "FedCA", params, params), params, "FedCA").projection
        features = prepare_embeddings(made, there, self.normalise) * there.unsqueeze(1)
        return {"features": features, "rows": x[: self.count]} if self.rows else {"features": features}


@dataclass(frozen=True)
class FedCALoss(OwnLoss):
    """NT-Xent with the dictionary's entries as further negatives, plus ``weight mean |z_pub - a|^2`` over public rows.

    ``z_pub`` are the client's normalised projections of ``broadcast["public"]``, and ``a`` the global model's, ``broadcast["aligned"]``.
    """

    view: View | None
    temperature: float
    weight: float
    normalise: bool
    shared: int

    @property
    def fewest(self) -> int:
        """As many rows as a client shares features of, and two: a row has nothing to contrast with alone."""
        return max(2, self.shared)

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the mean over the mini-batch's rows, and over the public ones."""
        from torch.nn.functional import normalize

        params = broadcast["params"]
        public = broadcast["public"]
        made = seen_by(model, public, public.new_ones(len(public)), "FedCA", params)
        shown = parts_of(made, params, "FedCA").projection
        aligned = (normalize(shown, dim=1) - normalize(broadcast["aligned"], dim=1)).square().sum(1).mean()
        if len(x) < 2:
            return self.weight * aligned
        first, second = parts_of(two_views(model, self.view, x, keys, real, "FedCA", params), params, "FedCA").halves()
        near, far = (prepare_embeddings(half.projection, real, self.normalise) for half in (first, second))
        rows = nt_xent(near, far, self.temperature, real, broadcast["dictionary"])
        return mean_of(rows, real) + self.weight * aligned


@dataclass(frozen=True, kw_only=True)
class FedCA(FedSimCLR, Helped):
    """FedCA: a dictionary of features makes negatives of all clients' rows, and an alignment on public rows keeps clients' features comparable.

    A round has two phases. In the first, the helper ``"public"``, whose rows are public, sends some of them with the global model's projections. In
    the second, clients train on them and on their own rows, and send ``shared`` projections of their own rows, by the global model, for the dictionary.

    **Everybody sees features of single rows**: the price of the method, which the survey names as its drawback. A site must allow ``row-features`` by
    that name in its policy. It needs a public pool:
    ``islands.with_others({"public": rows})``.

    Attributes:
        dictionary: entries, of which the oldest leave.
        shared: features that a client sends in a round.
        aligned: public rows in a round.
        alignment: weight of the alignment, 0 or more.
    """

    base: Algorithm = field(default_factory=lambda: sgd())
    dictionary: int = 512
    shared: int = 32
    aligned: int = 32
    alignment: float = 1.0
    phases: ClassVar[tuple[str, ...]] = ("public", "train")
    citation: ClassVar[str] = (
        "Zhang, Kuang, Chen, You, Shen, Xiao, Zhang, Wu, Wu, Zhuang, Li. Federated Unsupervised Representation Learning. 2020."
    )
    card: ClassVar[Card] = Card(family="wrapper", note="Shares features of single rows with everybody.")
    consents: ClassVar[tuple[str, ...]] = (ROW_FEATURES,)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "phases", ("public", "train"))
        if min(self.dictionary, self.shared, self.aligned) < 1 or not self.alignment >= 0.0:
            raise ConfigError(
                f"dictionary={self.dictionary}, shared={self.shared}, aligned={self.aligned}, alignment={self.alignment}",
                where="FedCA",
                remedy="use 1 or more of each, and a weight of 0 or more",
            )
        if self.batch_size is not None and self.shared > self.batch_size:
            raise ConfigError(
                f"shared={self.shared} with batch_size={self.batch_size}",
                where="FedCA",
                remedy="share at most a mini-batch of features",
            )

    @property
    def objective(self) -> OwnLoss:
        """FedCA's loss."""
        return FedCALoss(self.view, self.temperature, self.alignment, self.normalise, self.shared)

    @property
    def losses(self) -> tuple[Any, ...]:
        """FedCA's loss, and what reads features."""
        return (*super().losses, PoolFeatures(self.shared, self.normalise))

    @property
    def helpers(self) -> Mapping[str, str]:
        """The party with public rows."""
        return {"public": "public"}

    def asks(self, phase: str) -> tuple[str, ...]:
        """Ask the party with public rows for them, and clients for everything else."""
        return ("public",) if phase == "public" else ()

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Show public rows, or train."""
        return (
            (_Shown(aligned=self.aligned, batch_size=self.aligned, steps=1),)
            if phase == "public"
            else super().passes(phase)
        )

    def init(self, params: Tree) -> Tree:
        """Start with the method's state and an empty dictionary."""
        width = len(embedding_of(params, "FedCA"))
        empty = np.zeros((self.dictionary, width), np.float32)
        return {**super().init(params), "dictionary": empty}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the method's broadcast; to clients also the dictionary and the public rows."""
        made = super().broadcast(state, phase)
        if phase == "public" or "public" not in state:
            return made
        return {**made, **{name: state[name] for name in ("dictionary", "public", "aligned")}}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the method's local state, and no feature to share yet."""
        empty = embedding_of(broadcast["params"], "FedCA") * 0.0
        return {**super().start(broadcast, client), "shared": T.stack([empty] * self.shared)}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the method's step, and read features of this mini-batch to share."""
        oracle: Any = grad
        inner = {name: value for name, value in local.items() if name != "shared"}
        return {
            **super().step(inner, grad, broadcast),
            "shared": oracle.read(PoolFeatures(self.shared, self.normalise), local["params"])["features"],
        }

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the method's reply, and the last mini-batch's features."""
        inner = {name: value for name, value in local.items() if name != "shared"}
        reply, kept = super().finish(inner, broadcast, client, work)
        return {**reply, "shared": Parts(local["shared"], examples=work.examples, role="side")}, kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Take the public rows, or fold as the method does and let features enter the dictionary."""
        if phase == "public":
            shown = sums["shown"][0].value
            return {**state, "public": shown["rows"], "aligned": shown["features"]}
        made = super().fold(state, {name: value for name, value in sums.items() if name != "shared"}, info, phase)
        return {**made, "dictionary": _renew_entries(state["dictionary"], [part.value for part in sums["shared"]])}

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Ask for public rows, then do as the base does."""
        return ("public", *self.base.plan(state))


def _renew_entries(entries: Any, more: list[Any]) -> Any:
    """Return the dictionary with unit features at its head; those of padding, which are zero, do not enter, and the oldest leave."""
    rows = np.concatenate([np.asarray(part, np.float32) for part in more])
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = (rows / np.maximum(lengths, 1e-12))[lengths[:, 0] > 0]
    return np.concatenate([rows, entries])[: len(entries)]


@dataclass(frozen=True, kw_only=True)
class _Shown(Algorithm, Labelled):
    """What the party with public rows does: it sends a mini-batch of them, with the global model's projections."""

    aligned: int
    partial: ClassVar[bool] = False

    @property
    def losses(self) -> tuple[Any, ...]:
        """What reads the rows."""
        return (PoolFeatures(self.aligned, rows=True),)

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Read a mini-batch."""
        oracle: Any = grad
        return {**local, "shown": oracle.read(self.losses[0], broadcast["params"])}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the rows and their projections."""
        shown = local.get("shown", {})
        return {"shown": Parts(shown, examples=work.examples, role="side")}, client
