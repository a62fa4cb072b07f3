"""What an algorithm is and costs, measured in a dry run: the rows of ``atoll algorithms``."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np

from atoll.core.addresses import load_object
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import merge_totals
from atoll.core.algebra.tree import Tree
from atoll.core.errors import AtollError, ConfigError, nearest
from atoll.core.facets import facet
from atoll.core.requests.chain import Chain

from .algorithm import Algorithm, Compressing, Phased, RoundInfo
from .local.update import local_contact
from .wrapped import Wrapped, declared_bits

__all__ = ["Exchange", "Fact", "describe", "example", "facts", "formula", "kinds", "programs"]

_SIZES = (100, 200, 300, 400)
"""Model sizes at which floats are counted; a polynomial through the first three must fit the fourth."""
_BIT_SIZES = (200, 400, 600, 800)
"""Model sizes for declared bits: one bit per entry makes whole bytes."""
_ROWS = 12


@dataclass(frozen=True)
class Exchange:
    """One phase of a round, for one client.

    Attributes:
        phase: name of the phase.
        down: floats of the broadcast, as a formula in the number of parameters ``d``.
        up: floats of the reply.
        packed: the method's own stages act on the reply.
        bits: declared bits of the reply after these stages, for a model of 32-bit floats in ``G`` arrays; ``None`` if there are no stages or they
            cannot tell.
    """

    phase: str
    down: str
    up: str
    packed: bool = False
    bits: str | None = None


@dataclass(frozen=True)
class Fact:
    """An algorithm in the table.

    Attributes:
        name: the class name.
        paper: the source.
        family: the algorithm's family.
        state: floats that a client keeps between rounds, including what the method's own uplink stages keep, as a formula in ``d``; ``None``
            if it could not be measured.
        exchanges: what is sent in a round, phase by phase.
        stateless: clients keep nothing.
        secure: every reply can be summed as the method sends it, so that a secure reducer works.
        unbiased: the fixed point is the optimum, according to the card.
        everyone: needs every client in every round, according to the card.
        note: one sentence on the algorithm, or why it could not be measured.
        program: the method is a program over a federation (``simulate(made.program, islands)``), not the algorithm of a ``Training``. What it
            sends depends on its problem; the card says it.
    """

    name: str
    paper: str
    family: str
    state: str | None
    exchanges: tuple[Exchange, ...]
    stateless: bool | None
    secure: bool | None
    unbiased: bool
    everyone: bool
    note: str
    program: bool = False


def kinds() -> dict[str, type[Algorithm]]:
    """Return every algorithm that `atoll.algorithms` lists, by name, except parts of other algorithms."""
    room = load_object("atoll.algorithms")
    found = {name: getattr(room, name) for name in sorted(dir(room))}
    made = {n: k for n, k in found.items() if isinstance(k, type) and issubclass(k, Algorithm)}
    return {n: k for n, k in made.items() if not k.card.part}


def programs() -> dict[str, type]:
    """Return every method that is a program, by name. They are found by address, as their room builds on this one."""
    room = load_object("atoll.programs")
    found = {name: getattr(room, name) for name in sorted(dir(room))}
    return {n: k for n, k in found.items() if isinstance(k, type) and hasattr(k, "card")}


def facts(names: tuple[str, ...] = (), further: tuple[str, ...] = ()) -> list[Fact]:
    """Return the rows of the table.

    Args:
        names: names of algorithms; empty for all.
        further: other names that errors suggest.

    Raises:
        ConfigError: no algorithm has such a name.
    """
    known: dict[str, type] = {**kinds(), **programs()}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"no algorithm {name!r}.{nearest(name, [*known, *further])}",
                where="atoll algorithms",
                remedy=f"choose among {', '.join([*known, *further])}",
            )
    return [_of(known[name]) for name in names or sorted(known)]


def _of(kind: type) -> Fact:
    if issubclass(kind, Algorithm):
        return describe(kind)
    card, paper = kind.card, kind.citation  # type: ignore[attr-defined]
    wire = (Exchange("round", card.down, card.up),)
    return Fact(
        kind.__name__, paper, card.family, card.state, wire, card.state == "0", card.secure, card.unbiased, card.everyone, card.note,
        program=True,
    )  # fmt: skip


def describe(kind: type[Algorithm]) -> Fact:
    """Return the facts of one algorithm with its default settings; a wrapper is measured around FedAvg."""
    note = kind.card.note
    state: str | None = None
    secure: bool | None = None
    exchanges: tuple[Exchange, ...] = ()
    try:
        made = example(kind)
        note = f"Measured around {type(made.base).__name__}. {note}" if isinstance(made, Wrapped) else note
        runs = [_DryRun(made, size) for size in _SIZES]
    except (AtollError, TypeError) as error:
        note = f"could not be measured: {error}"
    else:
        state = formula([run.state for run in runs])
        secure = runs[0].secure
        exchanges = tuple(
            Exchange(
                phase,
                formula([r.down[i] for r in runs]),
                formula([r.up[i] for r in runs]),
                bool(facet(made, Compressing).uplink(phase)),
                _bits(made, phase),
            )
            for i, phase in enumerate(runs[0].phases)
        )
    stateless = None if state is None else state == "0"
    card = kind.card
    return Fact(
        kind.__name__, kind.citation, card.family, state, exchanges, stateless, secure, card.unbiased, card.everyone,
        note.strip(),
    )  # fmt: skip


def example(kind: type[Algorithm], **settings: Any) -> Algorithm:
    """Return an algorithm with its defaults, its card's example settings and ``settings``; a wrapper goes around FedAvg.

    Raises:
        AtollError: the algorithm refuses them.
    """
    from atoll.learn.algorithms.fedavg import FedAvg

    if issubclass(kind, Wrapped) and any(f.name == "base" and f.default is MISSING for f in fields(kind)):
        return kind(**{"base": FedAvg(**settings), **kind.card.example})
    return kind(**{**kind.card.example, **settings})


def _bits(algorithm: Algorithm, phase: str) -> str | None:
    """Return the declared bits of a reply. Models of one array and of two show what each array costs."""
    chain = Chain(facet(algorithm, Compressing).uplink(phase))
    counts: list[list[int]] = []
    for arrays in (1, 2):
        models = [{str(i): np.zeros(d // arrays, np.float32) for i in range(arrays)} for d in _BIT_SIZES]
        found = [declared_bits(algorithm, chain, model, phase) for model in models]
        if None in found:
            return None
        counts.append([bits for bits in found if bits is not None])
    one, two = counts
    each = two[0] - one[0]
    if any(b - a != each for a, b in zip(one, two, strict=True)) or each == 0:
        return formula(one, _BIT_SIZES)
    return f"{formula([bits - each for bits in one], _BIT_SIZES)} + {each} G"


def formula(counts: list[int], sizes: tuple[int, ...] = _SIZES) -> str:
    """Return a count as a polynomial in ``d``, ``"d^2/2 + d/2 + 1"``, or the count at the first size if no polynomial of degree 2 fits.

    Args:
        counts: one for each of the sizes.
        sizes: four sizes.
    """
    (x0, x1, x2), (y0, y1, y2) = sizes[:3], counts[:3]
    second = Fraction((y2 - y1) * (x1 - x0) - (y1 - y0) * (x2 - x1), (x1 - x0) * (x2 - x1) * (x2 - x0))
    first = Fraction(y1 - y0, x1 - x0) - second * (x0 + x1)
    constant = y0 - first * x0 - second * x0 * x0
    if second * sizes[3] ** 2 + first * sizes[3] + constant != counts[3]:
        return f"{counts[0]} of d = {sizes[0]}"
    terms = [_term(second, "d^2"), _term(first, "d"), _term(constant, "")]
    return " + ".join(term for term in terms if term).replace("+ -", "- ") or "0"


def _term(factor: Fraction, power: str) -> str:
    if factor == 0:
        return ""
    if not power:
        return str(factor)
    top = {1: power, -1: f"-{power}"}.get(factor.numerator, f"{factor.numerator} {power}")
    return top if factor.denominator == 1 else f"{top}/{factor.denominator}"


class _DryRun:
    """One round of an algorithm with two clients on a small least-squares problem with ``d`` parameters, and what it sent."""

    def __init__(self, algorithm: Algorithm, d: int) -> None:
        self.algorithm = algorithm
        draw = np.random.default_rng(0)
        self.x, self.y = draw.normal(size=(_ROWS, d)) / np.sqrt(d), draw.normal(size=_ROWS)
        self.phases: list[str] = []
        self.down: list[int] = []
        self.up: list[int] = []
        self.secure = True
        self.remembered = 0
        self.clients: list[Tree] = [None, None]
        state = algorithm.init({"w": np.zeros(d)})
        with np.errstate(all="ignore"):
            for phase in algorithm.plan(state):
                state = self._phase(state, phase) if facet(algorithm, Phased).wanted(state, phase) else state
        self.state = _floats(self.clients[0]) + self.remembered

    def _phase(self, state: Tree, phase: str) -> Tree:
        sent = self.algorithm.broadcast(state, phase)
        replies = []
        for i, client in enumerate(self.clients):
            reply, kept = self._contact(sent, client, phase, i)
            self.clients[i] = client if kept is None else kept
            replies.append({name: aggregate.total() for name, aggregate in reply.items()})
        self.phases.append(phase)
        self.down.append(_floats(sent))
        self.up.append(sum(_floats(aggregate.value) for aggregate in reply.values()))
        chain = Chain(facet(self.algorithm, Compressing).uplink(phase))
        self.secure = self.secure and chain.summable and all(aggregate.summable for aggregate in reply.values())
        self.remembered += _floats(chain.fresh(reply))
        sums = {name: total.result() for name, total in merge_totals(replies).items()}
        return self.algorithm.fold(state, sums, RoundInfo(1, 2, 2, 2, weight=2.0 * _ROWS), phase)

    def _contact(self, sent: Tree, client: Tree, phase: str, key: int) -> tuple[Any, Tree]:
        try:
            return local_contact(
                self.algorithm, phase, self._gradient, sent, client, self.x, self.y, key, self._curvature
            )[:2]
        except AtollError:  # the algorithm takes no gradients: a client without rows takes no step
            return local_contact(self.algorithm, phase, self._gradient, sent, client, self.x[:0], self.y[:0], key)[:2]

    def _gradient(self, params: Tree, x: Any, y: Any) -> tuple[float, Tree]:
        off = x @ params["w"] - y
        return float(off @ off / (2 * len(y))), {"w": x.T @ off / len(y)}

    def _curvature(self, params: Tree, x: Any, y: Any, vector: Tree) -> Tree:
        del params
        return {"w": x.T @ (x @ vector["w"]) / len(y)}


def _floats(tree: Tree) -> int:
    """Return how many numbers a tree holds; text, flags and ``None`` do not count."""
    numeric = [leaf for leaf in T.leaves(tree) if not isinstance(leaf, bool | str | bytes | None)]
    return sum(int(np.size(leaf)) for leaf in numeric)
