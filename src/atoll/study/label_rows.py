"""The rows of ``atoll labels compare``: read, cut to a size, divided among parties, and their labels removed or spoiled."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError, nearest
from atoll.data.missing import labelled_rows

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

__all__ = ["PARTY", "LabelSetting", "as_floats", "rows_of", "with_few_labels"]

PARTY = "party"
"""The column that names the owner of each row."""
_PLACES = ("rows", "parties", "server", "classes", "none")
_SPLIT = 0.2  # of the rows, if the data have none to test


@dataclass(frozen=True)
class LabelSetting:
    """Who has which labels.

    Attributes:
        at: ``"rows"``, ``"parties"``, ``"server"``, ``"classes"`` or ``"none"``; see `atoll.data.unlabel`.
        keep: labels, labelled parties, or labelled classes of each party, that stay; ``None`` for all labels.
        size: rows to train on; ``None`` for all.
        test: rows to test on; ``None`` for all.
        wrong: share of the labels to replace by wrong ones.
        noise: ``"pair"``: by the next class, or ``"symmetric"``.
        parties: number of clients; ``None`` for 20, and for 5 if nobody has labels, as in the experiments of FedU and FedEMA.
        alpha: of the Dirichlet division by classes; 0 divides at random; ``None`` for .5, and for 0 if labels are missing.
    """

    at: str = "rows"
    keep: int | None = None
    size: int | None = 10_000
    test: int | None = 2_000
    wrong: float = 0.0
    noise: str = "pair"
    parties: int | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.parties is None:
            object.__setattr__(self, "parties", 5 if self.at == "none" else 20)
        if self.at not in _PLACES:
            raise ConfigError(
                f"at={self.at!r}.{nearest(self.at, _PLACES)}", where="labels", remedy=f"use one of {', '.join(_PLACES)}"
            )
        if self.noise not in ("pair", "symmetric"):
            raise ConfigError(f"noise={self.noise!r}", where="labels", remedy="use pair or symmetric")
        if not 0.0 <= self.wrong < 1.0:
            raise ConfigError(f"wrong={self.wrong}", where="labels", remedy="use a share of the labels, such as 0.4")
        if self.keep is not None and self.wrong:
            raise ConfigError(
                f"keep={self.keep} and wrong={self.wrong}", where="labels", remedy="remove labels, or spoil them"
            )

    def of(self, rows: Dataset) -> LabelSetting:
        """Return the setting with what follows from the rows: how they are divided if labels are missing or owners are known.

        Raises:
            ConfigError: all labels are there, and none is to be removed or spoiled; or rows that lack labels cannot be divided or spoiled so.
        """
        lacks = not labelled_rows(rows).all()
        if self.keep is None and not self.wrong and (not lacks or self.at != "rows"):
            raise ConfigError(
                f"at={self.at!r}, and no number of labels"
                if lacks
                else "neither keep nor wrong is given: all labels are there, and right",
                where="labels",
                remedy="say how many labels to keep, such as --keep 40"
                + (", or leave out --at to train on the labels as they are" if lacks else ", or the share of wrong ones, --wrong 0.4"),
            )  # fmt: skip
        if lacks and self.alpha:
            raise ConfigError(
                f"alpha={self.alpha:g}: the class of each row divides rows, and {int((~labelled_rows(rows)).sum()):,} labels are missing",
                where="labels",
                remedy="leave out --alpha to divide at random, or name the owners of the rows: --party COLUMN",
            )
        alpha = self.alpha if self.alpha is not None else 0.0 if lacks else 0.5
        owners = len(np.unique(rows[PARTY])) if PARTY in rows else self.parties
        return replace(self, alpha=alpha, parties=owners)

    @property
    def usual_rounds(self) -> int:
        """The rounds of a method if no number is given: labels that stay at clients teach fewer steps of a round than those at the server."""
        if self.at == "none":
            return 50
        return 100 if self.at == "rows" and not self.wrong else 60


def rows_of(
    data: str,
    target: str | None = None,
    text: str | None = None,
    missing: str | None = None,
    party: str | None = None,
    form: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read rows to train on, with rows to test on if the data have some.

    Args:
        data: a name, an archive or a table, see `atoll.data.read_data`.
        target: column to predict, for a table.
        text: column of texts, for a table. Their vectors are fitted on all rows; no label is read for that.
        missing: value of the target that means "no label", besides empty cells and NaN.
        party: column that names the owner of each row.
        form: ``delimiter``, ``decimal`` and ``encoding`` of a table.

    Raises:
        DataError: no such data, or labels that are no classes.
    """
    from atoll.data import read_data

    made = read_data(data, target=target, text=text, party=party, missing=missing, test=0, **(form or {}))
    if made.task not in ("classification", "binary"):
        raise DataError(f"a {made.task} task", where=data, remedy="compare methods on data with classes")
    return as_floats(made)


