"""Linear models on secret shares, as SecureML (Mohassel and Zhang 2017): columns, labels and weights are shared, and each party learns the weights of its own columns at the end.

A dealer, a party without columns, hands out matrix triples; or two parties make them by oblivious transfers (`atoll.secure.shares.oblivious`). All numbers are fixed-point words of 64 bits.

Before a party shares its columns x, it turns them within itself, ``Q = x T``, such that ``T' (x'x + ridge) T = 2^L I`` with ``2^L >= rows``. Then the matrix of all parties,
``G = (Q'Q + T' ridge T) / 2^L``, has 1 on its diagonal blocks, and its inverse Z follows by Newton's iteration ``Z <- Z (2 - G Z)`` on shares of small matrices: one large product
takes the place of many passes over the rows. Least squares and Taylor's loss are solved by Z at once.

The logistic function is SecureML's: 0 below -1/2, 1 above 1/2, ``m + 1/2`` between, by two comparisons a row. As its slope is at most 1, ``w <- w - Z g`` lowers the loss; with
momentum, which starts again when it leads uphill, it converges in some tens of rounds. Each round opens two numbers: this slope, and how far the loss may still fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import CompositionError, DataError
from atoll.secure.shares import (
    AdditiveComputation,
    AdditiveSharing,
    ObliviousDealer,
    PartyDealer,
    SharedArray,
    WordRing,
    concatenated,
    dot,
    mul,
    negative,
    opened,
    truncate,
)

from ..model import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Secret

    from .solver import OwnBlock

__all__ = ["DEALER", "fit_shared_weights", "predict_shared", "sharing_among"]

DEALER = "dealer"
"""The party with the triples, and what it plays."""
_BITS = 22
"""Most bits behind the point."""
_INVERSIONS = 9
"""Steps of Newton's iteration for Z: directions of the columns whose share of another party's is above ``1 - 2^-9`` count in part."""
_ROUNDS = 300
_CLOSE = 1e-10
"""The logistic rounds end where the loss a row can fall by no more than this."""


def sharing_among(parties: int) -> AdditiveSharing:
    """How values are split."""
    return AdditiveSharing(WordRing(64), parties)


@dataclass(frozen=True)
class _Turned:
    """A party's columns, turned so that they are orthonormal with the ridge.

    Attributes:
        q: ``(rows, directions)``.
        back: T, ``(columns, directions)``; the weights are ``T w``.
    """

    q: NDArray[np.float64]
    back: NDArray[np.float64]

    @classmethod
    def of(cls, block: OwnBlock, level: int, curvature: float) -> _Turned:
        """Directions without curvature, such as constant columns, are left out."""
        values, vectors = np.linalg.eigh(block.x.T @ block.x + np.diag(block.ridge / curvature))
        kept = values > 1e-9 * max(values.max(initial=0.0), 1.0)
        back = vectors[:, kept] * np.sqrt(2.0**level / values[kept])
        return cls(block.x @ back, back)


async def fit_shared_weights(
    block: OwnBlock,
    outputs: int,
    targets: NDArray[np.float64] | None,
    curvature: float,
    pieces: bool,
    *,
    peers: Any,
    parties: Sequence[str],
    me: str,
    secret: Secret,
    transfers: bool = False,
) -> NDArray[np.float64]:
    """This party's weights at the optimum, ``(columns, outputs)``.

    Args:
        block: its columns.
        outputs: margins of a row.
        targets: t of the quadratic loss, or the labels of pieces, at the guest; ``None`` at a host.
        curvature: c of the quadratic loss; 1 for pieces.
        pieces: whether the loss is that of SecureML's logistic function.
        peers: the session.
        parties: the roles with columns, the guest first.
        me: this party's role.
        secret: its entropy.
        transfers: whether the two parties make the triples themselves.

    Raises:
        CompositionError: there are more than two, and no dealer.
        DataError: the numbers do not fit words of 64 bits, or the rounds do not converge.
        MessageError: a peer's message has another form.
    """
    if transfers and len(parties) != 2:
        raise CompositionError(
            f"triples='transfers' with {len(parties)} parties",
            where="VerticalLinear(security='shared')",
            remedy="leave triples out: a dealer serves any number of parties",
        )
    rows = len(block.x)
    level = max(int(rows - 1).bit_length(), 1)
    turned = _Turned.of(block, level, curvature)
    await peers.broadcast({"directions": turned.q.shape[1]}, [name for name in parties if name != me])
    sizes = []
    for name in parties:
        told = {"directions": turned.q.shape[1]} if name == me else await peers.recv(name)
        size = told.get("directions") if isinstance(told, dict) else None
        require(type(size) is int and 0 <= size <= 1 << 16, f"{size!r} directions at {name!r}", "VerticalLinear")
        sizes.append(int(size))  # type: ignore[arg-type]
    place: Any = SimpleNamespace(secret=secret)
    sharing, first = sharing_among(len(parties)), me == parties[0]
    dealer: Any = PartyDealer(peers, DEALER, first=first)
    if transfers:
        other = next(name for name in parties if name != me)
        dealer = await ObliviousDealer.begin(secret, peers, other, first=first)
    async with AdditiveComputation(place, peers, parties, me, sharing, dealer) as computing:
        fit = _SharedFit(computing, level, sizes)  # type: ignore[arg-type]
        made = await fit.fit(turned.q, targets, (rows, outputs), pieces)
        return turned.back @ await fit.show(made)


class _SharedFit:
    """One party's side. Numbers are shared with ``bits`` bits behind the point.

    Args:
        computing: the computation.
        level: L.
        sizes: how many directions each party has.
    """

    def __init__(self, computing: AdditiveComputation, level: int, sizes: Sequence[int]) -> None:
        self.computing, self.level, self.bits = computing, level, min(_BITS, (60 - level) // 2)
        self.ends = np.cumsum([0, *sizes]).tolist()
        if self.bits < 16:
            raise DataError(
                f"2^{level} rows: words of 64 bits have no room for sums",
                where="VerticalLinear(security='shared')",
                remedy="train on at most 2^28 rows, or use security='pair'",
            )

    def whole(self, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Numbers in fixed point."""
        return np.asarray(np.rint(numbers * 2.0**self.bits), np.int64)

    async def share(self, owner: str, numbers: NDArray[np.float64] | None, shape: tuple[int, ...]) -> SharedArray:
        """An owner's numbers."""
        values = None if numbers is None else self.whole(numbers)
        return await self.computing.share(values, owner=owner, shape=shape)

    async def times(self, x: SharedArray, y: SharedArray, extra: int = 0) -> SharedArray:
        """``x @ y / 2^extra``."""
        return await truncate(await dot(x, y), self.bits + extra)

    async def fit(
        self, q: NDArray[np.float64], targets: NDArray[np.float64] | None, shape: tuple[int, int], pieces: bool
    ) -> SharedArray:
        """The weights of all directions, ``(directions, outputs)``."""
        computing, rows = self.computing, shape[0]
        turned = [
            await self.share(name, q.T if name == computing.me else None, (self.ends[k + 1] - self.ends[k], rows))
            for k, name in enumerate(computing.parties)
        ]
        columns = concatenated(turned)
        if targets is not None and not float((targets**2).mean()) < 4.0 ** (60 - 2 * self.bits - self.level + 1):
            raise DataError(
                f"targets of {float(np.sqrt((targets**2).mean())):.3g} on average: sums may overflow",
                where="VerticalLinear(security='shared')",
                remedy="use security='pair', or labels whose mean is larger",
            )
        labels = await self.share(computing.parties[0], targets, shape)
        size = self.ends[-1]
        inside = np.zeros((size, size), np.int64)
        for begin, end in zip(self.ends, self.ends[1:], strict=False):
            inside[begin:end, begin:end] = 1
        one = self.whole(np.eye(size))
        products = await self.times(columns, columns.T, self.level)
        joint = products * (1 - inside) + one
        inverse = await self.invert(joint, size)
        if pieces:
            return await self.descend(columns, labels, inverse, joint - products)
        sums = await self.times(columns, labels, self.level)
        w = await self.times(inverse, sums)
        for _ in range(3):  # what the bits of the inverse lack
            w = w + await self.times(inverse, sums - await self.times(joint, w))
        return w

    async def invert(self, joint: SharedArray, size: int) -> SharedArray:
        """Z: Newton's iteration, from ``1 / parties``, as G's eigenvalues are at most the number of parties."""
        two = self.whole(2 * np.eye(size))
        made = self.computing.constant(self.whole(np.eye(size) / len(self.computing.parties)))
        for _ in range(_INVERSIONS):
            made = await self.times(made, -(await self.times(joint, made)) + two)
        return made

    async def descend(
        self, columns: SharedArray, labels: SharedArray, inverse: SharedArray, ridge: SharedArray
    ) -> SharedArray:
        """The weights under SecureML's logistic function (accelerated by Nesterov 1983, with the restarts of O'Donoghue and Candes 2015)."""
        rows, half, one = labels.shape[0], 1 << (self.bits - 1), 1 << self.bits
        w = ahead = self.computing.constant(np.zeros((columns.shape[0], 1), np.int64))
        momentum = 1.0
        for _ in range(_ROUNDS):
            m = await self.times(columns.T, ahead)
            both = await negative(concatenated([m + half, m - half]))
            low, below = both[:rows], both[rows:]
            middle = await mul(below - low, m + half)
            r = middle + (1 - below) * one - labels
            g = await self.times(columns, r, self.level) + await self.times(ridge, ahead)
            step = await self.times(inverse, g)
            following = ahead - step
            told = await opened(await dot(g.T, _beside(step, following - w)))
            falls, uphill = (float(each) / 4.0**self.bits for each in np.asarray(told).reshape(-1))
            momentum = 1.0 if uphill > 0 else momentum
            later = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            share = int(np.rint((momentum - 1) / later * one))
            ahead = following + await truncate((following - w) * share, self.bits)
            w, momentum = following, later
            if falls <= max(_CLOSE, 16 * columns.shape[0] * 4.0**-self.bits):
                return w
        raise DataError(
            f"the loss still falls after {_ROUNDS} rounds",
            where="VerticalLinear(security='shared')",
            remedy="use a larger penalty=, or columns without far outliers, such as their logarithms",
        )

    async def show(self, w: SharedArray) -> NDArray[np.float64]:
        """This party's own entries: the others send it their shares of them."""
        computing, mine, place = self.computing, w.parts[0], self.computing.place
        for name, begin, end in zip(computing.parties, self.ends, self.ends[1:], strict=False):
            if name != computing.me:
                await computing.peers.send(name, mine[begin:end])
        begin, end = self.ends[place], self.ends[place + 1]
        total = mine[begin:end]
        for name in computing.others:
            told = await computing.peers.recv(name)
            good = isinstance(told, np.ndarray) and told.dtype == np.uint64 and told.shape == total.shape
            require(good, f"no shares of weights from {name!r}", "VerticalLinear")
            total = total + told
        return computing.domain.signed(total) / 2.0**self.bits


