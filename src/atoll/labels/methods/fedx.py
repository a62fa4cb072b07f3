"""FedX: relations between rows, as an addition to any self-supervised method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.learn.algorithm import Labelled
from atoll.learn.local.own_loss import LossSignature, OwnLoss

from ..heads import REAL, parts_of
from ..losses import mean_of
from ..objectives.contrastive import nt_xent, relational
from .base import Method
from .selfsupervised import SelfSupervised, prepare_embeddings, two_views

__all__ = ["FedX", "RelationLoss"]


@dataclass(frozen=True)
class RelationLoss(OwnLoss):
    """A method's loss, plus FedX's terms.

    ``l + contrast NT-Xent(z, Z') + local JS(r, r+) + overall JS(R, R+)``: ``z`` are the client's projections and ``Z'`` the global model's of
    the other view, ``r`` relations of both views to the mini-batch, and ``R`` their relations to the global model's projections of it.
    """

    inner: OwnLoss
    view: Any
    normalise: bool
    contrast: float
    local: float
    overall: float
    temperature: float

    @property
    def fewest(self) -> int:
        """Two, or as many as the method needs."""
        return max(2, self.inner.fewest)

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the mean over the mini-batch's rows."""
        heard = _Heard(model, getattr(self.inner, "both_views", False))
        given = {"model": heard, "x": x, "keys": keys, "real": real, "broadcast": broadcast}
        base = self.inner(**{name: given[name] for name in LossSignature.of(self.inner).names})
        if len(x) < 2:
            return base
        params = broadcast["params"]
        made = two_views(model, self.view, x, keys, real, "FedX", params) if heard.both is None else heard.both
        first, second = parts_of(made, params, "FedX").halves()
        sent = two_views(model, self.view, x, keys, real, "FedX", params, params)
        one, other = parts_of(sent, params, "FedX").halves()
        halves = (first, second, one, other)
        z, near, glob, far = (prepare_embeddings(half.projection, real, self.normalise) for half in halves)
        sets = (z, self.local), (glob, self.overall)
        rows = sum(weight * relational(z, near, those, self.temperature, real) for those, weight in sets)
        rows = rows + self.contrast * nt_xent(z, far.detach(), self.temperature, real)
        return base + mean_of(rows, real)


class _Heard:
    """The model as a method's loss sees it; it remembers what the client's own parameters made of both views, if the loss begins with them."""

    def __init__(self, model: Any, both_views: bool) -> None:
        self._model = model
        self._listens = both_views
        self.both: Any = None

    def __call__(self, x: Any, params: Any = None, **options: Any) -> Any:
        made = self._model(x, params, **options)
        if self._listens and set(params or ()) <= {REAL} and self.both is None:
            self.both = made
        return made


@dataclass(frozen=True, kw_only=True)
class FedX(Method):
    """FedX around a self-supervised method, as in ``FedX(base=FedSimCLR())``: views of a row relate to other rows alike, locally and globally.

    The survey's equations (96) and (97), and the contrast with the global model of the authors' code. Where that takes a second random batch as the
    reference set, this takes the mini-batch, as (96) says.

    Attributes:
        base: a self-supervised method.
        contrast: weight of the contrast with the global model's projections, 0 or more.
        local: weight of the relations within the client's projections.
        overall: weight of the relations to the global model's projections.
        temperature: of all terms; the authors' code has 0.1.
    """

    contrast: float = 1.0
    local: float = 1.0
    overall: float = 1.0
    temperature: float = 0.1
    citation: ClassVar[str] = (
        "Han, Park, Wu, Kim, Wu, Xie, Cha. FedX: Unsupervised Federated Learning with Cross Knowledge Distillation. ECCV 2022."
    )

    def __post_init__(self) -> None:
        if not isinstance(self.base, SelfSupervised):
            raise CompositionError(
                f"base={self.base!r} has no two views of a row",
                where="FedX",
                remedy="put it around a self-supervised method, as in FedX(base=FedSimCLR())",
            )
        super().__post_init__()
        if self.batch_size == 1:
            raise ConfigError(
                "batch_size=1", where="FedX", remedy="relations need other rows: use 2 or more, better 64"
            )
        if min(self.contrast, self.local, self.overall) < 0.0 or not self.temperature > 0.0:
            raise ConfigError(
                f"contrast={self.contrast}, local={self.local}, overall={self.overall}, temperature={self.temperature}",
                where="FedX",
                remedy="use weights of 0 or more, and a temperature above 0",
            )

    @property
    def losses(self) -> tuple[Any, ...]:
        """The method's losses, the first with the relations added."""
        first, *others = facet(self.base, Labelled).losses
        weights = self.contrast, self.local, self.overall
        return (RelationLoss(first, self.base.view, self.base.normalise, *weights, self.temperature), *others)  # type: ignore[attr-defined]
