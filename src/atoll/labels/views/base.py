"""What a view is: a function of rows and of one random key a row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atoll.core.errors import ConfigError, DataError
from atoll.core.validation import Checked

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

    def draw_numbers(self, keys: Tensor, call: int, n: int) -> Tensor:
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


class View(Checked):
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
            DataError: the rows are of another kind, there is not one key for each, or ``own`` is missing.
        """
        if not isinstance(rows, Tensor) or not isinstance(keys, Tensor) or keys.shape[:1] != rows.shape[:1]:
            _refuse_call(self, rows, keys)
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


def _refuse_call(view: View, rows: object, keys: object) -> None:
    """Refuse rows or keys that are no tensors, or of different numbers."""
    shapes = [
        f"a {type(of).__name__}" + (f" of shape {tuple(of.shape)}" if isinstance(of, Tensor) else "")
        for of in (rows, keys)
    ]
    raise DataError(
        f"a view was given rows that are {shapes[0]}, and keys that are {shapes[1]}",
        where=type(view).__name__,
        remedy="give tensors, with one key for each row: view(torch.from_numpy(rows), row_keys(torch.tensor([party, step]), torch.arange(len(rows))))",
    )


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
        given: Any = self.links
        links = tuple(given) if isinstance(given, Sequence) else ()
        wrong = [link for link in links if not isinstance(link, View)]
        if wrong or not isinstance(given, Sequence):
            raise ConfigError(
                f"links has {wrong[0]!r}, which is no view" if wrong else f"links={given!r} is no list",
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
