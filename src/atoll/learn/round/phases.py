"""One phase of a round at the server: send, account for what came, release under privacy, fit the stages, fold.

The state's ``"fitted"`` maps a phase to ``[[version of the model, parameters], ...]``, oldest first: clients that work on an older model encode under the
parameters that went out with it, and their sum is decoded under these.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, PolicyError, QuorumError
from atoll.core.event import Event, Promise, Sampled
from atoll.core.facets import facet
from atoll.core.requests.chain import Inputs, Told, due, fit_chain, inputs_of
from atoll.core.requests.island import Island
from atoll.core.requests.party import Party
from atoll.core.requests.results import Combined
from atoll.core.requests.stage import Fitting
from atoll.data.islands import Islands
from atoll.learn.selection.base import Seen

from ..algorithm import Algorithm, Helped, Phased, RoundInfo
from ..checks import require_finite
from ..private.claim import charges_everyone
from ..wrapped import declare, dry_reply
from .invitation import outcome_columns, own_reports, reply_bytes, reply_form, seen_of
from .state import broadcast_extras, compressed_broadcast, held_by, moved_buffers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from atoll.core.algebra.rng import Rng
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.party import Parties
    from atoll.data.dataset import Dataset
    from atoll.data.islands import Shard

    from ..context import Context

__all__ = [
    "EmptyReplies",
    "NO_EXAMPLES",
    "Phases",
    "account",
    "examples_behind",
    "explain_empty",
    "fitted_to_mock",
    "fitted_to_sum",
    "fold_phase",
    "is_empty",
    "lengths",
    "outgoing",
    "partial_metrics",
    "received_model",
    "release_round",
    "require_examples",
    "round_info",
    "shares",
]


_MARK, _KEY, _RUN = 16, 32, 8  # bytes of a fingerprint, of its key, and of a run's name


def release_round(
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


# ---------------------------------------------------------------- fitted round parameters of uplink stages


async def fitted_to_mock(
    fed: Federation, context: Context, state: Tree, phase: str, message: Tree, version: int = 0
) -> Tree:
    """Return the state with parameters fitted to the reply of a mock client on the public rows, if there are such rows and a fit is due.

    The mock client runs at the server the task that clients run, on the message that they get. It draws as many public rows as a client has on average, so that
    its reply has a client's weight.
    """
    chain, rows = context.chain(state, phase), _rows_to_train(context)
    told = state.get("stage_counts", {}).get(phase)
    if not chain.fits or rows is None or not due(chain, chain.fitted, state["contacts"], told):
        return state
    stream = fed.rng.child("mock", state["contacts"], phase)
    shard = _draw_rows(context, rows, stream.child("rows"))
    island = Island(Party("mock", "mock client", 0), lambda: shard, stream.key, secret_seed=stream.child("secret").key)
    task = context.learner.train
    reply = task.run(island, message, **task.args)
    reply = await reply if inspect.isawaitable(reply) else reply
    inputs = inputs_of(chain, chain.leaving(reply), stream)
    return _refit_chain(fed, chain, state, phase, inputs, version, version, told)


def _rows_to_train(context: Context) -> Dataset | None:
    """The public rows, if a mock client can train on them: where clients' rows have labels, these need some too."""
    rows: Dataset | None = context.public
    lacking = rows is not None and "y" not in rows and context.clients.task not in ("", "unlabelled")
    return None if lacking else rows


def _draw_rows(context: Context, rows: Dataset, rng: Rng) -> Shard:
    """As many of the rows as a client has on average, or all if that is not known."""
    sizes = context.clients.sizes
    count = len(rows) if sizes is None else min(len(rows), max(1, round(float(np.mean(sizes)))))
    some = rows.take(np.sort(rng.generator().permutation(len(rows))[:count]))
    return Islands.from_datasets({"mock": some}).shard(0)


