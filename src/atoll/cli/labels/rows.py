"""The rows of ``atoll labels compare``: read, cut to a size, divided among parties, and their labels removed or spoiled."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

__all__ = ["LabelSetting", "rows_of", "with_few_labels"]

_LOADERS = ("mnist", "cifar10", "digits", "iris")
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
        alpha: of the Dirichlet division by classes; 0 divides at random.
    """

    at: str = "rows"
    keep: int | None = None
    size: int | None = 10_000
    test: int | None = 2_000
    wrong: float = 0.0
    noise: str = "pair"
    parties: int | None = None
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if self.parties is None:
            object.__setattr__(self, "parties", 5 if self.at == "none" else 20)
        if self.noise not in ("pair", "symmetric"):
            raise ConfigError(f"noise={self.noise!r}", where="labels", remedy="use pair or symmetric")
        if not 0.0 <= self.wrong < 1.0:
            raise ConfigError(f"wrong={self.wrong}", where="labels", remedy="use a share of the labels, such as 0.4")
        if self.keep is None and self.wrong == 0.0:
            raise ConfigError(
                "neither keep nor wrong is given: all labels are there, and right",
                where="labels",
                remedy="say how many labels to keep, such as --keep 40, or the share of wrong ones, --wrong 0.4",
            )
        if self.keep is not None and self.wrong:
            raise ConfigError(
                f"keep={self.keep} and wrong={self.wrong}", where="labels", remedy="remove labels, or spoil them"
            )

    @property
    def usual_rounds(self) -> int:
        """The rounds of a method if no number is given: labels that stay at clients teach fewer steps of a round than those at the server."""
        if self.at == "none":
            return 50
        return 100 if self.at == "rows" and not self.wrong else 60


def rows_of(data: str, target: str | None = None, text: str | None = None, missing: str | None = None) -> Dataset:
    """Read rows to train on, with rows to test on.

    Args:
        data: a loader's name, an ``.npz`` file (arrays ``x``, ``y``, and optionally ``x_test``, ``y_test`` and ``party``) or a CSV file.
        target: column to predict, for a CSV file.
        text: column of texts, for a CSV file.
        missing: value of the target that means "no label".

    Raises:
        ConfigError: no such data.
    """
    import atoll.data

    if data.endswith(".npz"):
        made = atoll.data.read_npz(Path(data), missing=None if missing is None else int(missing))
    elif data.endswith((".csv", ".csv.gz")):
        if target is None:
            raise ConfigError(f"DATA {data!r}", where="labels", remedy="name the column to predict: --target COLUMN")
        made = atoll.data.read_csv(Path(data), target=target, missing=missing, keep=() if text is None else (text,))
        made = made if text is None else atoll.data.with_text_vectors(made, column=text)
    elif data in _LOADERS:
        made = getattr(atoll.data, data)()
    else:
        raise ConfigError(
            f"DATA {data!r}.{nearest(data, _LOADERS)}", where="labels", remedy=f"use a file .npz or .csv, or one of {', '.join(_LOADERS)}"
        )  # fmt: skip
    if made.task not in ("classification", "binary"):
        raise DataError(f"a {made.task} task", where=data, remedy="compare methods on data with classes")
    return _with_channel(made)


def with_few_labels(rows: Dataset, setting: LabelSetting, seed: int, party: str | None = None) -> Islands:
    """Divide rows among parties and remove or spoil labels; everything follows from the seed.

    Args:
        rows: rows with rows to test on, or without: a fifth is held out then.
        setting: who has which labels.
        seed: chooses rows, parties and labels.
        party: column that names the owner of each row, in place of a division by classes.
    """
    import atoll.data

    train, test = _split(rows, setting, seed)
    if party is not None:
        islands = atoll.data.natural(train, party)
    elif setting.alpha > 0:
        islands = atoll.data.dirichlet(train, parties=int(setting.parties or 0), alpha=setting.alpha, seed=seed)
    else:
        islands = atoll.data.iid(train, parties=int(setting.parties or 0), seed=seed)
    islands = islands.with_test(test)
    if setting.wrong:
        kind: Any = "pairs" if setting.noise == "pair" else setting.noise
        return atoll.data.corrupt(islands, {atoll.data.Mislabel(setting.wrong, kind=kind): 1.0}, seed=seed)
    at: Any = setting.at
    return atoll.data.unlabel(islands, keep=int(setting.keep or 0), at=at, seed=seed)


def _split(rows: Dataset, setting: LabelSetting, seed: int) -> tuple[Dataset, Dataset]:
    draw = np.random.default_rng([seed, 7])
    order = draw.permutation(len(rows))
    test = rows.test
    if test is None:
        cut = round(_SPLIT * len(rows))
        test, order = rows.take(np.sort(order[:cut])), order[cut:]
    else:
        test = test.take(np.sort(draw.permutation(len(test))[: setting.test or len(test)]))
    return rows.take(np.sort(order[: setting.size or len(order)])).with_test(None), test


def _with_channel(rows: Dataset) -> Dataset:
    """Return images with an axis of channels."""
    if rows["x"].ndim != 3:
        return rows
    from atoll.data import Dataset

    def one(some: Dataset, test: Dataset | None) -> Dataset:
        columns = {name: some[name] for name in some.columns}
        columns["x"] = columns["x"][:, None]
        return Dataset(columns, classes=rows.classes, name=rows.name, test=test)

    return one(rows, None if rows.test is None else one(rows.test, None))


def accepts(kind: Any, name: str) -> bool:
    """Tell whether a class takes a setting."""
    return name in inspect.signature(kind).parameters
