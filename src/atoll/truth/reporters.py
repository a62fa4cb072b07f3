"""Tasks on which few workers report are withheld: the holders of shares find out which these are, and show their sums to nobody.

A sum over one reporter is that reporter's contribution. So with ``min_reporters = M`` every letter has, beside the contributions, how many of the party's workers report on each task. The holders add up both. Of the number of
reporters ``c`` of a task they compute on shares ::

    r c (c - 1) ... (c - M + 1)      with a random r that nobody knows

and show the product to each other: it is 0 if ``c < M``, and otherwise uniform among all numbers but 0. So they learn whether there are enough reporters, and not how many. Only then a holder sends its sums: those of the tasks with enough.

Products are those of Ben-Or, Goldwasser and Wigderson (1988), with the reduction of the degree by Gennaro, Rabin and Rabin (1998): each holder multiplies its shares, and shares the product anew; ``2 t - 1`` of them give a share of the product. A holder
may be lost at any step as long as so many are left. Letters of a step are bound to who was in all steps before, so a server that tells holders different things opens no letter.

With probability ``1 / p`` (``p`` the prime, 32 bits or more) ``r`` is 0: then a task is withheld although it has enough reporters, never the other way round.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core import message as M
from atoll.core.errors import CompositionError, LetterError, PolicyError
from atoll.secure.shares import Field, correct_shamir, split_shamir
from atoll.secure.shares.sharing import interpolate

from .models.model import Term
from .reports import TaskLayout

if TYPE_CHECKING:
    from atoll.secure.shares.domain import Array

__all__ = ["HolderCircle", "ReporterTest", "continue_test", "count_rounds", "start_test", "unpack_tasks"]

_LOOK = "look at the server: it asks for a sum that nobody agreed to"


@dataclass(frozen=True, eq=False)
class ReporterTest:
    """What a test of reporters is about.

    Attributes:
        least: workers that must report on a task.
        owners: the task of each entry of a sum, or -1 for entries that belong to no task, ``(entries,)``.
        tasks: how many tasks there are.
    """

    least: int
    owners: NDArray[np.int64]
    tasks: int

    @classmethod
    def of(cls, least: int, terms: Mapping[str, Term], layout: TaskLayout) -> ReporterTest:
        """The test of a step: the last axis of each array is one of cells or of tasks, or it has one entry.

        Raises:
            CompositionError: an array has another shape, so nobody can say which task an entry belongs to.
        """
        tasks, owners = len(layout.tasks), list[NDArray[np.int64]]()
        for name, term in sorted(terms.items()):
            last = term.shape[-1] if term.shape else 1
            if last == tasks:
                one = np.arange(tasks)
            elif last == layout.cells:
                one = np.asarray(layout.owners)
            elif math.prod(term.shape) == 1:
                one = np.array([-1])
            else:
                raise CompositionError(f"{name} has the shape {term.shape}, and there are {tasks} tasks and {layout.cells} cells", where="min_reporters", remedy="let the last axis of each array of the model be tasks or cells")  # fmt: skip
            owners.append(np.broadcast_to(one, term.shape or (1,)).ravel())
        return cls(least, np.concatenate(owners).astype(np.int64), tasks)

    def find_open(self, withheld: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which entries are shown, ``(entries,)``: those of tasks that are not withheld, and those of no task."""
        return ~np.append(withheld, False)[self.owners]


