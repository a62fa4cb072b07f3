"""From replies to what a program sees: sort replies, decode sums, and refuse too few of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra import tree as T
from ..algebra.aggregate import Total, Totals
from ..algebra.tree import Tree
from ..errors import QuorumError
from ..requests.chain import Chain
from ..requests.cost import Outcomes
from ..requests.party import Parties
from ..requests.request import Mailboxes, PartialSum, Reply, Request
from ..requests.results import Combined, Exchanged
from .flight import Flight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..world import World

__all__ = ["combine_sum", "count_words", "decode_totals", "in_steps", "require_quorum", "sort_replies"]


def sort_replies(
    world: World, flight: Flight, accepted: NDArray[np.int64], replies: list[Reply], quorum: int
) -> Exchanged:
    """Sort single replies into values, errors, notes and mail.

    Raises:
        QuorumError: fewer usable replies than the quorum.
        TaskError: a task raised, and the world does not drop errors.
    """
    name = world.roster.name
    good = [(i, r) for i, r in zip(accepted.tolist(), replies, strict=True) if r.usable]
    errors = {name(r.party): r.error for r in replies if r.error is not None}
    if errors and world.errors == "raise":
        raise next(iter(errors.values()))
    rejected = {name(r.party): r.rejected for r in replies if r.rejected}
    if len(good) < quorum:
        shown = "; ".join(f"{k}: {v}" for k, v in [*errors.items(), *rejected.items()][:3])
        raise QuorumError(
            f"{len(good)} of {len(flight.parties)} parties gave a usable reply, fewer than the quorum of {quorum}",
            where=flight.request.id,
            remedy=f"look at the errors: {shown}",
        )
    senders = flight.parties[np.array([i for i, _ in good], dtype=np.int64)]
    mail = Mailboxes()
    for _, reply in good:
        mail.put(name(reply.party), reply.mail)
    world.note_letters(mail)
    notes = {name(r.party): r.notes for _, r in good if r.notes}
    values = [r.value for _, r in good]
    silent = flight.parties.without(senders)
    return Exchanged(senders, values, silent, errors, notes, mail, rejected=rejected)


def decode_totals(
    totals: Totals, chain: Chain, public: Sequence[Tree], inputs: dict[str, dict[str, Tree]] | None = None
) -> Totals:
    """Undo the uplink's stages on each sum; ``inputs`` is given what stages that fit got, see ``Chain.decode``."""
    return {name: chain.decode(total, public, name, inputs) for name, total in totals.items()} if chain else totals


def count_words(
    found: PartialSum, chain: Chain, public: Sequence[Tree], *, exact: bool
) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """What a reducer and the uplink's stages counted in a sum: words, and how many of them were clamped and overflowed. And what the last stage counted, by aggregate."""
    counts, told = Counter(found.counts), dict[str, dict[str, int]]()
    for name, total in found.totals.items() if chain else ():
        made = chain.counts(total, public, name, exact=exact)
        counts.update({of: count for of, count in made.items() if of != "word_bits"})
        known = chain.find_parameters(public, len(chain.stages) - 1, name)
        if made and isinstance(known, dict) and "version" in known:
            told[name] = {**made, "n": int(total.n), "version": int(known["version"])}
    return dict(counts), told


