"""What all secure sums of words share: who may be in them, and how a sum of words becomes totals again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.request import Reduced

from ..keystream import require_library

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from atoll.core.requests.chain import Chain
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Terms
    from atoll.core.requests.task import Task

    from .fixed import FixedPoint
    from .layout import WordLayout

__all__ = ["WordSums", "common_form", "decode_sum", "require_enough", "require_threshold"]


class WordSums(Reducer):
    """Base of reducers whose parties turn totals into words that hide in a sum.

    Attributes:
        least: smallest number of parties in a sum; never below 2.
        codec: how numbers become words.
    """

    least: int
    codec: FixedPoint
    secure: ClassVar[bool] = True

    def require_least(self, what: str = "a sum of one is its reply") -> None:
        """Refuse a least number of parties that hides nothing.

        Raises:
            ConfigError: it is below 2.
        """
        if self.least < 2:
            where = type(self).__name__
            raise ConfigError(f"least={self.least}", where=where, remedy=f"use 2 or more: {what}")

    def fewest(self, parties: int) -> tuple[int, str]:
        """The smallest number of parties whose sum may be opened in a cohort, and what asks for it, for an error."""
        del parties
        return self.least, f"the least sum of {self.least}"

    def require_libraries(self) -> None:
        """Refuse to begin without the libraries that the sum needs; by default that of the keystream.

        Raises:
            MissingExtraError: one is not installed.
        """
        require_library()

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse cohorts, terms and numbers that cannot be summed; see ``Reducer.check``.

        Raises:
            CompositionError: the parts do not go together.
            MissingExtraError: a library is not installed.
            QuorumError: the cohort is too small.
        """
        super().check(uplink, parties, terms, task)
        self.require_libraries()
        where = type(self).__name__
        count, why = self.fewest(len(parties))
        if len(parties) < count:
            raise QuorumError(
                f"{len(parties)} parties, fewer than {count}",
                where=where,
                remedy="invite more parties, or lower the threshold or least",
            )
        if isinstance(terms.accept, int) and terms.accept < count:
            raise CompositionError(
                f"accept={terms.accept}, below {why}", where=where, remedy=f"use accept={count} or more"
            )
        for name in self.others:
            if name in parties.names:
                raise CompositionError(
                    f"{name!r} is in the cohort, and plays the {self.others[name]}",
                    where=where,
                    remedy="give that role to another party",
                )
        bound = self.codec.range_of(uplink.bound)
        if bound is not None:
            self.codec.narrow("mean", len(parties), bound)

    def word_length(self, uplink: Chain, parties: int) -> int:
        """Bits of a word of an update's value."""
        return self.codec.length(uplink.bound, parties)


def require_threshold(given: float | int | None, where: str) -> None:
    """Refuse a threshold that is neither a number of parties nor a share of them.

    Raises:
        ConfigError: it is 1, so that one share is the seed; has a fraction above 1; or is not above 0.
    """
    if given is None or (isinstance(given, float) and 0 < given <= 1) or (given >= 2 and given == int(given)):
        return
    raise ConfigError(
        f"threshold={given}", where=where, remedy="use a number of parties from 2, or a share such as 0.6 (1.0 for all)"
    )


def require_enough(
    kept: Parties, quorum: int, where: str = "SecureAggregation", rejected: Mapping[int, str] | None = None
) -> None:
    """Refuse to open a sum of too few.

    Raises:
        QuorumError: fewer parties than the threshold or the least number have sent their words.
    """
    if len(kept) < quorum:
        why = next(iter((rejected or {}).values()), "")
        raise QuorumError(
            f"{len(kept)} parties sent masked words, fewer than {quorum}{f'; {len(rejected or {})} were rejected: {why}' if why else ''}",
            where=where,
            remedy="lengthen the deadline, invite more parties (over_select) or lower the threshold",
        )


def common_form(forms: list[Any]) -> Any:
    """The form that all parties have; one that differs would have made noise of the sum.

    Raises:
        QuorumError: parties replied with different totals.
    """
    if not forms or any(form != forms[0] for form in forms):
        raise QuorumError(
            f"parties replied with totals of different forms, which have no sum{_differing(forms)}",
            where="SecureAggregation",
            remedy="let every party reply with the same aggregates, of the same shapes and dtypes: a metric that a party cannot compute is NaN, and counts for nothing",
        )
    return forms[0]


def _differing(forms: list[Any]) -> str:
    """Which aggregates some parties lack, or have in another form, as far as their words can be read."""
    try:
        known = [{str(one[0]): one[1:] for one in form} for form in forms]
    except (TypeError, IndexError, KeyError):
        return ""
    names = sorted({name for form in known for name in form})
    lacking = [name for name in names if any(name not in form for form in known)]
    other = [name for name in names if name not in lacking and any(form[name] != known[0][name] for form in known)]
    told = [f"some lack {', '.join(map(repr, lacking[:5]))}"] if lacking else []
    told += [f"{', '.join(map(repr, other[:5]))} differs in shape, dtype or kind"] if other else []
    return f": {'; '.join(told)}" if told else ""


def decode_sum(
    layout: WordLayout,
    lanes: dict[str, Any],
    senders: NDArray[Any],
    wrong: int = 0,
    counts: Mapping[str, int] | None = None,
) -> Reduced:
    """The result of a sum of words, with how many numbers were clamped, how many parties dealt or revealed wrong shares, and other counts.

    Raises:
        QuorumError: the count of clamped numbers shows that masks did not cancel.
    """
    made = layout.decode(lanes, len(senders))
    if not 0 <= made.clamped <= layout.clamping * len(senders):
        raise QuorumError(
            f"{made.clamped} of {layout.clamping * len(senders)} numbers clamped: the masks of the sum did not cancel, and it is noise",
            where="masked sum",
            remedy="look for a party that was asked something else, or masked with other seeds",
        )
    coded, counts = layout.clamping * len(senders), {"wrong_shares": wrong, **(counts or {})}
    if coded:
        counts |= {"words": layout.clamping, "coded": coded, "clamped": made.clamped}
    return Reduced(made.totals, senders, counts=counts)
