"""Aggregations of LoRA factors in a training: what the server makes of the clients' ``B_k A_k``, whose mean is not the product of the mean factors.

With ``E = R + B A`` what a layer adds to its frozen weight, and ``E' = E + sum p_k (B_k A_k - B A)`` after a round, exactly:

==================  =====================================================  ==========================
aggregation         next factors                                           off from ``E'``
==================  =====================================================  ==========================
`AverageFactors`    ``B' = sum p_k B_k``, ``A' = sum p_k A_k``              measured by probes
`FFALoRA`           ``A`` stays, ``B' = sum p_k B_k``                       nothing
`FedExLoRA`         as plain, ``R' = E' - B' A'``                          nothing
`FLoRA`             ``R' = E'``, ``B' = 0``, ``A'`` drawn anew                nothing
`FlexLoRA`          the best of the rank: SVD of ``E'``                     what the SVD cuts off
==================  =====================================================  ==========================

The row of a round has ``mixing_error``, the distance from ``E'`` in the Frobenius norm over all layers, divided by the norm of ``E'``.

Clients send the change of the product, ``(out, in)`` a layer, which adds up under masks; or, with ``share="factors"``, their factors, ``rank (out + in)``, one by
one: the server then sees each client's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Parts
from atoll.core.algebra.rng import Rng
from atoll.core.capability import SINGLE_REPLIES, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import Facet, facet
from atoll.learn.aggregation.base import Aggregation
from atoll.learn.algorithm import Algorithm, LocalWork, RoundInfo, Stateful
from atoll.learn.capabilities import ONE_MODEL
from atoll.learn.wrapped import Wrapped, dry_reply, overrides

from .lora import stack_factors, truncate_matrix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.results import Combined

__all__ = ["AverageFactors", "FFALoRA", "FactorRules", "FedExLoRA", "FLoRA", "FlexLoRA", "RESIDUAL", "layers_in"]

RESIDUAL = "residual"
"""The parameter of a layer that keeps what its factors do not hold."""
_A, _B = "lora_A", "lora_B"

Layer = tuple[str, str, str]


class FactorRules(Facet):
    """What the aggregation of a tuning asks of the layers that LoRA changes.

    Attributes:
        residual: whether a layer keeps a matrix beside its factors, which the server alone moves.
        frozen: whether the factor ``A`` stays as it began, and is neither trained nor sent.
    """

    residual: ClassVar[bool] = False
    frozen: ClassVar[bool] = False


def layers_in(params: Mapping[str, Any]) -> dict[str, Layer]:
    """Return the layers that have both factors as matrices: layer -> names of ``B``, ``A`` and the residual, which may not be there."""
    found = {}
    for name, value in params.items():
        layer, factor, rest = name.rpartition(f".{_A}.")
        if factor and np.ndim(value) == 2:
            found[layer] = (f"{layer}.{_B}.{rest}", name, f"{layer}.{RESIDUAL}")
    return {layer: names for layer, names in found.items() if names[0] in params}


# ---------------------------------------------------------------- what clients reply


@dataclass(frozen=True, kw_only=True)
class _Residual(Wrapped, FactorRules):
    """The base on a model whose layers keep a residual."""

    installed: ClassVar[bool] = True
    residual: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class _Adding(Wrapped):
    """The base, with more in its update."""

    installed: ClassVar[bool] = True

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply with more in its update."""
        reply, state = self.base.finish(local, broadcast, client, work)
        update = reply["update"]
        more = self._more(local["params"], broadcast["params"])
        return {**reply, "update": update.with_value({**update.value, **more})}, state

    def _more(self, new: Tree, old: Tree) -> dict[str, Any]:
        """What the update has too, by name, of the parameters after and before the client's steps."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class _Products(_Adding):
    """The base, whose update has the change of each layer's product under the residual's name, ``B_k A_k - B A``."""

    def _more(self, new: Tree, old: Tree) -> dict[str, Any]:
        return {r: new[b] @ new[a] - old[b] @ old[a] for b, a, r in layers_in(old).values()}


@dataclass(frozen=True, kw_only=True)
class _Probed(_Adding):
    """The base, with each layer's ``(B_k A_k - B A) Z`` in the update, for a few public columns ``Z``."""

    probes: int

    def _more(self, new: Tree, old: Tree) -> dict[str, Any]:
        seen = {}
        for layer, (b, a, _) in layers_in(old).items():
            z = _as_kind_of(new[a], _probes(layer, old[a].shape[-1], self.probes))
            seen[_seen_by_probes(layer)] = new[b] @ (new[a] @ z) - old[b] @ (old[a] @ z)
        return seen


