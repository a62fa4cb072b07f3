"""`Linkage`: the job that pairs nearly equal records of two parties, or the columns of their tables, by a linker that cannot read them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, NonPrivate
from atoll.core.exposure import Explanation
from atoll.core.job import Job, Prepared, name_of
from atoll.core.validation import Checked

from .fuzzy import BloomEncoding, link_contract, link_parties
from .job import EXAMPLE, count_rows

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["Linkage", "Linked"]


@dataclass(frozen=True)
class Linked:
    """What the roles of a linkage have told the program.

    Attributes:
        sizes: number of records of each party.
        count: number of pairs.
        records: of each party the rows, or names of columns, that have a partner: the k-th of both are the k-th pair. Empty unless the parties tell it.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    count: int = 0
    records: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[Any, ...]]:
        """The pairs, in the order of the first party's records."""
        return sorted(zip(*self.records.values(), strict=True))


@dataclass(frozen=True, kw_only=True)
class Linkage(Checked, Job):
    """Pair records of two parties that are nearly the same, such as people whose names are written in two ways, or the columns of their tables.

    A third party, the linker, compares keyed encodings; see `BloomEncoding`. Each party keeps its ``rows`` of pairs under ``label``, and of columns their ``names``.

    Attributes:
        columns: the fields that are compared; of columns ``name`` and ``form``.
        blocking: fields of which two records must share one to be compared, such as ``town`` or ``town:2``.
        threshold: the smallest similarity of a pair.
        of: ``"rows"``, or ``"columns"``.
        bits: length of an encoding.
        hashes: positions of each pair of letters.
        show: whether the parties tell the program which records have a partner; otherwise this stays at the parties.
        label: name of what stays at the parties.
        linker: the party that compares.
    """

    kind: ClassVar[str] = "linkage"
    missing_features: ClassVar[bool] = True
    reads: ClassVar[str] = "table"

    columns: Sequence[str] = ()
    blocking: Sequence[str] = ()
    threshold: float = 0.8
    of: Literal["rows", "columns"] = "rows"
    bits: int = 1024
    hashes: int = 15
    show: bool = False
    label: str = "linked"
    linker: str = "linker"

    def __post_init__(self) -> None:
        for name in ("columns", "blocking"):
            if isinstance(getattr(self, name), str):
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="Linkage", remedy=f"give a list: {name}=[{getattr(self, name)!r}]")  # fmt: skip
        if not self.columns and self.of == "columns":
            object.__setattr__(self, "columns", ("name", "form"))
        self.encoding(("one party", "another party"))

    def encoding(self, parties: Sequence[str]) -> BloomEncoding:
        """The settings that the roles share.

        Args:
            parties: the two parties with records.
        """
        return BloomEncoding(self.columns, self.blocking, self.threshold, self.bits, self.hashes, tuple(parties), self.linker, self.label, self.of)  # fmt: skip

    def names(self) -> tuple[str, ...]:
        """The kind and the encoding, which a site's policy can allow or refuse."""
        return (*super().names(), name_of(BloomEncoding))

    @property
    def key_columns(self) -> Sequence[str]:
        """The fields of records, which stay text."""
        return self.columns if self.of == "rows" else ()

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind and the encoding."""
        return (*super().known_names(), name_of(BloomEncoding))

    def others(self, n: int) -> Mapping[str, str]:
        """The linker."""
        del n
        return {self.linker: "linker"}

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return the frames with their bytes, and what each party and the linker learn."""
        names = [f"party {i + 1}" for i in range(2)] if data is None else self._parties(data)
        sizes = {name: EXAMPLE if data is None else self._count(data, i) for i, name in enumerate(names)}
        contract = link_contract(self.encoding(names), sizes, show=self.show)
        notes = ("the linker and one of the parties together can try out all names",)
        return Explanation(self.title, len(names), contract.learns, {"bytes": contract.nbytes}, notes, contract.frames)

    def _count(self, data: Any, position: int) -> int:
        return len(data.shard(position)) if self.of == "columns" else count_rows(data, position, self.columns[0])

    def _parties(self, data: Any) -> list[str]:
        names = [str(name) for name in data.names]
        if len(names) != 2:
            raise CompositionError(f"{len(names)} parties", where="Linkage", remedy="give two with records; the linker is a party beside them")  # fmt: skip
        return names

    def prepare(self, data: Any) -> Prepared:
        """Make the settings for these parties.

        Raises:
            CompositionError: there are not two.
        """
        return _PreparedLinkage(self, self.encoding(self._parties(data)))


class _PreparedLinkage(Prepared):
    def __init__(self, job: Linkage, encoding: BloomEncoding) -> None:
        self.job, self.encoding = job, encoding

    async def program(self, fed: Federation) -> Linked:
        """Hold the session."""
        await fed.restore(None)
        found = await link_parties(fed, self.encoding, show=self.job.show)
        return Linked(found["sizes"], int(found["count"]), found.get("records", {}))

    def most(self, rows: int) -> Sequence[Event]:
        """Return one release without noise."""
        del rows
        return (NonPrivate(what="keyed encodings of its records"),)

    def facts(self, outcome: Linked) -> Mapping[str, Any]:
        """Return sizes and count."""
        return {"result": {"sizes": dict(outcome.sizes), "count": outcome.count}}

    def files(self, outcome: Linked) -> Mapping[str, bytes]:
        """Return the pairs, a line each below the names of the parties, if the parties told them."""
        if not outcome.records:
            return {}
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([tuple(outcome.records), *outcome.pairs])
        return {"pairs.csv": file.getvalue().encode()}
