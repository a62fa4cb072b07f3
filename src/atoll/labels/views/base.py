"""What a view is: a function of rows and of one random key a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from atoll.core.errors import ConfigError, DataError

from .draws import below, children_of_rows

__all__ = ["Compose", "OwnRows", "View"]

Tensor = torch.Tensor
_CACHED = 1 << 17  # numbers that are worked on at once


@dataclass(frozen=True)
class OwnRows:
    """The rows of the party, or of several, from which some views take values.

    Attributes:
        rows: ``(N, ...)``.
        start: where the rows of each row's party begin, ``int64``, ``(B,)``; ``None``: at 0.
        count: how many rows that party has, ``(B,)``; ``None``: all. With both, one table of rows serves a block of clients.
    """

    rows: Tensor
    start: Tensor | None = None
    count: Tensor | None = None

    def drawn(self, keys: Tensor, call: int, n: int) -> Tensor:
        """Return the numbers of ``n`` own rows for each key, ``(B, n)``."""
        most = self.rows.shape[0] if self.count is None else self.count.unsqueeze(-1)
        at = below(keys, call, n, most)
        return at if self.start is None else at + self.start.unsqueeze(-1)


def _split(own: OwnRows | None, rows: int, each: int) -> list[OwnRows | None]:
    """Return what each part of a batch takes values from."""
    places = range(0, rows, each)
    if own is None or (own.start is None and own.count is None):
        return [own for _ in places]
    return [
        OwnRows(own.rows, *(None if of is None else of[at : at + each] for of in (own.start, own.count)))
        for at in places
    ]


class View(ABC):
    """A pure, batched function ``(rows, keys) -> rows`` of the same shape and type.

    What a row becomes depends on the row and its key alone, not on the batch: ``view(rows, keys)[i]`` has the bits of
    ``view(rows[i:i+1], keys[i:i+1])[0]``. Rows of several clients may be flattened into one batch, or mapped with ``torch.func.vmap``.

    A view is a frozen dataclass: it has no state and draws nothing but from the keys (`row_keys` makes them).

    Attributes:
        uses_own: whether the view takes values from other rows of the party, and needs ``own``.
    """

    uses_own: ClassVar[bool] = False

    @property
    @abstractmethod
    def kind(self) -> str:
        """What the rows are: ``"images"``, ``"series"``, ``"text"`` or ``"table"``."""

    def __call__(self, rows: Tensor, keys: Tensor, own: OwnRows | None = None) -> Tensor:
        """Return the rows as this view shows them.

        Args:
            rows: ``(B, ...)``.
            keys: ``int64``, ``(B,)``.
            own: the party's rows, for views with ``uses_own``.

        Raises:
            DataError: the rows are of another kind, or ``own`` is missing.
        """
        self.check(rows)
        if self.uses_own and own is None:
            raise DataError(
                "the view takes values from other rows of the party, and was given none",
                where=type(self).__name__,
                remedy="call it as view(rows, keys, OwnRows(rows_of_the_party))",
            )
        each = max(1, _CACHED // max(1, rows[:1].numel()))
        if rows.device.type != "cpu" or len(rows) <= each:
            return self.seen(rows, keys, own)
        # Intermediate results of a few rows stay in the processor's cache; rows do not depend on each other. Parts of equal length share the cost of calls.
        each = -(-len(rows) // -(-len(rows) // each))
        parts = zip(torch.split(rows, each), torch.split(keys, each), _split(own, len(rows), each), strict=True)
        return torch.cat([self.seen(*part) for part in parts])

    @abstractmethod
    def check(self, rows: Tensor) -> None:
        """Refuse rows of another kind.

        Raises:
            DataError: names what they are, and a view that fits.
        """

    @abstractmethod
    def seen(self, rows: Tensor, keys: Tensor, own: OwnRows | None) -> Tensor:
        """Return the rows as this view shows them; they have been checked."""


@dataclass(frozen=True)
class Compose(View):
    """Several views of one kind, one after another.

    Link ``i`` draws from keys of its own, so that two equal links draw different numbers.

    Attributes:
        links: the views; without one, rows stay as they are.
        of: the kind of rows, where there is no link to tell it.
    """

    links: Sequence[View] = ()
    of: str = "images"

    def __post_init__(self) -> None:
        links = tuple(self.links)
        wrong = [link for link in links if not isinstance(link, View)]
        if wrong:
            raise ConfigError(
                f"links has {wrong[0]!r}, which is no view",
                where="Compose",
                remedy="use for example [Flip(), Cutout()]",
            )
        kinds = {link.kind for link in links}
        if len(kinds) > 1:
            raise ConfigError(
                f"links are of {' and of '.join(sorted(kinds))}", where="Compose", remedy="compose views of one kind"
            )
        object.__setattr__(self, "links", links)

    @property
    def kind(self) -> str:
        """The kind of all links."""
        return self.links[0].kind if self.links else self.of

    @property
    def uses_own(self) -> bool:  # type: ignore[override]
        """Whether any link takes values from other rows."""
        return any(link.uses_own for link in self.links)

    def check(self, rows: Tensor) -> None:
        """Refuse rows that a link refuses."""
        for link in self.links:
            link.check(rows)

    def seen(self, rows: Tensor, keys: Tensor, own: OwnRows | None) -> Tensor:
        """Return the rows after all links."""
        children = children_of_rows(keys, len(self.links))
        for number, link in enumerate(self.links):
            rows = link.seen(rows, children[..., number], own)
        return rows