def _beside(x: SharedArray, y: SharedArray) -> SharedArray:
    """Two columns as one array."""
    return concatenated([x.T, y.T]).T


def predict_shared(
    rows: int, columns: int, outputs: int, parties: int, pieces: bool, transfers: bool = False
) -> dict[str, float]:
    """The processor ``seconds`` of all parties and the ``bytes`` between them: of pieces for 18 rounds, each with two products of all columns and two comparisons a row.

    Args:
        rows: training rows.
        columns: of all parties.
        outputs: margins of a row.
        parties: how many have columns.
        pieces: whether the loss is that of SecureML's logistic function.
        transfers: whether two parties make the triples themselves.
    """
    rounds = 18 if pieces else 0
    # A product of shared matrices opens both factors at all parties, and the dealer sends shares of two random ones.
    passes = 2 * parties * (parties - 1) + 2 * parties
    words = passes * rows * (columns + outputs) * (1 + rounds)
    compared = 2.0 * rows * rounds
    made = {"seconds": 1e-7 * words + 8e-6 * compared + 0.2, "bytes": 8.0 * words + 33.0 * passes * compared}
    if (
        transfers
    ):  # the bytes of `transfer_frames`: G, the sums of the labels, two products a round, and triples of comparisons
        inverted = 20.0 * columns * columns * (1024 + 288 * columns)
        spread = 2.0 * rows * (columns * (1024 + 288 * columns) + outputs * (1024 + 288 * columns))
        spread += rounds * (2.0 * columns * (1024 + 288 * rows) + 2.0 * rows * (1024 + 288 * columns))
        made["bytes"] += inverted + spread + compared * 4_000
        made["seconds"] += 1.5e-8 * made["bytes"]
    return made
