"""The protocols of a secure sum, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError
from atoll.core.federation.reducer import Plain, Reducer
from atoll.secure.bounded import BoundedSum
from atoll.secure.encrypted import Encrypted
from atoll.secure.indexing import SecureIndexing
from atoll.secure.masking import OneShot, SecureAggregation
from atoll.secure.multi_round import MultiRound
from atoll.secure.seed_holders import Enclave, TwoServers

from .encodings import wide
from .settings import SumSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from atoll.secure import FixedPoint

    from .encodings import Encoding

__all__ = ["INDEXING", "PROTOCOLS", "Protocol"]

Make = Callable[[SumSettings, "FixedPoint", int], Reducer]


@dataclass(frozen=True)
class Protocol:
    """A protocol.

    Attributes:
        make: ``(settings, codec, parties) -> reducer``.
        steps: step that people name -> the text in the path of its request.
        encodings: names of the encodings that it adds up.
        others: data of the helper parties that its reducer needs, by name.
        indices: ``(codewords, parties) -> reducer`` of indices, whose helpers need no data; ``None`` if the protocol adds up none.
        fixed: what it has in place of the encoding ``fixed``.
    """

    make: Make
    steps: Mapping[str, str] = field(default_factory=dict)
    encodings: tuple[str, ...] = ("fixed", "sq", "prune")
    others: Mapping[str, Any] = field(default_factory=dict)
    indices: Callable[[int, int], SecureIndexing] | None = None
    fixed: Callable[[SumSettings, Sequence[NDArray[np.float64]]], Encoding] | None = None


def _make_indexing(by: str) -> Callable[[int, int], SecureIndexing]:
    """Make `SecureIndexing` with equal weights; two servers get keys where these are shorter than shares."""

    def make(codewords: int, parties: int) -> SecureIndexing:
        made, keys = (SecureIndexing(way, max_weight=1.0) for way in (by, "keys"))
        return keys if keys.block_bits(codewords, parties) < made.block_bits(codewords, parties) else made

    return make


_INDEXED = ("fixed", "sq", "prune", "pq")
_MASKED = {"share": ".halves:deal/", "masked": ".halves:masked/", "reveal": ".halves:reveal/"}


def _complete(settings: SumSettings, codec: FixedPoint, parties: int) -> Reducer:
    del parties
    server = "active" if settings.active else "honest"
    return SecureAggregation(threshold=settings.threshold, neighbours=settings.neighbours, server=server, codec=codec)


def _standing(settings: SumSettings, codec: FixedPoint, parties: int) -> Reducer:
    del parties
    server = "active" if settings.active else "honest"
    return MultiRound(threshold=settings.threshold, neighbours=settings.neighbours, server=server, codec=codec, sums=1)


def _sparse(settings: SumSettings, codec: FixedPoint, parties: int) -> Reducer:
    del parties
    return SecureAggregation(
        threshold=settings.threshold,
        neighbours="auto" if settings.neighbours is None else settings.neighbours,
        loss=settings.loss,
        corrupt=settings.corrupt,
        server="active" if settings.active else "honest",
        codec=codec,
    )


_HELD = {"share": ".halves:entrust/", "masked": ".halves:masked/", "reveal": ".halves:describe/"}


def _least(settings: SumSettings, parties: int) -> int:
    """The smallest number of parties in a sum: the threshold, or two."""
    least = settings.threshold
    count = max(2, math.ceil(least * parties)) if isinstance(least, float) else least
    return count or 2


def _make_holder(kind: type[Enclave | TwoServers]) -> Make:
    def make(settings: SumSettings, codec: FixedPoint, parties: int) -> Reducer:
        return kind(least=_least(settings, parties), codec=codec)

    return make


def _one_shot(settings: SumSettings, codec: FixedPoint, parties: int) -> Reducer:
    threshold = settings.threshold
    if threshold is None and not settings.active:
        threshold = parties // 2 + 1
    return OneShot(threshold=threshold, private=max(1, math.floor(settings.corrupt * parties)), codec=codec)


_CODED = {"share": ".coded:code_words/", "masked": ".coded:code_words/", "reveal": ".coded:sum_shares/"}


_SEALED = {
    "share": ".halves:encrypt_totals/",
    "masked": ".halves:encrypt_totals/",
    "reveal": ".halves:answer_sum/",
}
_SPLIT = {"share": ".halves:split/", "masked": ".halves:split/", "reveal": ".halves:add/"}
# A party sends all in one step; whoever drops out after it is in the sum.
INDEXING = {"share": ".halves:send/", "masked": ".halves:send/", "reveal": ".halves:add/"}


def _make_encrypted(scheme: str) -> Protocol:
    def make(settings: SumSettings, codec: FixedPoint, parties: int) -> Reducer:
        del parties
        if settings.threshold is None:
            return Encrypted(scheme, codec=codec)
        server = "active" if settings.active else "honest"
        return Encrypted(scheme, keys="threshold", threshold=settings.threshold, server=server, codec=codec)

    return Protocol(make, _SEALED, others=_HELPERS)


def _make_bounded(settings: SumSettings, codec: FixedPoint, parties: int) -> Reducer:
    del codec
    if settings.norm is None:
        raise ConfigError("no norm", where="--protocol bounded", remedy="give --norm")
    return BoundedSum(norm=settings.norm, least=_least(settings, parties))


_HELPERS = {"key-holder": None, "dealer": None}


PROTOCOLS: dict[str, Protocol] = {
    "plain": Protocol(lambda settings, codec, parties: Plain(), {"masked": ":reply/"}),
    "secagg": Protocol(_complete, _MASKED),
    "secagg+": Protocol(_sparse, _MASKED),
    "multi-round": Protocol(
        _standing, {"share": ".halves:introduce/", "masked": ".halves:masked/", "reveal": ".halves:reveal/"}
    ),
    "oneshot": Protocol(
        _one_shot, {"share": ".coded:code_words/", "masked": ".coded:code_words/", "reveal": ".coded:sum_shares/"}
    ),
    "enclave": Protocol(_make_holder(Enclave), _HELD, _INDEXED, {"enclave": None}, _make_indexing("enclave")),
    "two-servers": Protocol(
        _make_holder(TwoServers), _HELD, _INDEXED, {"second-server": None}, _make_indexing("shares")
    ),
    "bounded": Protocol(_make_bounded, _SPLIT, ("fixed",), dict.fromkeys(BoundedSum.others), fixed=wide),
    **{scheme: _make_encrypted(scheme) for scheme in ("bfv", "ckks", "paillier", "batchcrypt")},
}
"""Name -> protocol."""