def fitted_to_sum(
    fed: Federation,
    context: Context,
    state: Tree,
    phase: str,
    combined: Combined,
    version: int = 0,
    oldest: int | None = None,
) -> Tree:
    """Return the state with parameters fitted to a sum, which is public once it is folded, if a fit is due and no mock client makes them.

    What the stages counted in the sum stays in the state, for the mock client's fit before the next.

    Args:
        fed: the federation.
        context: the training's context.
        state: the server's state.
        phase: the phase of the replies.
        combined: their sum.
        version: the version of the model that goes out with the parameters.
        oldest: the oldest version on which a client still works; earlier parameters are forgotten.
    """
    chain, told = context.chain(state, phase), combined.told
    if not chain.fits or not combined.n:
        return state
    if _rows_to_train(context) is not None:
        adapts = told and facet(chain.stages[-1], Fitting).adapts
        return {**state, "stage_counts": {**state.get("stage_counts", {}), phase: told}} if adapts else state
    if not due(chain, chain.fitted, state["contacts"], told):
        return state
    oldest = version if oldest is None else oldest
    return _refit_chain(fed, chain, state, phase, combined.inputs, version, oldest, told)


def _refit_chain(
    fed: Federation,
    chain: Chain,
    state: Tree,
    phase: str,
    inputs: Inputs,
    version: int,
    oldest: int,
    told: Told | None,
) -> Tree:
    stream = fed.rng.child("fit", state["contacts"], phase)
    made = fit_chain(chain, chain.fitted, inputs, stream, state["contacts"], told)
    rows = [row for row in state.get("fitted", {}).get(phase, []) if row[0] < version]
    needed = max((i for i, row in enumerate(rows) if row[0] <= oldest), default=0)
    kept = rows[needed:] if oldest < version else []
    return {**state, "fitted": {**state.get("fitted", {}), phase: [*kept, [version, made]]}}


# ---------------------------------------------------------------- the phases of a round with one cohort


def round_info(fed: Federation, state: Tree, at: tuple[int, bool], selected: int, replied: int) -> RoundInfo:
    """Return what a fold can use.

    Args:
        fed: the federation, for the server's random stream.
        state: the server's state.
        at: the round, and whether it contacts clients.
        selected: number of invited clients.
        replied: number of clients that answered.
    """
    # The server's random numbers follow the contacts; a round without clients has others.
    number, met = at
    stream = fed.rng.child("server", state["contacts"] if met else f"alone-{number}")
    return RoundInfo(number, selected, replied, len(fed.parties), state["weight"], stream)


