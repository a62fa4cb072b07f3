"""Sums that are released with noise of the server's own: the ledger first, then noise from the server's secret."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.errors import PolicyError
from atoll.core.event import Event, Promise, Sampled
from atoll.core.requests.results import Combined

from ..private.claim import charges_everyone
from ..wrapped import dry_reply

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation

    from ..algorithm import RoundInfo
    from ..context import Context

__all__ = ["nothing", "released"]

_MARK, _KEY, _RUN = 16, 32, 8  # bytes of a fingerprint, of its key, and of a run's name


def released(
    fed: Federation, context: Context, combined: Combined, info: RoundInfo, at: tuple[int, str], *, first: bool
) -> RoundInfo:
    """Return what a fold can use of a round, with the noise's secret, once the release is in the ledger; without noise, the round as it is.

    The secret is a keyed hash of the round and of the very sums, so that a round that is repeated after a crash gives the same release, which
    is recorded once. If its sums differ, the noise is fresh, and the ledger has another release: equal noise on two sums would give away their difference.

    Args:
        fed: the federation.
        context: the training's context.
        combined: the sums.
        info: the round.
        at: the contact and the phase.
        first: whether it is the round's first phase. The event covers all of them.
    """
    event = context.aggregation.event
    if not context.aggregation.noisy:
        return info
    keys = fed.secret("release", "mark").bytes(_KEY + _RUN)
    mark = _mark(combined, keys[:_KEY])
    if event is None:  # noise beyond what clients have added already
        return replace(context.aggregation.disclosed(info), secret=fed.secret("release", *at, mark))
    who: str | list[str] = "*" if charges_everyone(event) else list(combined.senders.names)
    if who:
        where = f"{fed.slot}/release/@{at[0]}/{at[1]}"
        _charge(fed, event, who, where, mark, keys[_KEY:].hex(), first=first)
    # A simulation with a secret seed promises nothing: its noise is the same with every engine, whose sums differ in their last bits.
    own = () if fed.world.secret_seed is not None else (mark,)
    return replace(context.aggregation.disclosed(info), secret=fed.secret("release", *at, *own))


def _mark(combined: Combined, key: bytes) -> str:
    """Return a keyed fingerprint of the sums: of their names, shapes, dtypes, bits, weights and number of replies."""
    found = hashlib.blake2b(repr((combined.n, sorted(combined.weight.items()))).encode(), key=key, digest_size=_MARK)
    for path, leaf in T.items(combined.of("update", "side")):
        array = np.ascontiguousarray(leaf if T.namespace(leaf) is np else leaf.detach().cpu())
        found.update(repr((path, array.shape, array.dtype.str)).encode())
        found.update(array.data if array.nbytes else b"")
    return found.hexdigest()


def _charge(
    fed: Federation, event: Event, who: str | list[str], where: str, mark: str, run: str, *, first: bool
) -> None:
    """Record a round's release once, and once more for every other sum of the same round and phase of a run."""
    ledger, hub = fed.world.ledger, fed.hub
    try:
        ledger.append(Promise(what=f"{where}~{run}", bound=mark), hub, where)
        repeated = False
    except PolicyError:  # an earlier attempt released another sum
        repeated = True
    if repeated and isinstance(event, Sampled) and charges_everyone(event):
        # The same secret sample twice: both releases count in full, for everybody.
        event = replace(event, sampling=1.0, drawn_by="public", count=2 * event.count)
    if first or repeated:
        ledger.append(event, who, f"{where}#{mark}")


def nothing(fed: Federation, context: Context, state: Tree, phase: str) -> Combined:
    """Return the sum of no replies: a secret sample may be empty, and its noise is released like that of any other."""
    chain = context.chain(state, phase)
    reply = chain.leaving(dry_reply(context.local_algorithm, state["server"]["params"], phase))
    nobody = fed.parties[:0]
    return Combined(
        {name: T.zeros_like(a.value) for name, a in reply.items()},
        0,
        dict.fromkeys(reply, 0.0),
        nobody,
        nobody,
        kinds={name: a.kind for name, a in reply.items()},
        roles={name: a.role for name, a in reply.items()},
        asked=nobody,
    )