def unpack_tasks(packed: Any, tasks: int) -> NDArray[np.bool_] | None:
    """Which of the tasks somebody names, by ``np.packbits``, ``(tasks,)``; ``None`` if these are no such bytes."""
    if not isinstance(packed, np.ndarray) or packed.dtype != np.uint8 or packed.shape != (-(-tasks // 8),):
        return None
    return np.unpackbits(packed, count=tasks).astype(bool)


def count_rounds(least: int) -> int:
    """How often holders write to each other after they have added up: once for each level of products, and once to show the last."""
    factors, rounds = least // 2 + least % 2 + 1, 1
    while factors > 1:
        factors, rounds = -(-factors // 2), rounds + 1
    return rounds + 1


@dataclass(frozen=True)
class HolderCircle:
    """The holders that test, from the place of one.

    Attributes:
        names: the holders, in the order of their places.
        threshold: holders whose shares give a value, ``t``.
        field: where shares live.
        label: names the sum.
    """

    names: tuple[str, ...]
    threshold: int
    field: Field
    label: str

    @property
    def least(self) -> int:
        """Holders that must be there: a product of two shares lies on a polynomial of degree ``2 t - 2``."""
        return 2 * self.threshold - 1

    def follow(self, trail: bytes, senders: Sequence[str]) -> bytes:
        """What the letters of the next step are bound to: the sum, and who was in each step before."""
        return hashlib.sha256(M.encode(["atoll reporters", self.label, trail, sorted(set(senders))])).digest()


def start_test(island: Any, total: Array, test: ReporterTest, circle: HolderCircle, senders: Sequence[str]) -> dict[str, Any]:  # fmt: skip
    """At a holder: begin to test the sums that it has added up. Post the first products, and a part of ``r``; return what the holder keeps until it goes on.

    Args:
        island: the holder.
        total: its share of the sums and, behind them, of the numbers of reporters, ``(entries + tasks,)``.
        test: what is tested.
        circle: the holders.
        senders: the parties in the sums.
    """
    field, counts = circle.field, total[-test.tasks :].astype(np.uint64)
    factors = np.stack([field.sub(counts, np.full(test.tasks, j, dtype=np.uint64)) for j in range(test.least)])
    kept = {"values": total[: -test.tasks], "trail": circle.follow(b"", senders), "round": 0}
    return _post_products(island, kept, factors, circle, draws=True)


def _post_products(island: Any, kept: dict[str, Any], factors: Array, circle: HolderCircle, *, draws: bool = False) -> dict[str, Any]:  # fmt: skip
    """Share the products of neighbouring factors anew; show the last factor."""
    field, pairs = circle.field, len(factors) // 2
    island.bind_letters(kept["trail"])
    rows = field.mul(factors[0 : 2 * pairs : 2], factors[1 : 2 * pairs : 2])
    if draws:
        rows = np.concatenate([rows, field.random(island.secret, (1, factors.shape[1]))])
    shows = not len(rows)
    shares = [factors] * len(circle.names) if shows else split_shamir(rows, len(circle.names), circle.threshold, field, island.secret)  # fmt: skip
    for name, share in zip(circle.names, shares, strict=True):
        island.post(name, {"product": field.narrow(share)})
    odd = factors[:0] if shows else factors[2 * pairs :]
    return {**kept, "odd": field.narrow(odd), "pairs": pairs, "draws": draws, "shows": shows, "wide": factors.shape[1]}


def continue_test(island: Any, kept: Mapping[str, Any], senders: Sequence[str], round_: int, circle: HolderCircle, written_in: str) -> tuple[dict[str, Any], NDArray[np.bool_] | None]:  # fmt: skip
    """At a holder: take the next step with the letters of other holders.

    Args:
        island: the holder.
        kept: what `start_test` or this function returned.
        senders: the holders whose letters count.
        round_: the number of the step, from 1.
        circle: the holders.
        written_in: the task that wrote the letters.

    Returns:
        What the holder keeps, and which tasks have too few reporters; ``None`` before the last step.

    Raises:
        PolicyError: the server asks out of turn, with too few holders, or with strangers.
        LetterError: a letter is missing, or was written by a holder that was told something else.
        DataError: more holders than can be corrected showed something wrong.
    """
    names, field = sorted({str(name) for name in senders}), circle.field
    if round_ != kept["round"] + 1 or len(names) < circle.least or not set(names) <= set(circle.names):
        raise PolicyError(f"step {round_} with {len(names)} holders, and {circle.least} are needed", where=circle.label, remedy=_LOOK)  # fmt: skip
    island.promise(f"holders of {circle.label} in step {round_}", circle.follow(b"", names))
    island.bind_letters(kept["trail"], written_in)
    rows = 1 if kept["shows"] else int(kept["pairs"]) + int(kept["draws"])
    found = {}
    for name in names:
        letter: Any = island.inbox.get(name)
        row: Any = letter.get("product") if isinstance(letter, Mapping) else None
        if not field.are_elements(row, (rows, int(kept["wide"])), packed=True):
            raise LetterError(f"no letter of {name} with {rows} products", where=circle.label, remedy=f"look at {name}, or at the server that chose whose letters count")  # fmt: skip
        found[circle.names.index(name)] = row.astype(np.uint64)
    if kept["shows"]:
        opened = correct_shamir({place: row[0] for place, row in found.items()}, circle.threshold, field, island.secret)
        return {**kept, "round": round_}, opened.values == 0
    first = tuple(sorted(found))[: circle.least]
    pairs = int(kept["pairs"])
    factors = [interpolate([found[place][:pairs] for place in first], first, (0,), field)[0]] if pairs else []
    if kept["draws"]:
        factors.append(field.total(np.stack([row[pairs:] for row in found.values()])))
    made = np.concatenate([*factors, np.asarray(kept["odd"]).astype(np.uint64)])
    after = {**kept, "round": round_, "trail": circle.follow(bytes(kept["trail"]), names)}
    return _post_products(island, after, made, circle), None