@dataclass(frozen=True)
class Phases:
    """The phases of a round with one cohort."""

    fed: Federation
    context: Context
    invited: Parties
    number: int
    odds: dict[int, float] | None = None

    async def all(
        self, state: Tree, phases: tuple[str, ...], spent: dict[str, Any]
    ) -> tuple[Tree, dict[str, Any], Seen]:
        """Run the phases; ``spent`` are earlier bytes of the round. Return the state, the row and what was seen."""
        row: dict[str, Any] = {"selected": len(self.invited), "bytes_up": 0, "bytes_down": 0, **spent}
        before, sent, begins = state, None, True
        seen = Seen(state["contacts"], self.invited, self.invited, np.zeros(len(self.invited)))
        for phase in phases:
            if not facet(self.context.algorithm, Phased).wanted(state["server"], phase):
                continue
            helpers = facet(self.context.algorithm, Helped).asks(phase)
            if not helpers:
                state, message, sizes = outgoing(self.fed, self.context, state, self.invited, phase)
                state = await fitted_to_mock(self.fed, self.context, state, phase, message)
                sent = received_model(message)
                step = {"number": self.number, "phase": phase}
                self.fed.announce("before_training", **step, clients=self.invited)
            try:
                if helpers:
                    state = await self._run_helpers(state, phase, helpers, row)
                    continue
                combined = await self._ask(state, phase, message, sizes)
            except QuorumError as error:
                if self.context.pacing.on_failure == "stop" or self.context.algorithm.card.everyone:
                    raise self._make_quorum_error(error) from error
                # Clients already keep the results of earlier phases, and so does the server: both end at the same phase.
                if error.combined is not None:
                    self._account(row, error.combined)
                return state, {**row, "replied": 0, "failed": str(error.what)}, self._nobody(seen)
            self.fed.announce("after_training", **step, clients=combined.senders, silent=combined.silent)
            self._account(row, combined)
            declare(row, self.context.declared(state, phase), combined.n)
            noisy = self.context.aggregation.event is not None
            if combined.n == 0 and noisy:
                combined = nothing(self.fed, self.context, state, phase)
            elif combined.n == 0:  # a quorum of 0 is met, but there is nothing to fold
                return state, {**row, "failed": "no client replied"}, self._nobody(seen)
            info = round_info(self.fed, before, (self.number, True), len(self.invited), combined.n)
            info = info if self.odds is None else replace(info, odds=self.odds)
            seen = seen_of(info.round, combined, own_reports(self.context, sent))
            state = {**state, "down": held_by(state["down"], combined.senders.positions)}
            info = release_round(self.fed, self.context, combined, info, (state["contacts"], phase), first=begins)
            begins = False
            self.fed.announce("before_aggregation", **step, params=state["server"]["params"])
            state = fold_phase(self.context, state, combined, info, phase)
            self.fed.announce("after_aggregation", **step, params=state["server"]["params"])
            state = fitted_to_sum(self.fed, self.context, state, phase, combined)
        return state, row, replace(seen, round=before["contacts"], model=sent)

    async def _run_helpers(self, state: Tree, phase: str, names: tuple[str, ...], row: dict[str, Any]) -> Tree:
        """Return the state after a phase that helpers do on rows of their own: all of them must reply, and nothing compresses or hides their replies."""
        context = self.context
        rest = broadcast_extras(state, context.learner, state["contacts"])
        message = {"broadcast": {**context.algorithm.broadcast(state["server"], phase), **rest}, "phase": phase}
        asked = self.fed.parties.named(*names)
        combined = await self.fed.sum(
            asked, context.learner.train, message, quorum=len(asked), at=(state["contacts"], phase)
        )
        row["bytes_up"] += combined.bytes_up
        row["bytes_down"] += combined.bytes_down
        row.setdefault("replied", 0)  # a round may ask no client
        row.update({f"{phase}_{name}": float(value) for name, value in combined.of("metric").items()})
        info = round_info(self.fed, state, (self.number, True), len(asked), combined.n)
        server = _fold_checked(context.algorithm, state["server"], combined.of("update", "side"), info, phase)
        require_finite(server["params"], self.number)
        return {**state, "server": server, "buffers": moved_buffers(state["buffers"], combined.value, combined.n)}

    def _account(self, row: dict[str, Any], combined: Combined) -> None:
        """Write a phase into the round's row. Crashed and late clients are those of the last phase; copies sent add up."""
        account(row, combined)
        if self.context.learner_metrics is None:
            row.update(partial_metrics(row, combined))
        found, copies = outcome_columns(self.fed, combined), row.get("synchronised", 0)
        row.update(found)
        if found:
            row["synchronised"] += copies

    def _nobody(self, seen: Seen) -> Seen:
        return replace(seen, replied=self.invited[:0], seconds=np.zeros(0), reports={})

    async def _ask(self, state: Tree, phase: str, message: Tree, sizes: NDArray[np.int64] | None) -> Combined:
        context = self.context
        if not len(self.invited) and context.selection.random_size:
            return nothing(self.fed, context, state, phase)
        if not len(self.invited):
            raise QuorumError(
                f"{type(context.selection).__name__} invites no client",
                where=f"contact {state['contacts']}",
                remedy="let it choose among more clients, or a longer deadline",
            )
        size = context.selection.wanted(len(self.fed.parties), len(self.invited))
        terms = context.pacing.terms(size)
        if context.algorithm.card.everyone:  # with fewer, it would converge to another point
            terms["quorum"] = len(self.fed.parties)
        if context.selection.picks:
            terms["accept"] = lambda arrived: context.selection.take(arrived, size, state["selection"])
        broadcast = functools.cache(lambda: context.algorithm.broadcast(state["server"], phase))
        combined = await self.fed.sum(
            self.invited,
            self.context.learner.train,
            message,
            uplink=context.chain(state, phase),
            reducer=context.reducer,
            at=(state["contacts"], phase),
            down=sizes,
            up=lambda: reply_bytes(context, state, phase, broadcast()),
            expects=lambda: reply_form(context, state, phase, message.get("reports"), broadcast()),
            **terms,
        )
        return combined if context.aggregation.noisy else require_examples(combined)

    def _make_quorum_error(self, error: QuorumError) -> QuorumError:
        """Return the error that ends a training after a round with too few replies."""
        what, remedy = error.what, error.remedy
        if self.context.algorithm.card.everyone:
            what = f"{what}; {type(self.context.algorithm).__name__} needs every client in every round"
            remedy = f"{remedy}; with fewer, only an algorithm such as Scaffold can continue"
        return type(error)(what, where=f"round {self.number}, {error.where}", remedy=remedy)