@dataclass(frozen=True, kw_only=True)
class _SingleFactors(Wrapped):
    """The base, whose update is a single reply without residuals."""

    installed: ClassVar[bool] = True

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply with its update as a single reply."""
        reply, state = self.base.finish(local, broadcast, client, work)
        kept = {name: one for name, one in reply["update"].value.items() if not name.endswith(f".{RESIDUAL}")}
        return {**reply, "update": Parts(kept, examples=work.examples)}, state


@dataclass(frozen=True, kw_only=True)
class _FrozenA(Wrapped, FactorRules):
    """The base on a model whose factor ``A`` stays."""

    installed: ClassVar[bool] = True
    frozen: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class _Ranked(Wrapped, Stateful):
    """The base at a client that has the first columns of ``B`` and rows of ``A`` alone, those of the largest singular values. It draws their number at its first contact."""

    installed: ClassVar[bool] = True
    ranks: tuple[int, ...]

    def client_init(self, params: Tree) -> Tree:
        """Begin with no number."""
        kept = np.zeros(_largest_rank(params), dtype=np.float32)
        return _around(facet(self.base, Stateful).client_init(params), kept)

    def draw(self, rng: Rng, params: Tree) -> Tree:
        """Draw a rank, as 1 for each column that is kept; a client that has one keeps it."""
        rank = int(rng.generator().choice(self.ranks))
        return (np.arange(_largest_rank(params)) < rank).astype(np.float32)

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the base's model of a client."""
        return facet(self.base, Stateful).personal(params, client.get("base"))

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state, and the client's own rank."""
        return {**self.base.start(broadcast, client.get("base")), "keep": client["keep"]}

    def step(self, local: Tree, grad: Any, broadcast: Tree) -> Tree:
        """Take the base's step on the factors of the client's rank."""
        cut = self._cut(local)
        return {**self.base.step(cut, grad, broadcast), "keep": cut["keep"], "drawn": local["drawn"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply, of factors of the client's rank."""
        cut = self._cut(local)
        reply, state = self.base.finish(cut, broadcast, client.get("base"), work)
        return reply, _around(state, cut["keep"])

    def _cut(self, local: Tree) -> Tree:
        own, drawn = local["keep"], local["drawn"]
        keep = own + (1.0 - own[..., :1]) * drawn  # a rank is at least 1
        params = dict(local["params"])
        for b, a, _ in layers_in(params).values():
            kept = keep[..., : params[a].shape[-2]]
            params[b], params[a] = params[b] * kept[..., None, :], params[a] * kept[..., :, None]
        return {**local, "params": params, "keep": keep}


def _around(state: Tree, keep: Any) -> Tree:
    """Return a client's state with the base's in it, if that has any."""
    return {"keep": keep} if state is None else {"base": state, "keep": keep}


def _largest_rank(params: Tree) -> int:
    return max(int(params[a].shape[-2]) for _, a, _ in layers_in(params).values())


def _probes(layer: str, width: int, count: int) -> NDArray[np.float32]:
    """Return columns of signs, ``(width, count)``: the mean of ``||M z||^2`` is ``||M||^2``. They are public, and the same in all rounds."""
    signs = Rng.of(0).child("probe", layer).generator().integers(0, 2, (width, count))
    return (2.0 * signs - 1.0).astype(np.float32)


def _seen_by_probes(layer: str) -> str:
    return f"{layer}.probes"


def _as_kind_of(leaf: Any, rows: NDArray[np.float32]) -> Any:
    """Return rows in the library of a leaf."""
    if isinstance(leaf, np.ndarray):
        return rows
    return T.namespace(leaf).as_tensor(rows, dtype=leaf.dtype, device=leaf.device)


# ---------------------------------------------------------------- what the server makes of them


@dataclass(frozen=True)
class _State:
    """A layer at the server, in double precision: its factors, its residual, and the exact ``E'``."""

    b: NDArray[np.float64]
    a: NDArray[np.float64]
    r: NDArray[np.float64]
    exact: NDArray[np.float64]


@dataclass(frozen=True)
class _OfFactors(Aggregation):
    """Base class of the aggregations: refuses what has no factors, or whose server does not add the mean update."""

    needs_residual: ClassVar[bool] = False

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse a model without factors, and an algorithm whose server does more than to add the mean update."""
        name = type(self).__name__
        layers = layers_in(params)
        odd = [
            one
            for one in params
            if "lora_embedding_" in one
            or "lora_magnitude_vector" in one
            or (f".{_A}." in one and np.ndim(params[one]) != 2)
        ]
        if not layers or odd:
            raise CompositionError(
                f"{name} averages LoRA factors of linear layers, and the model has {odd[0] if odd else 'none'}",
                where="Training.aggregation",
                remedy="use method=peft.LoraConfig(...) on linear layers, without use_dora, or aggregation=Renormalised()",
            )
        if self.needs_residual and any(r not in params for _, _, r in layers.values()):
            raise CompositionError(
                f"{name} keeps a residual at each layer, and this model has no place for it",
                where="Training.aggregation",
                remedy="train with atoll.Tuning, which makes one, or use AverageFactors()",
            )
        self._require_plain_fold(base, params)

    def _require_plain_fold(self, base: Algorithm, params: Tree) -> None:
        reply = dry_reply(base, params)
        if isinstance(reply.get("update"), Mean):
            sums = {one: T.zeros_like(T.map(np.asarray, a.value)) for one, a in reply.items()}
            sums["update"] = T.map(np.ones_like, sums["update"])
            info = RoundInfo(round=1, selected=1, replied=1, population=1)
            after = base.fold(base.init(params), sums, info, base.phases[-1])["params"]
            if all(np.allclose(after[one], np.asarray(params[one]) + 1.0, rtol=1e-6, atol=1e-6) for one in params):
                return
        raise CompositionError(
            f"the server of {type(base).__name__} does not just add the mean update, so that factors and residual would part",
            where=f"Training.aggregation={type(self).__name__}",
            remedy="use an algorithm such as FedAvg(), FedProx() or LocalAdam()",
        )

    def init(self, params: Tree) -> Tree:
        """Begin with no error."""
        del params
        return {"mixing_error": np.float64(0.0)}

    def measured(self, memory: Tree, utility: Any, name: Any) -> tuple[dict[str, Any], Tree]:
        """Return the errors of the round."""
        del utility, name
        return {one: float(value) for one, value in memory.items() if not math.isnan(value)}, memory


@dataclass(frozen=True)
class AverageFactors(_OfFactors):
    """The means of the factors, each by itself: what FedAvg does with LoRA (FedIT, Zhang et al. 2024), and how far it is from the mean of the products.

    Clients send ``(B_k A_k - B A) Z`` too, of a few public columns of signs ``Z``, ``(in, probes)``. ``||M Z||^2 / probes`` has the mean ``||M||^2``
    (Hutchinson 1990), so that the error is known without any client's factors, under masks too.

    Attributes:
        probes: columns for each layer; 0 measures nothing.
    """

    probes: int = 4

    def __post_init__(self) -> None:
        if self.probes < 0:
            raise ConfigError(f"probes={self.probes}", where="AverageFactors", remedy="use a number of columns, or 0")

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base, with probes in its update."""
        return _Probed(base=base, probes=self.probes) if self.probes else base

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return the means, and measure them."""
        del info
        if not self.probes or "update" not in combined.value:
            return combined.value, memory
        update = dict(combined.value["update"])
        off = size = 0.0
        for layer, (b, a, _) in layers_in(params).items():
            z = _probes(layer, np.shape(params[a])[1], self.probes).astype(np.float64)
            seen = np.asarray(update.pop(_seen_by_probes(layer)), dtype=np.float64)
            old_b, old_a = _wide(params[b]), _wide(params[a])
            exact = seen + old_b @ (old_a @ z)
            mixed = (old_b + _wide(update[b])) @ ((old_a + _wide(update[a])) @ z)
            off, size = off + float(((mixed - exact) ** 2).sum()), size + float((exact**2).sum())
        return {**combined.value, "update": update}, {"mixing_error": np.float64(_ratio(off, size))}


@dataclass(frozen=True)
class FFALoRA(_OfFactors):
    """Only ``B`` is trained and sent, ``A`` stays as it began: the mean of ``B_k`` is the mean of the products.

    Half the bytes, and noise of differential privacy is not squared. Sun et al. 2024, "Improving LoRA in Privacy-preserving Federated Learning".
    """

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base on a model whose ``A`` stays."""
        return _FrozenA(base=base)

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse a model that trains ``A``, or has no factors."""
        if not any(f".{_B}." in name for name in params) or any(f".{_A}." in name for name in params):
            raise CompositionError(
                "FFALoRA trains the factor B alone, and the model has "
                + ("both" if layers_in(params) else "no such factor"),
                where="Training.aggregation",
                remedy="use atoll.Tuning with method=peft.LoraConfig(...), which freezes A, or aggregation=AverageFactors()",
            )


@dataclass(frozen=True)
class _Exact(_OfFactors):
    """Base class of those that know the mean of the products."""

    share: Literal["products", "factors"] = "products"
    needs_residual: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.share not in ("products", "factors"):
            raise ConfigError(
                f"share={self.share!r}",
                where=type(self).__name__,
                remedy='use "products", whose sum can be masked, or "factors"',
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """Single replies, if the server multiplies the factors."""
        instead = f'{type(self).__name__}("products")'
        single = (
            Need(SINGLE_REPLIES, "sees single replies", instead),
            Need(ONE_MODEL, "adds up factors of one round", instead),
        )
        return (*super().needs, *(single if self.share == "factors" else ()))

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with products, or single factors, in its reply."""
        made: Algorithm = _Products(base=base) if self.share == "products" else _SingleFactors(base=base)
        return _Residual(base=made) if self.needs_residual else made

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return the update that places the mean of the products, and its error."""
        if "update" not in combined.value:
            return combined.value, memory
        update, states = (
            _read_parts(combined, params) if combined.kinds["update"] == "parts" else _read_sums(combined, params)
        )
        off = plain = size = 0.0
        for layer, (b, a, r) in layers_in(params).items():
            state = states[layer]
            new = self.place(state, layer, info)
            for name, value in ((b, new.b), (a, new.a), (r, new.r)):
                if name in params:
                    update[name] = (value - _wide(params[name])).astype(np.asarray(params[name]).dtype)
            off += float(((new.r + new.b @ new.a - state.exact) ** 2).sum())
            plain += float(((state.r + state.b @ state.a - state.exact) ** 2).sum())
            size += float((state.exact**2).sum())
        errors = {"mixing_error": np.float64(_ratio(off, size)), "plain_error": np.float64(_ratio(plain, size))}
        return {**combined.value, "update": update}, errors

    def init(self, params: Tree) -> Tree:
        """Begin with no errors."""
        return {**super().init(params), "plain_error": np.float64(0.0)}

    def place(self, state: _State, layer: str, info: RoundInfo) -> _State:
        """Return the layer's next factors and residual.

        Args:
            state: the mean factors, the residual of before, and ``E'``.
            layer: the layer's name.
            info: the round.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class FedExLoRA(_Exact):
    """The mean factors, and what their product lacks in a residual of the layer (Singhal, Ponkshe, Vepakomma 2024, "FedEx-LoRA").

    ``mixing_error`` is 0 up to rounding, ``plain_error`` what plain averaging would have lost. The residual travels to the clients, ``(out, in)`` a layer.

    Attributes:
        share: ``"products"``: clients send the change of ``B_k A_k``, ``(out, in)``; it adds up under masks. ``"factors"``: they send their factors, which
            the server sees one by one.
    """

    def place(self, state: _State, layer: str, info: RoundInfo) -> _State:
        """Keep the mean factors."""
        del layer, info
        return _State(state.b, state.a, state.exact - state.b @ state.a, state.exact)


@dataclass(frozen=True)
class FLoRA(_Exact):
    """The clients' products go into the layer, and the factors begin anew: ``B = 0`` and a fresh ``A`` (Wang et al. 2024, "FLoRA"; stacked factors have the same product).

    Attributes:
        share: see `FedExLoRA`.
    """

    def place(self, state: _State, layer: str, info: RoundInfo) -> _State:
        """Begin anew, ``A`` uniform in ``±1 / sqrt(in)`` as peft begins."""
        bound = 1.0 / math.sqrt(state.a.shape[1])
        fresh = info.rng.child("factors", layer).generator().uniform(-bound, bound, state.a.shape).astype(np.float32)
        return _State(np.zeros_like(state.b), fresh.astype(np.float64), state.exact, state.exact)


@dataclass(frozen=True)
class FlexLoRA(_Exact):
    """The factors nearest to the mean of the products, by SVD, for clients of several ranks. A client of rank r takes the r largest singular values.

    Bai et al. 2024, "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client Resources".

    Attributes:
        share: see `FedExLoRA`.
        ranks: ranks of clients; each draws one of them, at its first contact, all equally likely. Empty: all have the layer's rank.
    """

    ranks: Sequence[int] = field(default=(), kw_only=True)
    needs_residual: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(int(rank) != rank or rank < 1 for rank in self.ranks):
            raise ConfigError(
                f"ranks={list(self.ranks)}",
                where="FlexLoRA",
                remedy="give whole numbers of at least 1, such as ranks=[2, 4, 8]",
            )
        object.__setattr__(self, "ranks", tuple(int(rank) for rank in self.ranks))

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with products, or single factors, of a client's rank."""
        made = super().algorithm(base)
        return _Ranked(base=made, ranks=tuple(self.ranks)) if self.ranks else made

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse ranks above the layers', and a base with random numbers of its own beside them."""
        super().check(base, params)
        largest = _largest_rank(params)
        if self.ranks and max(self.ranks) > largest:
            raise CompositionError(
                f"ranks={list(self.ranks)}, and the layers have rank {largest}",
                where="FlexLoRA",
                remedy=f"use ranks up to {largest}, or a method of the largest: LoraConfig(r={max(self.ranks)})",
            )
        if self.ranks and overrides(base, "draw"):
            raise CompositionError(
                f"{type(base).__name__} draws random numbers at clients, as ranks do",
                where="FlexLoRA",
                remedy="leave ranks= out, or use FedAvg()",
            )

    def place(self, state: _State, layer: str, info: RoundInfo) -> _State:
        """Keep the largest singular values."""
        del layer, info
        rank = state.a.shape[0]
        b, a = truncate_matrix(state.exact, rank)
        return _State(b, a, np.zeros_like(state.exact), state.exact)


def _read_sums(combined: Combined, params: Tree) -> tuple[dict[str, Any], dict[str, _State]]:
    """Return the mean update, and the layers of its mean factors and products."""
    update, found = dict(combined.value["update"]), {}
    for layer, (b, a, r) in layers_in(params).items():
        old_b, old_a = _wide(params[b]), _wide(params[a])
        kept = _wide(params[r]) if r in params else np.zeros((old_b.shape[0], old_a.shape[1]))
        exact = kept + old_b @ old_a + _wide(update.pop(r))
        found[layer] = _State(old_b + _wide(update[b]), old_a + _wide(update[a]), kept, exact)
    return update, found


def _read_parts(combined: Combined, params: Tree) -> tuple[dict[str, Any], dict[str, _State]]:
    """The same of single replies."""
    parts = combined.value["update"]
    weights = np.array([part.weight for part in parts], dtype=np.float64)
    shares = weights / weights.sum()
    update = {}
    for name in parts[0].value:
        mean = sum(p * _wide(part.value[name]) for p, part in zip(shares, parts, strict=True))
        update[name] = np.asarray(mean).astype(np.asarray(params[name]).dtype)
    found = {}
    for layer, (b, a, r) in layers_in(params).items():
        old_b, old_a = _wide(params[b]), _wide(params[a])
        own = [(old_b + _wide(part.value[b]), old_a + _wide(part.value[a])) for part in parts]
        kept = _wide(params[r]) if r in params else np.zeros((old_b.shape[0], old_a.shape[1]))
        left, right = stack_factors(own, weights.tolist())
        mean_b, mean_a = (sum(p * one[i] for p, one in zip(shares, own, strict=True)) for i in (0, 1))
        found[layer] = _State(np.asarray(mean_b), np.asarray(mean_a), kept, kept + left @ right)
    return update, found


def _wide(leaf: Any) -> NDArray[np.float64]:
    return np.asarray(leaf, dtype=np.float64)


def _ratio(off: float, size: float) -> float:
    return math.sqrt(off / size) if size else (0.0 if not off else math.inf)
