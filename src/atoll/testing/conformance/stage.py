"""What every stage must do, and what it must do if it says that it is summable, linear, unbiased, small or bounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.core import message as M
from atoll.core import tree as T
from atoll.core.rng import Rng
from atoll.core.stage import Stage
from atoll.core.task import resolve
from atoll.core.tree import Tree

from .laws import close, require, same

__all__ = ["check_stage"]


def check_stage(
    stage: Stage, *, values: list[Tree] | None = None, tolerance: float = 1e-5, draws: int = 400, seed: int = 0
) -> None:
    """Require a stage to keep what it declares.

    * It travels: name and plain settings make the same stage again; what it encodes is a message.
    * Encoding is a function of value, round parameters and key; it does not change what it is given.
    * ``decode`` gives back the structure, shapes and dtypes.
    * ``encode_block`` is ``encode`` row by row.
    * *summable*: ``decode(sum of encodings, n) = sum of decode(encoding, 1)``.
    * *linear*: ``encode(a x + b y) = a encode(x) + b encode(y)`` for one key.
    * *unbiased*: ``decode(encode(x), 1)`` is ``x`` on average: within six standard errors over ``draws`` keys.
    * ``bits`` is the size of the encoded leaves, and ``sensitivity(None)`` bounds the norm of what is encoded.

    Args:
        stage: the stage.
        values: trees of the same structure to encode; by default Gaussian float32 ones.
        tolerance: allowed difference, relative to ``1 + |x|``.
        draws: keys over which the mean is taken.
        seed: of values and keys.

    Raises:
        AssertionError: it does not.
    """
    root = Rng.of(seed)
    rows = values or [_value(root.child("value", i)) for i in range(4)]
    public = stage.public(root.child("public"))
    name = type(stage).__name__
    _travels(stage, public, name)
    for i, value in enumerate(rows):
        _encodes(stage, value, public, root.child("key", i), name)
    _blocks(stage, rows, public, root, name, tolerance)
    if stage.summable:
        _sums(stage, rows, public, root, name, tolerance)
    if stage.linear:
        _is_linear(stage, rows, public, root.child("linear"), name, tolerance)
    if stage.unbiased:
        _is_unbiased(stage, rows[0], public, root, name, tolerance, draws)


def _value(rng: Rng) -> Tree:
    draw = rng.generator()
    return {"w": draw.normal(size=(3, 4)).astype(np.float32), "b": draw.normal(size=5).astype(np.float32)}


def _travels(stage: Stage, public: Tree, name: str) -> None:
    settings = M.decode(M.encode(stage.settings()))
    require(type(stage)(**settings) == stage, f"{name}: its settings {settings} do not make it again")
    if "<locals>" not in stage.name:
        require(resolve(stage.name, {}, Stage) is type(stage), f"{name}: {stage.name} does not lead to it")
    M.encode(public)


def _encodes(stage: Stage, value: Tree, public: Tree, rng: Rng, name: str) -> None:
    before = M.encode(value)
    first, second = stage.encode(value, public, rng), stage.encode(value, public, rng)
    same(first, second, f"{name}: the same key encodes differently")
    require(M.encode(value) == before, f"{name}: encoding changes the value it is given")
    back = stage.decode(M.decode(M.encode(first)), public, 1)
    for (path, leaf), (_, got) in zip(T.items(value), T.items(back), strict=True):
        require(np.shape(got) == np.shape(leaf), f"{name}: {path} comes back with shape {np.shape(got)}")
        require(got.dtype == leaf.dtype, f"{name}: {path} comes back as {got.dtype}, not {leaf.dtype}")
    bits, plain = stage.bits(value), [leaf for leaf in T.leaves(first) if isinstance(leaf, np.ndarray)]
    if bits is not None and len(plain) == len(T.leaves(first)):
        size = 8 * sum(leaf.nbytes for leaf in plain)
        require(bits == size, f"{name}: it says {bits} bits and sends {size}")
    bound = stage.sensitivity(None)
    if bound is not None:
        large = stage.decode(stage.encode(T.scale(value, 1e3), public, rng), public, 1)
        norm = float(T.norm(T.map(lambda leaf: leaf.astype(np.float64), large)))
        require(norm <= bound * (1 + 1e-5), f"{name}: it bounds changes by {bound} and lets {norm} through")


def _blocks(stage: Stage, rows: list[Tree], public: Tree, root: Rng, name: str, tolerance: float) -> None:
    keys = np.array([root.child("key", i).key for i in range(len(rows))], dtype=np.uint64)
    block = stage.encode_block(T.map(lambda *leaves: np.stack(leaves), *rows), public, keys)
    for i, value in enumerate(rows):
        one = stage.encode(value, public, Rng(int(keys[i])))
        close(T.map(lambda leaf, i=i: leaf[i], block), one, f"{name}: row {i} of a block", tolerance)


def _added(trees: list[Any]) -> Any:
    total = trees[0]
    for tree in trees[1:]:
        total = T.add(total, tree)
    return total


def _sums(stage: Stage, rows: list[Tree], public: Tree, root: Rng, name: str, tolerance: float) -> None:
    encoded = [stage.encode(value, public, root.child("key", i)) for i, value in enumerate(rows)]
    together = stage.decode(_added(encoded), public, len(rows))
    apart = _added([stage.decode(one, public, 1) for one in encoded])
    close(together, apart, f"{name} says it is summable, and the sum decodes differently", tolerance)


def _is_linear(stage: Stage, rows: list[Tree], public: Tree, rng: Rng, name: str, tolerance: float) -> None:
    x, y = rows[0], rows[1]
    mixed = stage.encode(T.add(T.scale(x, 2.0), T.scale(y, -0.5)), public, rng)
    apart = T.add(T.scale(stage.encode(x, public, rng), 2.0), T.scale(stage.encode(y, public, rng), -0.5))
    close(mixed, apart, f"{name} says it is linear", tolerance)


def _is_unbiased(stage: Stage, value: Tree, public: Tree, root: Rng, name: str, tolerance: float, draws: int) -> None:
    keys = [root.child("draw", i) for i in range(draws)]
    several = [(stage.public(key.child("public")) if public is not None else public, key) for key in keys]
    seen = [stage.decode(stage.encode(value, known, key), known, 1) for known, key in several]
    for path, leaf in T.items(value):
        column = np.stack([dict(T.items(tree))[path].astype(np.float64) for tree in seen])
        error = 6 * column.std(axis=0) / np.sqrt(draws) + tolerance * (1 + np.abs(leaf))
        off = np.abs(column.mean(axis=0) - leaf) - error
        require(float(off.max()) <= 0, f"{name} says it is unbiased, and {path} is off by {float(off.max()):g}")