def combine_sum(
    world: World,
    whole: PartialSum,
    chain: Chain,
    public: Sequence[Tree],
    asked: Parties,
    *,
    exact: bool = False,
    **spent: Any,
) -> Combined:
    """Undo the stages of a sum, and list who is in it; ``spent`` are fields of the result about time, bytes and devices.

    ``exact`` says that words were added up without a modulus, so that overflows can be counted.
    """
    name = world.roster.name
    # Engines and trees add in orders of their own; single replies return to the cohort's, so that no result depends on the engine.
    if whole.single:
        whole = whole.sign().arrange(asked.positions)
    counts, told, inputs = whole.counts, whole.told, dict(whole.inputs)
    if chain:
        counts, told = count_words(whole, chain, public, exact=exact)
    totals = decode_totals(whole.totals, chain, public, inputs)
    senders = Parties(world.roster, whole.senders)
    rejected = {name(k): why for k, why in whole.rejected.items()}
    errors = {name(k): error for k, error in whole.errors.items()}
    silent = asked.without(senders)
    if rejected or errors:
        silent = silent.without(asked.named(*rejected, *errors))
    return Combined(
        {k: _make_undefined(t) if len(senders) and _is_undefined(t) else t.result() for k, t in totals.items()},
        len(senders),
        {k: t.weight for k, t in totals.items()},
        senders,
        silent,
        rejected,
        errors,
        kinds={k: t.kind for k, t in totals.items()},
        roles={k: t.role for k, t in totals.items()},
        asked=asked,
        counts=counts,
        inputs=inputs,
        told=told,
        outliers={name(k): why for k, why in whole.outliers.items()},
        **spent,
    )


def _is_undefined(total: Total) -> bool:
    """Whether a metric is a mean of nothing: those that replied had no such number, or no row."""
    return total.role == "metric" and total.kind == "mean" and not total.weight


def _make_undefined(total: Total) -> Tree:
    """The value of such a metric: NaN, since 0 would be a number that nobody measured."""
    return T.map(lambda leaf: np.full_like(np.asarray(leaf, dtype=np.float64), np.nan)[()], total.result())


def in_steps(
    request: Request, parties: Parties, began: float, flights: Sequence[Flight], steps: Sequence[Outcomes]
) -> Outcomes:
    """The outcome of each party of a cohort over several steps: it is done if it was in every step that asked it.

    Args:
        request: the program's request; the share of its work that a party has done is that of the step that wraps it.
        parties: the cohort.
        began: when the first step was sent.
        flights: the steps.
        steps: the outcome of each party in each step.
    """
    n = len(parties)
    seconds, done, fraction = np.zeros(n), np.ones(n, dtype=bool), np.zeros(n)
    energy = None if all(step.energy is None for step in steps) else np.zeros(n)
    reason = None if all(step.reason is None for step in steps) else np.zeros(n, dtype=np.int8)
    for flight, step in zip(flights, steps, strict=True):
        order = np.argsort(flight.parties.positions, kind="stable")
        known = flight.parties.positions[order]
        place = np.searchsorted(known, parties.positions).clip(max=max(0, len(known) - 1))
        here = np.flatnonzero(known[place] == parties.positions) if len(known) else np.zeros(0, dtype=np.int64)
        there = order[place[here]]
        seconds[here] = flight.sent - began + step.seconds[there]
        if request.id == (flight.request.wraps or flight.request).id:
            fraction[here] = step.fraction[there]
        if energy is not None and step.energy is not None:
            energy[here] += step.energy[there]
        if reason is not None and step.reason is not None:
            reason[here] = np.where(done[here] & ~step.done[there], step.reason[there], reason[here])
        done[here] &= step.done[there]
    return Outcomes(seconds, done, fraction, energy, reason)


def require_quorum(result: Combined, asked: int, quorum: int, where: str) -> Combined:
    """Return the sums if enough replies are in them.

    Raises:
        QuorumError: there are fewer.
    """
    if result.n >= quorum:
        return result
    raise QuorumError(
        f"{result.n} of {asked} replies can be used, fewer than the quorum of {quorum}",
        where=where,
        remedy=_why(result),
    )


def _why(result: Combined) -> str:
    if result.rejected:
        name, reason = next(iter(result.rejected.items()))
        return f"{len(result.rejected)} replies were rejected, first {name}: {reason}; lower the learning rate or look at that party's data"
    if result.errors:
        name, error = next(iter(result.errors.items()))
        return f"{len(result.errors)} tasks raised, first {name}: {error}"
    return "lengthen the deadline, invite more parties (over_select) or lower the quorum"
