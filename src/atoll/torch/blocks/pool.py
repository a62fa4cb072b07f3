"""What a cohort trains on and gives: rows side by side, private states, results, and leaves on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
import torch

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Totals
from atoll.core.algebra.tree import Tree
from atoll.core.errors import DataError
from atoll.core.requests.task import Batch
from atoll.data.missing import without_hidden
from atoll.learn.local.own_loss import LABELLED
from atoll.learn.local.update import quota

from ..backend import require_usable
from ..leaves import Layout, flatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.rng import Rng
    from atoll.learn.algorithm import Algorithm
    from atoll.learn.local.update import Counted


__all__ = [
    "CohortSums",
    "Form",
    "Pool",
    "PoolPlace",
    "Privates",
    "TrainedBatch",
    "columns_of",
    "names_of",
    "number_rows",
    "pool_of",
]

# The rows of many clients as one pool of tensors.


Form: TypeAlias = "tuple[tuple[str, tuple[int, ...], torch.dtype], ...]"
"""Name, shape and type of each column of a row."""


@dataclass(frozen=True)
class PoolPlace:
    """Where rows are, for code that reads them one by one.

    Attributes:
        columns: contiguous tensors or arrays, in the order of the pool's; of the pool's clients only, or of others too.
        first: number of each client's first row.
        order: where each row is, int32 or int64; ``None`` if rows are in order.
    """

    columns: tuple[Any, ...]
    first: NDArray[np.int64]
    order: NDArray[Any] | None


@dataclass
class Pool:
    """Rows of several clients, client after client.

    Attributes:
        columns: ``x``, the inputs, ``(rows, ...)``: floating point in the model's dtype, whole numbers (token ids) in
            int64; ``y``, the targets; and further columns that the loss asks for.
        labels: the targets as NumPy, for checks.
        offsets: client ``c`` has the rows ``offsets[c]:offsets[c + 1]``.
        epochs: epochs (or steps) that the clients must do; ``None`` for the algorithm's own.
        secrets: a stream of each client's secret, if they were given; see `atoll.learn.local.examples`.
    """

    columns: dict[str, torch.Tensor]
    labels: NDArray[Any]
    offsets: NDArray[np.int64]
    epochs: int | None = None
    secrets: Sequence[Rng] | None = None

    @property
    def x(self) -> torch.Tensor:
        """Inputs."""
        return self.columns["x"]

    @property
    def y(self) -> torch.Tensor:
        """Targets."""
        return self.columns["y"]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the rows of each client."""
        return np.diff(self.offsets)

    @property
    def form(self) -> Form:
        """Return the form of a row."""
        return tuple((name, tuple(column.shape[1:]), column.dtype) for name, column in self.columns.items())

    @property
    def place(self) -> PoolPlace:
        """Return where the rows are."""
        columns = tuple(column.contiguous() for column in self.columns.values())
        return PoolPlace(columns, np.ascontiguousarray(self.offsets[:-1], np.int64), None)

    def part(self, clients: NDArray[np.int64]) -> Pool:
        """Return the rows of some clients."""
        rows = np.concatenate([np.arange(self.offsets[c], self.offsets[c + 1]) for c in clients])
        made = self.take(rows, self.sizes[clients])
        made.secrets = None if self.secrets is None else [self.secrets[c] for c in clients.tolist()]
        return made

    def take(self, rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> Pool:
        """Return some rows, of clients with ``sizes`` rows each."""
        index = torch.from_numpy(rows).to(self.x.device)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        columns = {name: column[index] for name, column in self.columns.items()}
        return Pool(columns, self.labels[rows], offsets, self.epochs, self.secrets)

    def work(self, algorithm: Algorithm) -> Counted:
        """Return how an algorithm goes through these rows, with the epochs asked for."""
        return quota(algorithm, self.epochs)


def names_of(shard: Any) -> tuple[str, ...]:
    """Return the names of a client's columns."""
    if isinstance(shard, Mapping):
        return tuple(map(str, shard))
    return tuple(getattr(shard, "columns", ("x", "y")))


def columns_of(shard: Any, extra: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Return the columns of one client: inputs, targets, and some others.

    Args:
        shard: anything with columns ``x`` and ``y`` (a `Shard`, a `Dataset`, a dict), or a pair ``(x, y)``.
        extra: names of further columns; ``"index"`` is made when the rows are put together.

    Raises:
        DataError: no such columns, or columns of different lengths.
    """
    try:
        pair = isinstance(shard, tuple | list)
        found = dict(zip(("x", "y"), shard[:2], strict=True)) if pair else {"x": shard["x"], "y": shard["y"]}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"a shard of type {type(shard).__name__} has no columns 'x' and 'y'",
            remedy="give a data set with the columns x (inputs) and y (targets), or a pair (x, y)",
        ) from error
    made = {name: np.asarray(column) for name, column in found.items()}
    if len(made["x"]) != len(made["y"]):
        raise DataError(f"{len(made['x'])} inputs and {len(made['y'])} targets", remedy="give every example one target")
    for name in extra:
        if name == LABELLED and name not in names_of(shard):
            made[name] = np.ones(len(made["x"]), dtype=bool)
        elif name != "index":
            made[name] = np.asarray(shard[name])
    return made


def pool_of(
    columns: Mapping[str, NDArray[Any]], offsets: NDArray[np.int64], device: torch.device, dtype: torch.dtype
) -> Pool:
    """Make a pool of stacked columns. A missing label is never used: it becomes 0."""
    require_usable(device)
    labels, there = columns["y"], columns.get(LABELLED)
    if there is not None:
        labels = without_hidden(labels, there)
    made = {"x": _input(columns["x"], device, dtype), "y": _target(labels, device, dtype)}
    more = {name: _target(column, device, dtype) for name, column in columns.items() if name not in made}
    return Pool({**made, **more}, labels, offsets)


def number_rows(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each row within its client's rows."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def _input(array: NDArray[Any], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Convert inputs: bytes and booleans are measurements (pixels), wider integers are ids."""
    tensor = _share_array(array)
    ids = not tensor.is_floating_point() and tensor.dtype not in (torch.uint8, torch.bool)
    return tensor.to(device=device, dtype=torch.int64 if ids else dtype)


def _target(array: NDArray[Any], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    tensor = _share_array(array)
    return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else torch.int64)


def _share_array(array: NDArray[Any]) -> torch.Tensor:
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"a column of type {array.dtype} cannot become a tensor",
            remedy="encode it as numbers first",
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if array.dtype.byteorder not in "=|" or not array.flags.writeable:
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    return torch.from_numpy(np.ascontiguousarray(array))


# The private states of a cohort as input of its programs: stacked if they are alike, otherwise one by one.


class Privates:
    """Private states, one for each client.

    Args:
        states: one by one, ``None`` before a client's first.
        stacked: leaves with a leading client axis, instead.
        count: clients.
    """

    def __init__(self, states: Sequence[Tree] | None, count: int, stacked: Tree = None) -> None:
        self._states = states
        self._stacked = stacked
        self._count = count

    @staticmethod
    def of(states: Sequence[Tree] | Privates | None, count: int) -> Privates:
        """Take any form in which a caller has them; ``None`` for no state at all."""
        return states if isinstance(states, Privates) else Privates(states, count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Tree: ...
    @overload
    def __getitem__(self, at: NDArray[np.int64]) -> Privates: ...
    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, np.ndarray):
            if self._stacked is not None:
                return T.map(lambda leaf: None if leaf is None else leaf[at], self._stacked)
            return None if self._states is None else self._states[at]
        if self._stacked is not None:
            return Privates(None, len(at), T.map(lambda leaf: None if leaf is None else leaf[at], self._stacked))
        return Privates(None if self._states is None else [self._states[i] for i in at.tolist()], len(at))

    def leaves(self, fresh: Any) -> tuple[list[NDArray[Any]], Layout]:
        """Return stacked leaves, and the structure of one client's state.

        Args:
            fresh: makes the state of a client that has none.
        """
        if self._stacked is not None:
            return flatten(self._stacked)
        states = self._states
        if states is None or all(state is None for state in states):
            found, layout = flatten(fresh())
            return [np.repeat(np.asarray(leaf)[None], self._count, axis=0) for leaf in found], layout
        blank = fresh() if any(state is None for state in states) else None
        pairs = [flatten(blank if state is None else state) for state in states]
        rows = [row for row, _ in pairs]
        return [np.stack([np.asarray(row[i]) for row in rows]) for i in range(len(rows[0]))], pairs[0][1]


# Results of training a cohort: replies of blocks of clients, or sums over the cohort.


@dataclass
class TrainedBatch(Batch):
    """A block of trained clients.

    Attributes:
        steps: local steps of each client, ``(clients,)``.
        losses: mean training loss of each client, ``(clients,)``.
    """

    steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @staticmethod
    def make_failed(errors: dict[int, Exception]) -> TrainedBatch:
        """Return a batch of no client, with the exceptions of some."""
        return TrainedBatch(np.zeros(0, np.int64), {}, errors=errors)


@dataclass
class CohortSums:
    """A cohort as sums.

    Attributes:
        totals: named sums over the kept clients.
        kept: positions in the sums, in order.
        rejected: position -> why a client was kept out.
        states: ``(positions, stacked states)`` of each block; empty when the algorithm keeps none.
        steps: local steps of each client of the cohort.
        losses: mean training loss of each client of the cohort.
        sizes: examples of each client of the cohort.
        rows: in place of ``totals``, the summands of single clients: ``(positions, totals with a leading client axis)``
            of each piece.
    """

    totals: Totals
    kept: NDArray[np.int64]
    rejected: dict[int, str]
    states: list[tuple[NDArray[np.int64], Tree]]
    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: list[tuple[NDArray[np.int64], Totals]] | None = None