def outgoing(
    fed: Federation, context: Context, state: Tree, invited: Parties, phase: str
) -> tuple[Tree, Tree, NDArray[np.int64] | None]:
    """Return the message to a cohort in a phase: the state with what clients then have, the message, and bytes per party (``None``: the message's own)."""
    broadcast = context.algorithm.broadcast(state["server"], phase)
    rest = broadcast_extras(state, context.learner, state["contacts"])
    broadcast, down, sizes = compressed_broadcast(
        fed, context.downlink, state["down"], broadcast, rest, invited, (state["contacts"], phase)
    )
    told = (
        context.selection.reports
        if phase == context.algorithm.phases[-1] and not context.selection.surveys_only
        else {}
    )
    reports = {"reports": dict(told)} if told else {}
    return {**state, "down": down}, {"broadcast": {**broadcast, **rest}, "phase": phase, **reports}, sizes


def fold_phase(context: Context, state: Tree, combined: Combined, info: RoundInfo, phase: str) -> Tree:
    """Return the server's state after a phase: the aggregation operator, then the algorithm's fold."""
    server = state["server"]
    # Operators and algorithms see updates; the model's buffers go past them.
    state = {**state, "buffers": moved_buffers(state["buffers"], combined.value, combined.n)}
    updates = combined.of("update", "side")
    sums, memory = context.aggregation.combine(
        replace(combined, value=updates), server["params"], state["aggregation"], info
    )
    server = _fold_checked(context.algorithm, server, sums, info, phase)
    require_finite(server["params"], info.round)
    return {**state, "server": server, "aggregation": memory}


def account(row: dict[str, Any], combined: Combined) -> None:
    """Write the bytes and measures of a request into the round's row."""
    row["bytes_up"] += combined.bytes_up
    row["bytes_down"] += combined.bytes_down
    row["replied"] = combined.n
    row["silent"] = len(combined.silent)
    row["rejected"] = len(combined.rejected)
    if combined.rejected:
        row["rejected_clients"] = {**row.get("rejected_clients", {}), **combined.rejected}
    if combined.outliers:
        row["outliers"] = row.get("outliers", 0) + len(combined.outliers)
        row["outlying_clients"] = {**row.get("outlying_clients", {}), **combined.outliers}
    if combined.errors:
        row["errors"] = {name: str(error) for name, error in combined.errors.items()}
    row.update({name: float(value) for name, value in combined.of("metric").items() if not np.isnan(value)})
    row.update(shares(combined.counts))
    row.update(lengths(combined.told))
    for name in ("wrong_shares", "excess_left"):
        if combined.counts.get(name):
            row[name] = row.get(name, 0) + combined.counts[name]
    if "key_set_ups" in combined.counts:
        row["key_set_ups"] = row.get("key_set_ups", 0) + combined.counts["key_set_ups"]


def is_empty(combined: Combined) -> bool:
    """Whether clients replied, and no mean of their updates has a weight: each of them says 0 examples."""
    kinds = {name: kind for name, kind in combined.kinds.items() if combined.roles[name] in ("update", "side")}
    means = [name for name, kind in kinds.items() if kind in ("mean", "parts")]
    return bool(combined.n and means and len(means) == len(kinds)) and not any(combined.weight[name] for name in means)


def explain_empty(replies: int) -> str:
    """Return why replies of 0 examples are no round."""
    return f"all {replies} replies are of 0 examples, so that there is no mean of the updates"


