"""What every stage must do, and what it must do if it says that it is summable, linear, unbiased, small or bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.form import form_of
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import AtollError
from atoll.core.facets import facet
from atoll.core.requests.stage import SEED_BYTES, Estimated, Fitting, Guarding, Stage, StageContext, WithMemory, Worded
from atoll.core.requests.task import resolve

from .laws import close, require, same

__all__ = ["check_stage"]


def check_stage(
    stage: Stage, *, values: list[Tree] | None = None, tolerance: float = 1e-5, draws: int = 400, seed: int = 0
) -> None:
    """Require a stage to keep what it declares.

    * It travels: name and plain settings make the same stage again; what it encodes is a message.
    * Encoding is a function of value, round parameters and key; it does not change its input.
    * ``decode`` gives back the structure, shapes and dtypes.
    * ``encode_block`` is ``encode`` row by row, ``decode_block`` is ``decode`` row by row.
    * *summable*: ``decode(sum of w_k encoding_k, n) = sum of w_k decode(encoding_k, 1)`` for any weights, because a
      value stage's encodings are weighted before they are added: its decoder is linear. Or its encoder is, ``sum of w_k
      encode(x_k) = encode(sum of w_k x_k)``, and its decoder scales, ``decode(c y) = c decode(y)``.
    * *remembers*: its new memory has the form of ``fresh``; encoding is a function of value, memory, round parameters
      and key, and changes none of them; a block remembers row by row. A stage that remembers nothing leaves ``fresh``
      at ``None``.
    * *linear*: ``encode(a x + b y) = a encode(x) + b encode(y)`` for one key.
    * *unbiased*: ``decode(encode(x), 1)`` is ``x`` on average: within six standard errors over ``draws`` keys.
    * ``omega`` and ``delta`` bound the mean square error, within six standard errors over the draws.
    * *words*: ``word_bits`` has the structure of the encoding; leaves with bits are unsigned integers below ``2^bits`` that decode as well
      from their sum modulo ``2^bits``, if the stage is summable.
    * *indexes*: encodings add up, and are checked, as ``addends``.
    * *fits*: the parameters of ``fit`` are a message, the other laws hold under them, and an encoding under one version is refused under another.
    * ``wire_bits`` is the size of the encoded leaves, and ``sensitivity(None)`` bounds the norm of the encoded value.

    Args:
        stage: the stage.
        values: trees of the same structure to encode; by default Gaussian float32 ones.
        tolerance: allowed difference, relative to ``1 + |x|``.
        draws: keys over which the mean is taken.
        seed: of values and keys.

    Raises:
        AssertionError: it breaks a law.
    """
    root = Rng.of(seed)
    rows = values or [_value(root.child("value", i)) for i in range(4)]
    public = stage.public(root.child("public"))
    name = type(stage).__name__
    if facet(stage, Fitting).fits:
        public = {**facet(stage, Fitting).fit(rows[0], root.child("fit")), "version": 1}
        _fits(stage, rows[0], public, root, name)
    _travels(stage, public, name)
    for i, value in enumerate(rows):
        _encodes(stage, value, public, root.child("key", i), name)
    _blocks(stage, rows, public, root, name, tolerance)
    if facet(stage, Worded).words or facet(stage, Worded).indexes:
        _has_words(stage, rows, public, root, name)
    if stage.summable or facet(stage, Worded).indexes:
        _sums(stage, rows, public, root, name, tolerance)
    _remembers(stage, rows, public, root, name, tolerance)
    _errs(stage, rows[0], public, root, name, min(draws, 100))
    if stage.linear:
        _is_linear(stage, rows, public, root.child("linear"), name, tolerance)
    if stage.unbiased:
        _is_unbiased(stage, rows[0], public, root, name, tolerance, draws)


def _context(public: Tree, rng: Rng) -> StageContext:
    return _contexts(public, np.array([rng.key], dtype=np.uint64))


def _contexts(public: Tree, keys: Any) -> StageContext:
    """Return contexts with values of norm at most 64 and secrets that follow from the keys, so that encoding is a function here."""
    seeds = np.stack([Rng(int(k)).generator().integers(0, 256, SEED_BYTES, dtype=np.uint8) for k in keys])
    return StageContext(public, keys, seeds, sensitivity=64.0)


def _value(rng: Rng) -> Tree:
    draw = rng.generator()
    return {"w": draw.normal(size=(3, 4)).astype(np.float32), "b": draw.normal(size=5).astype(np.float32)}


def _travels(stage: Stage, public: Tree, name: str) -> None:
    settings = M.decode(M.encode(stage.settings()))
    made = Stage.of({"stage": stage.name, "settings": settings}, lambda n: _class_of(stage, n))
    require(made == stage, f"{name}: its settings {settings} do not make it again")
    if "<locals>" not in stage.name:
        require(resolve(stage.name, {}, Stage) is type(stage), f"{name}: {stage.name} does not lead to it")
    M.encode(public)


def _class_of(stage: Stage, name: str) -> type[Stage]:
    return type(stage) if name == stage.name else resolve(name, {}, Stage)


def _encodes(stage: Stage, value: Tree, public: Tree, rng: Rng, name: str) -> None:
    before = M.encode(value)
    first, second = stage.encode(value, _context(public, rng)), stage.encode(value, _context(public, rng))
    same(first, second, f"{name}: the same key encodes differently")
    require(M.encode(value) == before, f"{name}: encoding changes the value it is given")
    if stage.on == "value" and not stage.packs:
        same_form = all(map(_numbers, T.leaves(first))) and [p for p, _ in T.items(first)] == [
            p for p, _ in T.items(value)
        ]
        require(same_form, f"{name}: it encodes to something else than numbers at the same places; set packs = True")
    back = _decode_sent(stage, M.decode(M.encode(first)), public)
    for (path, leaf), (_, got) in zip(T.items(value), T.items(back), strict=True):
        require(np.shape(got) == np.shape(leaf), f"{name}: {path} comes back with shape {np.shape(got)}")
        require(got.dtype == leaf.dtype, f"{name}: {path} comes back as {got.dtype}, not {leaf.dtype}")
    bits, plain = stage.wire_bits(value), [leaf for leaf in T.leaves(first) if isinstance(leaf, np.ndarray)]
    if bits is not None and len(plain) == len(T.leaves(first)):
        size = 8 * sum(leaf.nbytes for leaf in T.leaves(_on_the_link(stage, first)))
        require(
            bits == size,
            f"{name}: wire_bits(value) is {bits}, but it sends {size} bits; override wire_bits, or return None to have it measured",
        )
    bound = facet(stage, Guarding).sensitivity(None)
    if bound is not None:
        large = _decode_sent(stage, stage.encode(T.scale(value, 1e3), _context(public, rng)), public)
        norm = float(T.norm(T.map(lambda leaf: leaf.astype(np.float64), large)))
        require(norm <= bound * (1 + 1e-5), f"{name}: it bounds changes by {bound} and lets {norm} through")


def _numbers(leaf: Any) -> bool:
    """Tell whether a later stage can compute with a leaf of an encoding."""
    return isinstance(leaf, np.ndarray | np.generic | int | float) and np.asarray(leaf).dtype.kind in "iuf"


def _blocks(stage: Stage, rows: list[Tree], public: Tree, root: Rng, name: str, tolerance: float) -> None:
    keys = np.array([root.child("key", i).key for i in range(len(rows))], dtype=np.uint64)
    block = stage.encode_block(T.map(lambda *leaves: np.stack(leaves), *rows), _contexts(public, keys))
    for i, value in enumerate(rows):
        one = stage.encode(value, _contexts(public, keys).row(i))
        close(T.map(lambda leaf, i=i: leaf[i], block), one, f"{name}: row {i} of a block", tolerance)
    if facet(stage, WithMemory).remembers:
        return
    back = stage.decode_block(block, public)
    for i, value in enumerate(rows):
        one = _decode_sent(stage, stage.encode(value, _contexts(public, keys).row(i)), public)
        close(T.map(lambda leaf, i=i: leaf[i], back), one, f"{name}: row {i} of a decoded block", tolerance)


def _remembers(stage: Stage, rows: list[Tree], public: Tree, root: Rng, name: str, tolerance: float) -> None:
    """Check the laws of memory, over three replies of every client."""
    if not facet(stage, WithMemory).remembers:
        require(
            facet(stage, WithMemory).fresh(rows[0]) is None,
            f"{name}: it remembers nothing and has a memory to begin with",
        )
        return
    alone = [facet(stage, WithMemory).fresh(value) for value in rows]
    form = form_of(alone[0])
    require(form is not None, f"{name}: its memory is not a tree of arrays")
    together = T.map(lambda *leaves: np.stack(leaves), *alone)
    block = T.map(lambda *leaves: np.stack(leaves), *rows)
    for number in range(3):
        keys = np.array([root.child("reply", number, i).key for i in range(len(rows))], dtype=np.uint64)
        before = M.encode({"memory": alone[0], "value": rows[0]})
        again = facet(stage, WithMemory).remember(rows[0], alone[0], _contexts(public, keys).row(0))
        pairs = [
            facet(stage, WithMemory).remember(v, m, _contexts(public, keys).row(i))
            for i, (v, m) in enumerate(zip(rows, alone, strict=True))
        ]
        same(pairs[0], again, f"{name}: the same memory and key encode differently")
        require(
            M.encode({"memory": alone[0], "value": rows[0]}) == before, f"{name}: it changes the memory it is given"
        )
        sent, kept = facet(stage, WithMemory).remember_block(block, together, _contexts(public, keys))
        understood = stage.decode_block(sent, public, together)
        for i, (wire, memory) in enumerate(pairs):
            found = form_of(memory)
            require(
                form is not None and found is not None and found[0] == form[0], f"{name}: its memory changes its form"
            )
            close(T.map(lambda leaf, i=i: leaf[i], kept), memory, f"{name}: memory of row {i} of a block", tolerance)
            one = facet(stage, WithMemory).decode_one(wire, public, alone[i])
            close(T.map(lambda leaf, i=i: leaf[i], understood), one, f"{name}: row {i} with memory", tolerance)
        alone, together = [memory for _, memory in pairs], kept


def _errs(stage: Stage, value: Tree, public: Tree, root: Rng, name: str, draws: int) -> None:
    """Check the bounds of the mean square error."""
    omega, delta = facet(stage, Estimated).omega(value), facet(stage, Estimated).delta(value)
    if (omega is None and delta is None) or facet(stage, WithMemory).remembers:
        return
    square = sum(float((leaf.astype(np.float64) ** 2).sum()) for leaf in T.leaves(value))
    seen = []
    for i in range(draws):
        key = root.child("error", i)
        known = _draw_public(stage, public, key)
        off = T.sub(_decode_sent(stage, stage.encode(value, _context(known, key)), known), value)
        seen.append(sum(float((leaf.astype(np.float64) ** 2).sum()) for leaf in T.leaves(off)) / square)
    least = float(np.mean(seen) - 6 * np.std(seen) / np.sqrt(draws))
    for bound, what in ((omega, "omega"), (None if delta is None else 1 - delta, "1 - delta")):
        require(bound is None or least <= bound + 1e-6, f"{name}: its error is {least:g} and its {what} {bound}")


def _fits(stage: Stage, value: Tree, public: Tree, root: Rng, name: str) -> None:
    """Check that fitted parameters travel, and that versions do not mix."""
    M.encode(public)
    other = {**public, "version": 2}
    sent = [
        facet(stage, Worded).addends(stage.encode(value, _context(known, root.child("key", 0))))
        for known in (public, other)
    ]
    attempts: list[Callable[[], Any]] = [lambda: stage.decode(sent[0], other, 1), lambda: T.add(*sent)]
    for attempt in attempts:
        try:
            attempt()
        except AtollError:
            continue
        raise AssertionError(f"{name}: encodings under two versions of its parameters mix")


def _has_words(stage: Stage, rows: list[Tree], public: Tree, root: Rng, name: str) -> None:
    """Check words: their form, and that a sum modulo their size is as good as the sum."""
    encoded = [stage.encode(value, _context(public, root.child("key", i))) for i, value in enumerate(rows)]
    bits = facet(stage, Worded).word_bits(encoded[0])
    for (path, leaf), (at, width) in zip(T.items(encoded[0]), T.items(bits), strict=True):
        require(path == at, f"{name}: word_bits has {at} where its encoding has {path}")
        good = width is None or (np.asarray(leaf).dtype.kind == "u" and int(np.max(leaf, initial=0)) < 1 << width)
        require(good, f"{name}: {path} has entries that are not words of {width} bits")
    if stage.summable:
        total = _add_trees(encoded)
        short = T.map(
            lambda leaf, width: leaf if width is None else leaf & leaf.dtype.type((1 << width) - 1), total, bits
        )
        same(
            stage.decode(total, public, len(rows)), stage.decode(short, public, len(rows)),
            f"{name}: a sum decodes differently once it is reduced",
        )  # fmt: skip


def _draw_public(stage: Stage, public: Tree, key: Rng) -> Tree:
    """The round parameters of another round; fitted ones stay."""
    return public if public is None or facet(stage, Fitting).fits else stage.public(key.child("public"))


def _decode_sent(stage: Stage, sent: Tree, public: Tree) -> Tree:
    return stage.decode(facet(stage, Worded).addends(sent), public, 1)


def _on_the_link(stage: Stage, sent: Tree) -> Tree:
    """An encoding with its words packed to whole bytes a leaf."""
    if not (facet(stage, Worded).words or facet(stage, Worded).indexes):
        return sent
    return T.map(
        lambda leaf, bits: leaf if bits is None else np.zeros(-(-leaf.size * bits // 8), np.uint8),
        sent, facet(stage, Worded).word_bits(sent),
    )  # fmt: skip


def _add_trees(trees: list[Any]) -> Any:
    total = trees[0]
    for tree in trees[1:]:
        total = T.add(total, tree)
    return total


def _sums(stage: Stage, rows: list[Tree], public: Tree, root: Rng, name: str, tolerance: float) -> None:
    encoded = [
        facet(stage, Worded).addends(stage.encode(value, _context(public, root.child("key", i))))
        for i, value in enumerate(rows)
    ]
    # A summand stage's encodings are added as they are; a caller that adds before weighting uses weights 1.
    weights = [1.0 + i * (stage.on == "value") for i in range(len(rows))]
    for scales in ([1.0] * len(rows), weights):
        summed = _add_trees([one if w == 1 else T.scale(one, w) for one, w in zip(encoded, scales, strict=True)])
        together = stage.decode(summed, public, len(rows))
        apart = _add_trees([T.scale(stage.decode(one, public, 1), w) for one, w in zip(encoded, scales, strict=True)])
        try:
            close(together, apart, f"{name} says it is summable, and the sum decodes differently", tolerance)
        except AssertionError:
            if not _sums_before(stage, rows, scales, summed, public, root, tolerance):
                raise


def _sums_before(
    stage: Stage, rows: list[Tree], scales: list[float], summed: Tree, public: Tree, root: Rng, tolerance: float
) -> bool:
    """Tell whether the sum of encodings is the encoding of the sum, and decoding scales and does not count."""
    whole = _add_trees([T.scale(value, w) for value, w in zip(rows, scales, strict=True)])
    try:
        close(summed, stage.encode(whole, _context(public, root.child("whole"))), "", tolerance)
        close(
            stage.decode(T.scale(summed, 2.5), public, 1),
            T.scale(stage.decode(summed, public, len(rows)), 2.5),
            "",
            tolerance,
        )
    except AssertionError:
        return False
    return True


def _is_linear(stage: Stage, rows: list[Tree], public: Tree, rng: Rng, name: str, tolerance: float) -> None:
    x, y = rows[0], rows[1]
    mixed = stage.encode(T.add(T.scale(x, 2.0), T.scale(y, -0.5)), _context(public, rng))
    apart = T.add(
        T.scale(stage.encode(x, _context(public, rng)), 2.0), T.scale(stage.encode(y, _context(public, rng)), -0.5)
    )
    close(mixed, apart, f"{name} says it is linear", tolerance)


def _is_unbiased(stage: Stage, value: Tree, public: Tree, root: Rng, name: str, tolerance: float, draws: int) -> None:
    keys = [root.child("draw", i) for i in range(draws)]
    several = [(_draw_public(stage, public, key), key) for key in keys]
    seen = [_decode_sent(stage, stage.encode(value, _context(known, key)), known) for known, key in several]
    for path, leaf in T.items(value):
        column = np.stack([dict(T.items(tree))[path].astype(np.float64) for tree in seen])
        error = 6 * column.std(axis=0) / np.sqrt(draws) + tolerance * (1 + np.abs(leaf))
        off = np.abs(column.mean(axis=0) - leaf) - error
        require(float(off.max()) <= 0, f"{name} says it is unbiased, and {path} is off by {float(off.max()):g}")
