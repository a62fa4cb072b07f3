"""Newton's method over columns at several parties, each with its own weights.

All parties run `fit_weights` in step. What needs all columns is in `JointRows`: gradients, products with the matrix of second derivatives H, and sums of a few numbers. Each party
gets its own entries of these alone. The step of Newton's method solves ``H d = -g`` by conjugate gradients; their preconditioner is the part of H that lies within one party, which
the party inverts itself. So the number of products follows the correlations *across* parties, not the number of columns (block Jacobi; Golub and Van Loan, section 11.5).

``quasi-newton`` (K. Yang et al. 2019) solves for the same step by the memory of L-BFGS: each product gives the step's length, the next pair and the next gradient, so that it takes one sum of
numbers a product, where conjugate gradients take two. Yang's third party holds gradients and pairs; here each party keeps its own entries of them, and the recursion needs their inner
products alone (vector-free, Chen et al. 2014). The memory starts from the blocks, theirs from a multiple of 1. Without a memory and blocks it is gradient descent, ``gradient``, to compare with.

Yang's pairs come from batches of rows (after Byrd et al. 2016), and so do they with `SampledRows`: up to 200 products of H over the rows of one batch, times rows / batch, make a memory, which is the
preconditioner of conjugate gradients over all rows (Morales and Nocedal 2000). Theirs also draws the rows of gradients, which ends near the optimum; here gradients have all rows, so that the
optimum is the same, and a memory that foresees H well saves products over all rows.

With an L1 penalty, the step minimises ``g d + d H d / 2 + penalty`` by accelerated proximal steps in the metric of the same blocks (FISTA, Beck and Teboulle 2009, with restarts),
where each party solves for its own weights by coordinates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BATCHES", "EXACT", "SOLVERS", "OwnBlock", "JointRows", "SampledRows", "fit_weights"]

EXACT = 1e-22
"""See `JointRows.exact`, in double precision."""
_STEPS = 100
_PRODUCTS = 500
_DESCENTS = 20_000
"""Most products of gradient descent, and of a memory that does not help."""
MEMORY = 5
"""Pairs of the memory."""
SAMPLED = 200
"""Pairs from a batch of rows, at most: as many as all columns foresee its H exactly."""


class JointRows(Protocol):
    """What a party needs of the others. Arrays are ``(columns, outputs)``, this party's entries alone."""

    quadratic: bool
    """Whether the loss is quadratic, so that Newton's step has length 1."""
    exact: float
    """A step ends the training whose square in the metric of H, about the sum of squared changes of the margins, is below so much a row."""

    async def find_gradient(self, w: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The gradient of the loss at all parties' weights, and second derivatives by the margins, ``(rows, outputs)`` or one for all."""
        ...

    async def bend(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """H times all parties' directions, with H at the last gradient's weights."""
        ...

    async def total(self, *values: float) -> list[float]:
        """The sums of all parties' numbers."""
        ...

    async def search(self, p: NDArray[np.float64], slope: float, bow: float, l1: tuple[float, float]) -> float:
        """The length of the step along all parties' p: the loss must fall.

        Args:
            p: this party's direction.
            slope: the ridge's share of the first derivative along p.
            bow: that of the second.
            l1: the L1 penalty at the start, and at length 1.
        """
        ...


class SampledRows(JointRows, Protocol):
    """`JointRows` that also know what a batch of rows says of H."""

    async def bend_batch(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """H times all parties' directions, as the rows of a batch foresee it: their part times rows / batch."""
        ...


@dataclass(frozen=True)
class OwnBlock:
    """A party's columns.

    Attributes:
        x: ``(rows, columns)``, scaled.
        ridge: L2 penalty of each column's weight; 0 for the intercept.
        l1: L1 penalty of each.
        parties: how many have columns.
        coupled: whether outputs share a matrix of second derivatives, as those of a softmax.
    """

    x: NDArray[np.float64]
    ridge: NDArray[np.float64]
    l1: NDArray[np.float64]
    parties: int
    coupled: bool = False

    def grams(self, curvature: NDArray[np.float64], outputs: int) -> list[NDArray[np.float64]]:
        """``x' diag(c_k) x`` for each output k."""
        if curvature.ndim < 2:
            return [float(curvature) * (self.x.T @ self.x)] * outputs
        return [self.x.T @ (self.x * curvature[:, k, None]) for k in range(outputs)]


class _Inverse:
    """The inverses of a party's blocks with the ridge. A direction without curvature, such as a constant column, is left alone."""

    def __init__(self, block: OwnBlock, grams: list[NDArray[np.float64]]) -> None:
        self._parts: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        for gram in grams:
            values, vectors = np.linalg.eigh(gram + np.diag(block.ridge))
            least = 1e-13 * values.max(initial=0.0)
            self._parts.append((vectors, np.where(values > least, 1 / np.maximum(values, least or 1.0), 0.0)))

    def __call__(self, g: NDArray[np.float64]) -> NDArray[np.float64]:
        made = [vectors @ (inverse * (vectors.T @ g[:, k])) for k, (vectors, inverse) in enumerate(self._parts)]
        return np.stack(made, axis=1) if made else np.zeros_like(g)


async def fit_weights(
    block: OwnBlock,
    rows: JointRows,
    outputs: int,
    start: tuple[int, NDArray[np.float64]] | None = None,
    save: Callable[[int, NDArray[np.float64]], Awaitable[None]] | None = None,
    solver: str = "newton",
) -> NDArray[np.float64]:
    """This party's weights at the optimum, ``(columns, outputs)``.

    Args:
        block: its columns.
        rows: the others.
        outputs: margins of a row.
        start: the number of steps that were taken, and the weights after them.
        save: called after each step with the same.
        solver: how the steps are found, a name of `SOLVERS` or `BATCHES`; of any but the first the loss is quadratic.

    Raises:
        DataError: the loss still falls after 100 steps, as without a penalty where a column separates two classes.
    """
    done, w = start or (0, np.zeros((block.x.shape[1], outputs)))
    ridge, last = block.ridge[:, None], np.inf
    for step in range(done, _STEPS):
        g, curvature = await rows.find_gradient(w)
        g = g + ridge * w
        grams = block.grams(curvature, outputs)
        if block.l1.any():
            d, size = await _proximal_step(block, rows, grams, w, g)
        else:
            solve: Any = _sampled_step if solver == BATCHES else SOLVERS[solver]
            d, size = await solve(block, rows, grams, g)
        # One step reaches the optimum of a quadratic loss: what does not shrink any more is the error of the products.
        if not size > rows.exact * len(block.x) * outputs or (rows.quadratic and size > last / 16):
            return _move(w, d)
        last = size
        before, after = (float((block.l1[:, None] * np.abs(one)).sum()) for one in (w, w + d))
        length = await rows.search(d, float((ridge * w * d).sum()), float((ridge * d * d).sum()), (before, after))
        if length == 0.0:
            return w
        w = _move(w, length * d)
        if save is not None:
            await save(step + 1, w)
    raise DataError(
        f"the loss still falls after {_STEPS} steps",
        where="VerticalLinear",
        remedy="use penalty=, such as 1.0: without one, weights grow without end if the columns tell the classes apart",
    )


async def _newton_step(
    block: OwnBlock, rows: JointRows, grams: list[NDArray[np.float64]], g: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """``d`` with ``H d = -g``, and ``d H d``, by conjugate gradients; exact enough that the steps converge at least twice as many digits at a time."""
    inverse = _Inverse(block, grams)

    async def precondition(r: NDArray[np.float64]) -> NDArray[np.float64]:
        return inverse(r)

    return await _conjugate_step(block, rows, g, precondition)


async def _sampled_step(
    block: OwnBlock, rows: SampledRows, grams: list[NDArray[np.float64]], g: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """The same, preconditioned by pairs that products over a batch of rows have made."""
    memory = await _sample_pairs(block, rows, _Inverse(block, grams), g)
    return await _conjugate_step(block, rows, g, memory.foresee)


async def _conjugate_step(
    block: OwnBlock, rows: JointRows, g: NDArray[np.float64], precondition: Callable[[Any], Awaitable[Any]]
) -> tuple[NDArray[np.float64], float]:
    """``d`` with ``H d = -g``, and ``d H d``, by conjugate gradients with a preconditioner."""
    ridge = block.ridge[:, None]
    d, r = np.zeros_like(g), -g
    z = await precondition(r)
    [first] = await rows.total(float((r * z).sum()))
    p, rz, size = z, first, 0.0
    exact = rows.exact if rows.quadratic else max(1e-20, min(1e-4, first / len(block.x)))
    for _ in range(_PRODUCTS):
        if not rz > max(exact * first, 0.1 * rows.exact * len(block.x)):
            break
        q = await rows.bend(p) + ridge * p
        [bow] = await rows.total(float((p * q).sum()))
        if not bow > 0:
            break
        length = rz / bow
        d, r = d + length * p, r - length * q
        size += length * rz
        z = await precondition(r)
        [following] = await rows.total(float((r * z).sum()))
        p, rz = z + following / rz * p, following
    return d, max(size, 0.0)


async def _sample_pairs(block: OwnBlock, rows: SampledRows, inverse: _Inverse, g: NDArray[np.float64]) -> _SampledPairs:
    """Pairs of ``H d = -g`` over a batch of rows, by conjugate gradients until little is left."""
    ridge, r = block.ridge[:, None], -g
    p = z = inverse(r)
    [first] = await rows.total(float((r * z).sum()))
    rz, pairs = first, _SampledPairs(inverse, rows)
    while len(pairs.kept) < SAMPLED and rz > max(1e-14 * first, 0.1 * rows.exact * len(block.x)):
        q = await rows.bend_batch(p) + ridge * p
        [bow] = await rows.total(float((p * q).sum()))
        if not bow > 0:
            break
        pairs.kept.append((p, q, inverse(q)))
        r = r - rz / bow * q
        z = inverse(r)
        [following] = await rows.total(float((r * z).sum()))
        p, rz = z + following / rz * p, following
    await pairs.compare()
    return pairs


async def _remembered_step(
    block: OwnBlock, rows: JointRows, grams: list[NDArray[np.float64]], g: NDArray[np.float64], memory: int
) -> tuple[NDArray[np.float64], float]:
    """``d`` with ``H d = -g``, and ``d H d``, by the two loops of L-BFGS (Nocedal 1980) over a memory of pairs ``s``, ``y = H s``; without one, by gradient descent."""
    inverse: Any = _Inverse(block, grams) if memory else _keep
    ridge, pairs = block.ridge[:, None], _Pairs(memory)
    d, r, size = np.zeros_like(g), g, 0.0
    r_hat = inverse(r)
    for _ in range(_PRODUCTS if memory else _DESCENTS):
        p = -pairs.apply(r_hat)
        q = await rows.bend(p) + ridge * p
        q_hat = inverse(q)
        told = [(r, p), (p, q), (r_hat, q), (q_hat, q), *pairs.with_those(r, r_hat, q, q_hat)]
        slope, bow, *crossed = await rows.total(*(float((a * b).sum()) for a, b in told))
        if not (bow > 0 and slope < 0):
            return d, size
        length = -slope / bow
        d, r, size = d + length * p, r + length * q, size - length * slope
        r_hat = inverse(r)
        left = pairs.add(length, p, q, q_hat, bow, crossed)
        # What a memory foresees of the rest is about right; without one, it is the next step's share alone.
        if not left > (1.0 if memory else 1e-4) * max(rows.exact * size, 0.1 * rows.exact * len(block.x)):
            return d, size
    raise DataError(
        f"the loss still falls after {_PRODUCTS if memory else _DESCENTS} products",
        where="VerticalLinear",
        remedy="use solver='newton', or a larger penalty=",
    )


async def _proximal_step(
    block: OwnBlock, rows: JointRows, grams: list[NDArray[np.float64]], w: NDArray[np.float64], g: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """The minimiser d of ``g d + d H d / 2 + l1 |w + d|``, and ``d H d``. H is below its blocks times the number of parties, of coupled outputs twice as much."""
    ridge, bound = block.ridge[:, None], block.parties * (2.0 if block.coupled else 1.0)
    metrics = [bound * gram + np.diag(block.ridge) for gram in grams]
    d = ahead = np.zeros_like(g)
    momentum, size, largest = 1.0, 0.0, 0.0
    for _ in range(4 * _PRODUCTS):
        bent = (await rows.bend(ahead)) + ridge * ahead
        slope = g + bent
        following = (
            np.stack(
                [_shrink(metrics[k], w[:, k] + ahead[:, k], slope[:, k], block.l1) for k in range(g.shape[1])], axis=1
            )
            - w
            if g.size
            else g
        )
        moved = following - d
        metric = sum(float(moved[:, k] @ metrics[k] @ moved[:, k]) for k in range(g.shape[1]))
        whole = sum(float(following[:, k] @ metrics[k] @ following[:, k]) for k in range(g.shape[1]))
        back, change, size = await rows.total(float(((ahead - following) * moved).sum()), metric, whole)
        largest = max(largest, change)
        if back > 0:  # the momentum leads uphill (O'Donoghue and Candes 2015)
            momentum = 1.0
        later = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = following + (momentum - 1) / later * moved
        d, momentum = following, later
        if change <= max(rows.exact * largest, 1e-2 * rows.exact * len(block.x)):
            break
    return d, size


def _shrink(
    metric: NDArray[np.float64], at: NDArray[np.float64], slope: NDArray[np.float64], l1: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The minimiser v of ``slope (v - at) + (v - at) metric (v - at) / 2 + l1 |v|``, by coordinates (Friedman, Hastie and Tibshirani 2010)."""
    v, pull = at.copy(), slope.copy()  # pull: the derivative of the smooth part at v
    own = np.diag(metric)
    columns = np.flatnonzero(own > 0).tolist()
    for _ in range(1000):
        largest = 0.0
        for j in columns:
            target = v[j] - pull[j] / own[j]
            new = np.sign(target) * max(abs(target) - l1[j] / own[j], 0.0)
            if new != v[j]:
                change = new - v[j]
                pull += metric[:, j] * change
                v[j] = new
                largest = max(largest, abs(change) * np.sqrt(own[j]))
        if largest <= 1e-14 * max(1.0, float(np.sqrt(own.max(initial=0.0)))):
            break
    return v


def _move(w: NDArray[np.float64], d: NDArray[np.float64]) -> NDArray[np.float64]:
    """``w + d``, with weights of 0 where rounding alone is left of them."""
    moved = w + d
    return np.where(np.abs(moved) <= 1e-15 * np.abs(w), 0.0, moved)


class _Pairs:
    """The pairs of L-BFGS. Each party has its own entries; all have the same inner products, and so the same coefficients."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.kept: list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]] = []
        self._sy = self._yy = np.zeros((0, 0))
        self._of_s = self._of_y = np.zeros(0)

    def with_those(
        self, r: NDArray[np.float64], r_hat: NDArray[np.float64], q: NDArray[np.float64], q_hat: NDArray[np.float64]
    ) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """The vectors whose inner products `add` needs."""
        each = [one for s, y, _ in self.kept for one in ((r, s), (r_hat, y), (q, s), (q_hat, y))]
        return [(r, r_hat), *each]

    def add(
        self,
        length: float,
        p: NDArray[np.float64],
        q: NDArray[np.float64],
        q_hat: NDArray[np.float64],
        bow: float,
        crossed: list[float],
    ) -> float:
        """Take a step of that length along p into the memory; return how far the loss may still fall, twice.

        Args:
            length: of the step.
            p: its direction.
            q: ``H p``.
            q_hat: the blocks' inverse of q.
            bow: ``p q``.
            crossed: the inner products of r with q, of q with itself (both by the blocks' inverse), and those of `with_those`.
        """
        rq, qq, rr, *others = crossed
        rr += 2 * length * rq + length**2 * qq
        if not self.memory:
            return length * rr
        rs, ry, qs, qy = np.array(others).reshape(-1, 4).T
        self._sy, self._yy = (
            np.block([[old, length * new[:, None]], [length * new, length**2 * own]])
            for old, new, own in ((self._sy, qs, bow), (self._yy, qy, qq))
        )
        of_s, of_y = [*(rs + length * qs), 0.0], [*(ry + length * qy), length * (rq + length * qq)]
        self.kept.append((length * p, length * q, length * q_hat))
        last = slice(-self.memory, None)
        self.kept, self._sy, self._yy = self.kept[last], self._sy[last, last], self._yy[last, last]
        self._of_s, self._of_y = np.array(of_s[last]), np.array(of_y[last])
        alpha, gamma = self._coefficients()
        return float(rr - alpha @ self._of_y + gamma @ self._of_s)

    def _coefficients(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Those of ``-y`` and of ``s`` in the memory's answer to r."""
        size = len(self.kept)
        alpha, gamma, bows = np.zeros(size), np.zeros(size), np.diag(self._sy)
        for i in reversed(range(size)):
            alpha[i] = (self._of_s[i] - self._sy[i] @ alpha) / bows[i]
        for i in range(size):
            gamma[i] = alpha[i] - (self._of_y[i] - self._yy[i] @ alpha + self._sy[i] @ gamma) / bows[i]
        return alpha, gamma

    def apply(self, r_hat: NDArray[np.float64]) -> NDArray[np.float64]:
        """About ``H^-1 r``, of this party's entries."""
        made = r_hat
        for alpha, gamma, (s, _, y_hat) in zip(*self._coefficients(), self.kept, strict=True):
            made = made - alpha * y_hat + gamma * s
        return made


class _SampledPairs(_Pairs):
    """Pairs that do not change, as a preconditioner.

    Args:
        inverse: of this party's blocks.
        rows: the others.
    """

    def __init__(self, inverse: _Inverse, rows: JointRows) -> None:
        super().__init__(SAMPLED)
        self._inverse, self._rows = inverse, rows

    async def compare(self) -> None:
        """Find the inner products of the pairs."""
        size = len(self.kept)
        told = [float((s * y).sum()) for s, _, _ in self.kept for _, y, _ in self.kept]
        told += [float((y * y_hat).sum()) for _, y, _ in self.kept for _, _, y_hat in self.kept]
        if told:
            self._sy, self._yy = np.array(await self._rows.total(*told)).reshape(2, size, size)

    async def foresee(self, r: NDArray[np.float64]) -> NDArray[np.float64]:
        """About ``H^-1 r``, of this party's entries."""
        r_hat = self._inverse(r)
        if not self.kept:
            return r_hat
        told = [float((r * one).sum()) for s, _, y_hat in self.kept for one in (s, y_hat)]
        self._of_s, self._of_y = np.array(await self._rows.total(*told)).reshape(-1, 2).T
        return self.apply(r_hat)


def _keep(g: NDArray[np.float64]) -> NDArray[np.float64]:
    """The numbers themselves."""
    return g


SOLVERS: dict[str, Callable[..., Awaitable[tuple[NDArray[np.float64], float]]]] = {
    "newton": _newton_step,
    "quasi-newton": partial(_remembered_step, memory=MEMORY),
    "gradient": partial(_remembered_step, memory=0),
}
"""How a step is found, by name."""
BATCHES = "batches"
"""The solver of ``quasi-newton`` with batches, for `SampledRows`."""
