"""From what came back to what a program sees: replies sorted, sums decoded, and too few of them refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .aggregate import Totals, in_order, merge_totals, sign_parts
from .chain import Chain
from .errors import QuorumError
from .flight import Flight
from .party import Parties
from .request import Folded, Mail, Reply
from .results import Combined, Exchanged
from .tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .world import World

__all__ = ["combined", "decoded", "exchanged", "require_quorum"]


def exchanged(
    world: World, flight: Flight, accepted: NDArray[np.int64], replies: list[Reply], quorum: int
) -> Exchanged:
    """Sort single replies into values, errors, notes and mail.

    Raises:
        QuorumError: fewer usable replies than the quorum.
        TaskError: a task raised, and the world does not drop errors.
    """
    name = world.roster.name
    good = [(i, r) for i, r in zip(accepted.tolist(), replies, strict=True) if r.error is None]
    errors = {name(r.party): r.error for r in replies if r.error is not None}
    if errors and world.errors == "raise":
        raise next(iter(errors.values()))
    if len(good) < quorum:
        shown = "; ".join(f"{k}: {v}" for k, v in list(errors.items())[:3])
        raise QuorumError(
            f"{len(good)} of {len(flight.parties)} parties answered without an error, fewer than the quorum of {quorum}",
            where=flight.request.id,
            remedy=f"look at the errors: {shown}",
        )
    senders = flight.parties[np.array([i for i, _ in good], dtype=np.int64)]
    mail = Mail()
    for _, reply in good:
        mail.put(name(reply.party), reply.mail)
    notes = {name(r.party): r.notes for _, r in good if r.notes}
    values = [r.value for _, r in good]
    silent = flight.parties.without(senders)
    return Exchanged(senders, values, silent, errors, notes, mail, flight.request.public)


def decoded(totals: Totals, chain: Chain, public: Sequence[Tree]) -> Totals:
    """Undo the uplink's stages on every sum."""
    return {name: chain.decode(total, public) for name, total in totals.items()} if chain else totals


def combined(
    world: World,
    parts: list[Folded],
    chain: Chain,
    public: Sequence[Tree],
    asked: Parties,
    seconds: float = 0.0,
    bytes_down: int = 0,
) -> Combined:
    """Merge partial sums in order, undo the stages, and say who is in."""
    name = world.roster.name
    single = any(total.kind == "parts" for part in parts for total in part.totals.values())
    if single:
        totals = merge_totals(sign_parts(part.totals, part.senders.tolist()) for part in parts)
        order = asked.positions.tolist()
        totals = {k: in_order(t, order) for k, t in totals.items()}
    else:
        totals = merge_totals(part.totals for part in parts)
    totals = decoded(totals, chain, public)
    senders = Parties(world.roster, np.concatenate([asked.positions[:0], *[p.senders for p in parts]]))
    rejected = {name(k): why for p in parts for k, why in p.rejected.items()}
    errors = {name(k): error for p in parts for k, error in p.errors.items()}
    silent = asked.without(senders)
    if rejected or errors:
        silent = silent.without(asked.named(*rejected, *errors))
    return Combined(
        {k: t.result() for k, t in totals.items()},
        len(senders),
        {k: t.weight for k, t in totals.items()},
        senders,
        silent,
        rejected,
        errors,
        seconds,
        int(sum(p.nbytes.sum() for p in parts)),
        bytes_down,
        {k: t.kind for k, t in totals.items()},
        asked,
    )


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