def with_few_labels(rows: Dataset, setting: LabelSetting, seed: int, party: str | None = None) -> Islands:
    """Divide rows among parties and remove or spoil labels; everything follows from the seed.

    Args:
        rows: rows with rows to test on, or without: a fifth of those with a label is held out then.
        setting: who has which labels.
        seed: chooses rows, parties and labels.
        party: column that names the owner of each row, in place of a division by classes.
    """
    import atoll.data

    setting = setting.of(rows)
    train, test = _split(rows, setting, seed)
    if party is not None:
        islands = atoll.data.natural(train, party)
    elif setting.alpha:
        islands = atoll.data.dirichlet(train, parties=int(setting.parties or 0), alpha=setting.alpha, seed=seed)
    else:
        islands = atoll.data.iid(train, parties=int(setting.parties or 0), seed=seed)
    islands = islands.with_test(test)
    if setting.wrong:
        kind: Any = "pairs" if setting.noise == "pair" else setting.noise
        return atoll.data.corrupt(islands, {atoll.data.Mislabel(setting.wrong, kind=kind): 1.0}, seed=seed)
    if setting.keep is None:
        return islands
    at: Any = setting.at
    return atoll.data.unlabel(islands, keep=setting.keep, at=at, seed=seed)


def _split(rows: Dataset, setting: LabelSetting, seed: int) -> tuple[Dataset, Dataset]:
    """Return rows to train on and rows to test on, all of which have a label."""
    draw = np.random.default_rng([seed, 7])
    order, test = draw.permutation(len(rows)), rows.test
    if test is None:
        known = order[labelled_rows(rows)[order]]
        held = known[: round(_SPLIT * len(known))]
        test, order = rows.take(np.sort(held)), order[~np.isin(order, held)]
    else:
        known = np.flatnonzero(labelled_rows(test))
        test = test.take(np.sort(known[draw.permutation(len(known))[: setting.test or len(known)]]))
    if not len(test):
        raise DataError(
            "no row with a label is left to test on",
            where=f"data set {rows.name!r}",
            remedy="label more rows, or give rows to test on: x_test and y_test in an archive",
        )
    return rows.take(np.sort(order[: setting.size or len(order)])).with_test(None), test


def as_floats(rows: Dataset) -> Dataset:
    """Return pixels 0 to 255 as numbers from 0 to 1, and grey images ``(n, height, width)`` with a channel, ``(n, 1, height, width)``."""
    if "x" not in rows:
        return rows
    x = rows.x[:, None] if rows.x.ndim == 3 else rows.x
    x = x.astype(np.float32) / np.float32(255.0 if x.dtype == np.uint8 else 1.0)
    return rows.with_columns({"x": x}).with_test(None if rows.test is None else as_floats(rows.test))


def accepts(kind: Any, name: str) -> bool:
    """Tell whether a class takes a setting."""
    return name in inspect.signature(kind).parameters