NO_EXAMPLES = "look at the rows of these clients: a script says how many it used, task.reply(model, examples=n), and a client without rows has 0; "


class EmptyReplies:
    """Clients whose last reply was of 0 examples, for pacings whose rounds end with some replies and go on without one that counts."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def without(self, combined: Combined, clients: int) -> tuple[Combined, str]:
        """Return a sum of no replies in place of one of 0 examples, and why; any other sum as it is.

        Args:
            combined: the sum.
            clients: number of all clients.

        Raises:
            QuorumError: every client has replied so since a reply counted: none ever will.
        """
        if not is_empty(combined):
            self.names = set() if combined.n else self.names
            return combined, ""
        why = explain_empty(combined.n)
        self.names |= set(combined.senders.names)
        if len(self.names) >= clients:
            raise QuorumError(
                f"{why}, and so was the last reply of every other client",
                where="Training",
                remedy=f"{NO_EXAMPLES}one client with examples is enough",
            )
        return replace(combined, n=0, value={}, weight={}, kinds={}, roles={}, senders=combined.senders[:0]), why


def require_examples(combined: Combined) -> Combined:
    """Return the sums if a mean of the updates has a weight: without one, the round would end with the old model as if it had learned.

    Raises:
        QuorumError: clients replied, and each of them with 0 examples.
    """
    if not is_empty(combined):
        return combined
    error = QuorumError(
        explain_empty(combined.n),
        where=", ".join(combined.kinds),
        remedy=f'{NO_EXAMPLES}Synchronous(on_failure="skip") leaves such rounds out',
    )
    error.combined = replace(combined, value={}, weight={}, kinds={}, roles={})
    raise error


def examples_behind(combined: Combined) -> float:
    """Return the largest weight of the means and single replies of a sum: the examples of all replies in it."""
    return max(
        (combined.weight[name] for name, kind in combined.kinds.items() if kind in ("mean", "parts")), default=0.0
    )


def partial_metrics(row: Mapping[str, Any], combined: Combined) -> dict[str, Any]:
    """Return which metrics that clients name themselves are means over some of the examples, for the round's row.

    ``partial_metrics`` maps a metric to the examples behind its mean; it is absent if every metric counts all of them.
    """
    whole = examples_behind(combined)
    found = {
        name: f"{combined.weight[name]:g} of {whole:g} examples"
        for name in combined.of("metric")
        if combined.kinds[name] == "mean" and combined.weight[name] < whole * (1 - 1e-9)
    }
    return {"partial_metrics": {**row.get("partial_metrics", {}), **found}} if found else {}


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Return the share of entries clamped at clients, and, if it is known of all, the share overflowed in the sum; nothing if no entry travelled as a word."""
    found = dict[str, float]()
    if counts.get("words"):
        found["clamped"] = counts.get("clamped", 0) / counts["coded"]
        if not counts.get("unchecked"):
            found["overflowed"] = counts.get("overflowed", 0) / counts["words"]
    return found


def lengths(told: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the length of the longest words in a sum, where a stage makes them as long as the last sum needs; else nothing."""
    words = [counted["word_bits"] for counted in told.values() if "word_bits" in counted]
    return {"word_bits": max(words)} if words else {}


def received_model(message: Tree) -> Tree:
    """Return the model that clients receive in a train message and report on. It can differ from the server's, by downlink compression or the algorithm."""
    broadcast = message["broadcast"]
    model: Tree = {**broadcast["params"], **broadcast.get("buffers", {})}
    return model


def _fold_checked(algorithm: Algorithm, server: Tree, sums: dict[str, Any], info: RoundInfo, phase: str) -> Tree:
    """Fold, and explain a name that is neither in the replies nor in the state."""
    try:
        return algorithm.fold(server, sums, info, phase)
    except KeyError as error:
        raise ConfigError(
            f"fold found no {error.args[0]!r}: the replies have {', '.join(sums) or 'nothing'}, and the state {', '.join(server)}",
            where=f"{type(algorithm).__name__}.fold",
            remedy="return it from finish under this name, put it into the state in init, or override fold",
        ) from error
