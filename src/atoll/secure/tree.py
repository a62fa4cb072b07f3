"""Several cohorts of one round, each with a secure sum of its own."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.exposure import Exposure
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.request import Reduced
from atoll.core.validation import Checked

from .masking import SecureAggregation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Terms
    from atoll.core.requests.task import Task

__all__ = ["SecureTree"]


@dataclass(frozen=True)
class SecureTree(Checked, Reducer):
    """Split a round into cohorts at random, add up each by a secure sum of its own, all at once, and then add up the cohorts' sums.

    Masks are agreed inside a cohort: with ``n`` parties in cohorts of ``m``, set-up and masks cost ``n m`` in place of ``n^2``. A cohort that loses more parties than its
    threshold allows is left out, and the others count; with a single sum the round would fail.

    **The server sees the sum of every cohort**, and so sums of fewer parties than under ``reducer`` alone: of ``size`` or more, less those that drop out. The cohorts are
    others in each round, so sums over rounds differ in many parties. If that shows too much, use ``SecureAggregation(neighbours="auto")``: one sum in a sparse graph.

    The quorum of a round holds for each cohort, and each closes after its share of ``accept``. A rule that chooses among all replies of a round needs them in one
    place: then there is one cohort.

    Attributes:
        reducer: how a cohort is added up: a secure reducer without helpers, such as `SecureAggregation` or `OneShot`.
        size: least number of parties that a cohort begins with.

    Raises:
        ConfigError: a setting makes no sense.
    """

    reducer: Reducer = field(default_factory=SecureAggregation)
    size: int = 100
    secure: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (
            not self.reducer.secure
            or self.reducer.others
            or self.reducer.lasting
            or isinstance(self.reducer, SecureTree)
        ):
            raise ConfigError(
                f"reducer={type(self.reducer).__name__}()",
                where="SecureTree",
                remedy="use a secure reducer without helpers and standing keys: SecureAggregation or OneShot",
            )
        if self.size < 2:
            raise ConfigError(
                f"size={self.size}", where="SecureTree", remedy="use 2 or more: a sum of one is its reply"
            )

    def cohorts(self, parties: int, key: int = 0) -> list[NDArray[np.int64]]:
        """The places of each cohort's parties in the round, a random partition into cohorts of ``size`` or more; sizes differ by at most one.

        Args:
            parties: of the round.
            key: what the partition follows from.
        """
        order = Rng(key).child("cohorts").generator().permutation(parties)
        return [np.sort(part).astype(np.int64) for part in np.array_split(order, max(1, parties // self.size))]

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse what the cohorts' reducer refuses, for the smallest cohort; see ``Reducer.check``.

        Raises:
            CompositionError: the parts do not go together.
            QuorumError: the round is too small.
        """
        super().check(uplink, parties, terms, task)
        places = min(self._split(terms, len(parties), 0), key=len)
        self.reducer.check(uplink, parties[places], self._terms(terms, places, len(parties)), task)

    def _split(self, terms: Terms, parties: int, key: int) -> list[NDArray[np.int64]]:
        whole = terms.accept is not None and not isinstance(terms.accept, int)
        return [np.arange(parties)] if whole else self.cohorts(parties, key)

    @staticmethod
    def _terms(terms: Terms, places: NDArray[np.int64], parties: int) -> Terms:
        """A cohort's terms: its share of ``accept``, and the quorum of the round, which every sum that is opened must have: noise that clients share relies on it.

        Raises:
            CompositionError: a cohort is smaller than the quorum.
        """
        if terms.quorum > len(places):
            raise CompositionError(
                f"quorum={terms.quorum} in cohorts of {len(places)} parties",
                where="SecureTree",
                remedy=f"use size={terms.quorum} or more, or a quorum of at most {len(places)}: each cohort's sum is opened, so each must have it",
            )
        down = terms.down if terms.down is None or np.ndim(terms.down) == 0 else terms.down[places]
        accept = math.ceil(terms.accept * len(places) / parties) if isinstance(terms.accept, int) else terms.accept
        return replace(terms, accept=accept, down=down)

    def word_length(self, uplink: Chain, parties: int) -> int | None:
        """Bits of a word in the largest cohort."""
        return self.reducer.word_length(uplink, max(map(len, self.cohorts(parties))))

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what: what the cohorts' reducer says of the smallest cohort, for every cohort."""
        sizes = [len(part) for part in self.cohorts(parties)]
        server, *others = self.reducer.exposures(min(sizes))
        sees = f"in each of {len(sizes)} cohorts, {server.sees}" if len(sizes) > 1 else server.sees
        return (replace(server, sees=sees), *others)

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Add up the cohorts at once, and then their sums.

        Raises:
            QuorumError: no cohort has a sum.
        """
        count = len(reduction.parties)
        parts = [
            reduction.part(reduction.parties[places], self._terms(reduction.terms, places, count), f"cohort-{i}")
            for i, places in enumerate(self._split(reduction.terms, count, int(reduction.request.key)))
        ]
        found = await asyncio.gather(*(self.reducer.reduce(part) for part in parts), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, QuorumError):
                raise one
        sums = [one for one in found if isinstance(one, Reduced)]
        if not sums:
            raise next(one for one in found if isinstance(one, QuorumError))
        return Reduced.zero().merge(*sums).arrange(reduction.parties.positions)
