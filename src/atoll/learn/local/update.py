"""The local update of a client, from the message that comes to the reply that leaves.

A learner with gradients calls `train_client`: the passes of a phase run one after another over mini-batches, `finish` gives the reply and the client's
state, and what the server asked to be reported goes along.

A train message may contain ``"epochs": k``. The unit of ``k`` is the algorithm's: epochs, or local steps if it has ``steps``. It
replaces the algorithm's own number in every pass that is a local training of the algorithm's kind. Other passes and phases, such
as an anchor gradient, stay unchanged. Mini-batches come from the client's key as usual, so ``k`` epochs are the first ``k`` of more.
Stragglers do part of what a request asks for: ``1 .. k-1`` of ``k``. With ``"done": d`` in addition, the first ``d`` of the ``k`` were done before:
they are computed with the others, and take no time again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.rng import Rng, shuffles
from atoll.core.algebra.tree import Tree, leaves
from atoll.core.algebra.tree import map as tree_map
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.core.requests.task import Workload

from ..algorithm import Algorithm, Labelled, LocalWork, Phased, Private, Stateful
from ..wrapped import innermost
from .examples import Clipping, StepSecrets, clipped_rows
from .reports import begin_release, training_passes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Island

    from ..algorithm import Stragglers

__all__ = [
    "Counted",
    "LossGradient",
    "MiniBatch",
    "PartialWork",
    "asked_epochs",
    "batch_rows",
    "coming_epochs",
    "count_many",
    "count_steps",
    "declare_workload",
    "drew_undeclared",
    "epochs_of_pass",
    "finish_update",
    "labelled_batches",
    "load_of",
    "local_contact",
    "local_update",
    "own_epochs",
    "pass_key",
    "quota",
    "require_partial",
    "share_of",
    "start_update",
    "step_secrets",
    "topped_up",
    "trained",
    "whole_times",
]


@dataclass(frozen=True)
class PartialWork:
    """How an algorithm goes through a client's rows, with a different number of epochs (or steps) than its own.

    Attributes:
        algorithm: the algorithm, with its mini-batches and stragglers.
        count: epochs, or steps if the algorithm counts them.
    """

    algorithm: Algorithm
    count: int

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return self.count

    @property
    def steps(self) -> int | None:
        """Local steps, if the algorithm counts them."""
        return None if self.algorithm.steps is None else self.count

    @property
    def batch_size(self) -> int | None:
        """The algorithm's batch size."""
        return self.algorithm.batch_size

    @property
    def cyclic(self) -> bool:
        """Whether the algorithm's batches are cyclic."""
        return self.algorithm.cyclic

    @property
    def stragglers(self) -> Stragglers | None:
        """The algorithm's stragglers."""
        return self.algorithm.stragglers

    def batch_of(self, n: Any) -> Any:
        """Return the algorithm's batch size for ``n`` examples."""
        return self.algorithm.batch_of(n)


Counted: TypeAlias = "Algorithm | PartialWork"
"""Determines how a client goes through its rows: an algorithm, or a `PartialWork` of one."""


def quota(algorithm: Algorithm, epochs: int | None) -> Counted:
    """Return the algorithm's own work for ``None``, otherwise ``epochs`` epochs (or steps)."""
    return algorithm if epochs is None else PartialWork(algorithm, epochs)


def own_epochs(algorithm: Algorithm) -> int:
    """Return the algorithm's own number: its steps if it counts them, otherwise its epochs."""
    return algorithm.epochs if algorithm.steps is None else algorithm.steps


def require_partial(algorithm: Algorithm, where: str = "Training.algorithm") -> None:
    """Refuse an algorithm that does not support a different amount of local work.

    Raises:
        CompositionError: ``Algorithm.partial`` is false.
    """
    if not algorithm.partial:
        raise CompositionError(
            f"the request asks for another amount of local work, but {type(algorithm).__name__} requires its own",
            where=where,
            remedy="use an algorithm of local steps such as FedAvg, FedProx or Scaffold",
        )


def asked_epochs(algorithm: Algorithm, message: Tree) -> int | None:
    """Return the epochs that a train message asks for; ``None`` for the algorithm's own number.

    Raises:
        ConfigError: ``"epochs"`` is not a whole number of at least 1.
        CompositionError: the algorithm does not support another number than its own.
    """
    asked = message.get("epochs") if isinstance(message, Mapping) else None
    if asked is None:
        return None
    if isinstance(asked, bool) or not isinstance(asked, Integral) or int(asked) < 1:
        raise ConfigError(f"epochs={asked!r}", where="the train message", remedy="use a whole number, at least 1")
    if int(asked) == own_epochs(algorithm):
        return None
    require_partial(algorithm, "the train message")
    return int(asked)


def coming_epochs(algorithm: Algorithm, message: Tree) -> int | None:
    """Return the rest of ``asked_epochs``: a client that continues from its own model has done the message's ``"done"`` epochs before."""
    asked = asked_epochs(algorithm, message)
    done = int(message.get("done", 0)) if isinstance(message, Mapping) else 0
    if not done:
        return asked
    own = own_epochs(algorithm)
    whole = own if asked is None else asked
    if not 0 <= done < whole:
        raise ConfigError(
            f"done={done} of epochs={whole}", where="the train message", remedy="use fewer than the epochs"
        )
    return None if whole - done == own else whole - done


def whole_times(algorithm: Algorithm, asked: int | None) -> int:
    """Return how often to run a local training that cannot be divided: once per the algorithm's own epochs (or steps).

    Raises:
        CompositionError: the requested number is not a multiple of the algorithm's own.
    """
    own = own_epochs(algorithm)
    if asked is not None and asked % own:
        raise CompositionError(
            f"epochs={asked}, but this model runs its own training, {own} at a time",
            where="the train message",
            remedy=f"ask for a multiple of {own}, set epochs=1 in the algorithm, or use a model with gradients for Atoll (atoll.models, PyTorch)",
        )
    return 1 if asked is None else asked // own


def epochs_of_pass(algorithm: Algorithm, part: Algorithm, asked: int | None) -> int | None:
    """Return the epochs requested of one of the algorithm's passes; ``None`` for a pass that is not a local training of its kind."""
    return asked if type(innermost(part)) is type(innermost(algorithm)) else None


# ---------------------------------------------------------------- mini-batches with enough labelled rows


def share_of(algorithm: Algorithm) -> float:
    """Return the share of labelled rows that mini-batches need; 0 for those that are drawn for privacy's sake, or are the same in every round."""
    return 0.0 if algorithm.cyclic or algorithm.example_steps is not None else facet(algorithm, Labelled).labelled_share


def topped_up(orders: NDArray[Any], labelled: NDArray[np.bool_], share: float, key: int) -> NDArray[Any]:
    """Replace unlabelled rows of one client's mini-batches by labelled ones where these are too few.

    A mini-batch of ``m`` rows then holds at least ``min(ceil(share m), L)`` of the client's ``L`` labelled rows, none of them twice. Its size stays, and the
    rows that leave are its last unlabelled ones. Labelled rows take turns, in an order of the client's key.

    Args:
        orders: row numbers, ``(steps, size)``; -1 fills a partial batch.
        labelled: which of the client's rows have a label, ``(rows,)``.
        share: between 0 and 1.
        key: the client's random key.
    """
    known = np.flatnonzero(labelled)
    if not len(known) or len(known) == len(labelled) or share <= 0.0:
        return orders
    real = orders >= 0
    marked = labelled[orders] & real
    # The small number keeps a product such as .1 * 30 from a row too many.
    wanted = np.minimum(np.ceil(share * real.sum(1) - 1e-9), len(known)).astype(np.int64)
    missing = wanted - marked.sum(1)
    if (missing <= 0).all():
        return orders
    made = np.array(orders)
    turns = known[shuffles(np.array([Rng(int(key)).child("labelled").key], np.uint64), 1, len(known))[0, 0]]
    most = int(np.ceil(share * orders.shape[1] - 1e-9))
    for step in np.flatnonzero(missing > 0).tolist():
        own = np.roll(turns, -step * most)
        own = own[~np.isin(own, orders[step])][: missing[step]]
        made[step, np.flatnonzero(real[step] & ~marked[step])[-len(own) :]] = own
    return made


def labelled_batches(
    batches: Sequence[NDArray[Any]], labelled: NDArray[np.bool_], share: float, key: int
) -> list[NDArray[Any]]:
    """Do as `topped_up` with a list of one client's mini-batches; the first is the largest."""
    if not len(batches) or len(batches[0]) == len(labelled):
        return list(batches)
    orders = np.full((len(batches), len(batches[0])), -1, dtype=np.int64)
    for step, rows in enumerate(batches):
        orders[step, : len(rows)] = rows
    return [rows[rows >= 0] for rows in topped_up(orders, labelled, share, key)]


_READS = ("direction", "step", "finish")
"""Methods of `Algorithm` that read ``local["params"]``."""


def start_update(algorithm: Algorithm, broadcast: Tree, client: Tree) -> Any:
    """Return ``algorithm.start(...)``: what the client works on.

    Raises:
        ConfigError: it is no dict, or lacks the ``params`` that the algorithm's other methods read.
    """
    made: Any = algorithm.start(broadcast, client)
    reads = [name for name in _READS if getattr(type(algorithm), name) is getattr(Algorithm, name)]
    if isinstance(made, dict) and ("params" in made or not reads):
        return made
    shown = f"{', '.join(made) or 'nothing'}, and no 'params'" if isinstance(made, dict) else f"a {type(made).__name__}"
    read = f", or override {', '.join(reads)} too" if isinstance(made, dict) else ""
    raise ConfigError(
        f"start returns {shown}",
        where=f"{type(algorithm).__name__}.start",
        remedy=f'return a dict with it, such as {{"params": broadcast["params"]}}{read}',
    )


def finish_update(
    algorithm: Algorithm, local: Tree, broadcast: Tree, client: Tree, work: LocalWork
) -> tuple[dict[str, Aggregate], Tree]:
    """Return ``algorithm.finish(...)``: the reply and the client's new private state.

    Raises:
        ConfigError: it returns something else.
    """
    made: Any = algorithm.finish(local, broadcast, client, work)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], dict):
        return made
    shown = f"a tuple of {len(made)}" if isinstance(made, tuple) else f"a {type(made).__name__}"
    raise ConfigError(
        f"finish returns {shown}, not the reply and the client's private state",
        where=f"{type(algorithm).__name__}.finish",
        remedy='end it with: return {"update": atoll.Mean(update, examples=work.examples)}, client',
    )


# ---------------------------------------------------------------- the local update, one client at a time


LossGradient = Callable[[Tree, Any, Any], tuple[float, Tree]]
"""``(params, x, y) -> (mean loss, its gradient)``."""
ClippedGradient = Callable[[Tree, Any, Any, Clipping], Tree]
"""``(params, x, y, clipping) -> sum of the examples' gradients, each clipped``: a faster way than one example at a time."""
Curvature = Callable[[Tree, Any, Any, Tree], Tree]
"""``(params, x, y, vector) -> Hessian of the mean loss times the vector``."""


def count_steps(algorithm: Counted, n: int, key: int | None = None) -> int:
    """Mini-batch steps of a client with ``n`` examples; of the full work if no key tells whether it is a straggler."""
    if n == 0:
        return 0
    late = algorithm.stragglers if key is not None else None
    if algorithm.steps is not None:
        return algorithm.steps if late is None else late.done(algorithm.steps, int(key or 0))
    size = int(algorithm.batch_of(n))
    epochs = algorithm.epochs if late is None else late.done(algorithm.epochs, int(key or 0))
    return epochs * -(-n // size)


def count_many(algorithm: Counted, sizes: np.ndarray, keys: np.ndarray | None = None) -> np.ndarray:
    """Return ``count_steps`` of many clients at once, ``(clients,)``."""
    full = algorithm.epochs if algorithm.steps is None else algorithm.steps
    late = None if keys is None else algorithm.stragglers
    done = np.full(len(sizes), full) if late is None else late.done_many(full, np.asarray(keys))
    if algorithm.steps is not None:
        return np.where(sizes > 0, done, 0)
    width = np.maximum(algorithm.batch_of(sizes), 1)
    return np.asarray(done * -(-sizes // width))


def batch_rows(algorithm: Counted, n: int, key: int) -> list[np.ndarray]:
    """Return the rows of every mini-batch in order; a full-batch algorithm takes the rows in stored order."""
    if n == 0:
        return []
    size = int(algorithm.batch_of(n))
    per_epoch = -(-n // size)
    steps = count_steps(algorithm, n, key)
    epochs = -(-steps // per_epoch)
    if size == n:
        return [np.arange(n)] * steps
    orders = [np.arange(n)] * epochs if algorithm.cyclic else shuffles(np.array([key], dtype=np.uint64), epochs, n)[0]
    rows = [order[start : start + size] for order in orders for start in range(0, n, size)]
    return rows[:steps]


def pass_key(key: int, at: int, count: int) -> int:
    """Return the key of one of a contact's passes; the last pass has the client's own key."""
    return key if at == count - 1 else Rng(key).child("pass", at).key


def step_secrets(
    algorithm: Algorithm, examples: int, key: int, noise: Rng | None = None, epochs: int | None = None
) -> StepSecrets | None:
    """Return the mini-batches and the noise of one client's local update; ``None`` for an algorithm that draws none.

    Args:
        algorithm: the algorithm.
        examples: the client's number of examples.
        key: the client's random key, which tells whether it is a straggler.
        noise: a stream of the client's secret; by default one of its key, which hides nothing.
        epochs: epochs (or steps) instead of the algorithm's own.
    """
    plan = algorithm.example_steps
    if plan is None:
        return None
    steps = count_steps(quota(algorithm, epochs), examples, key)
    return StepSecrets(plan, examples, steps, noise or Rng(int(key)).child("draw"))


def drew_undeclared() -> CompositionError:
    """Return the error of an algorithm that draws noise in its steps without declaring it."""
    return CompositionError(
        "the algorithm draws noise in its local steps, but does not declare it",
        where="Algorithm.example_steps",
        remedy="return ExampleSteps(batch, draws=...) from example_steps",
    )


def _own_loss() -> CompositionError:
    return CompositionError(
        "the algorithm has a loss of its own, and this model knows only the training's",
        where="Training.model",
        remedy="use a PyTorch module",
    )


class MiniBatch:
    """The gradient oracle of one mini-batch, on NumPy; remembers the first loss it computed.

    Args:
        loss_gradient: ``(params, x, y) -> (mean loss, gradient)``.
        x: inputs of the batch.
        y: targets of the batch.
        curvature: ``(params, x, y, vector) -> Hessian times vector``, if the model has it.
        clipped: the sum of clipped gradients, if the model has a faster way than one example at a time.
        secrets: the source of noise, if the algorithm draws any.
    """

    def __init__(
        self,
        loss_gradient: LossGradient,
        x: Any,
        y: Any,
        curvature: Curvature | None = None,
        clipped: ClippedGradient | None = None,
        secrets: StepSecrets | None = None,
    ) -> None:
        self._loss_gradient = loss_gradient
        self._x, self._y = x, y
        self._curvature = curvature
        self._clipped = clipped
        self._secrets = secrets
        self.first: float | None = None

    def __call__(self, params: Tree) -> Tree:
        """Return the gradient."""
        loss, gradient = self._loss_gradient(params, self._x, self._y)
        self.first = float(loss) if self.first is None else self.first
        return gradient

    def on(self, loss: Any = None, **given: Tree) -> MiniBatch:
        """Refuse: a model in NumPy has one loss."""
        raise _own_loss()

    def read(self, loss: Any, params: Tree) -> Any:
        """Refuse: a model in NumPy has one loss."""
        raise _own_loss()

    def loss(self, params: Tree) -> Any:
        """Return the mean loss."""
        loss = np.asarray(self._loss_gradient(params, self._x, self._y)[0])[()]
        self.first = float(loss) if self.first is None else self.first
        return loss

    def hvp(self, params: Tree, vector: Tree) -> Tree:
        """Return the Hessian times a vector."""
        if self._curvature is None:
            raise CompositionError(
                "this model gives no Hessian-vector products",
                where="Training.model",
                remedy="use a PyTorch module or atoll.models.linear, or a first-order algorithm",
            )
        return self._curvature(params, self._x, self._y, vector)

    def hvps(self, params: Tree, vectors: Tree) -> Tree:
        """Return the Hessian times several vectors, one by one."""
        count = len(leaves(vectors)[0])
        found = [self.hvp(params, tree_map(lambda leaf, i=i: leaf[i], vectors)) for i in range(count)]
        return tree_map(lambda *parts: np.stack(parts), *found)

    def clipped(self, params: Tree, clipping: Clipping) -> Tree:
        """Return the sum of the examples' gradients, each clipped."""
        if self._clipped is not None:
            return self._clipped(params, self._x, self._y, clipping)

        def gradient(i: int) -> Tree:
            return self._loss_gradient(params, self._x[i : i + 1], self._y[i : i + 1])[1]

        return clipped_rows(gradient, len(self._y), params, clipping)

    def normal(self, params: Tree) -> Tree:
        """Return noise of the client's secret."""
        if self._secrets is None:
            raise drew_undeclared()
        return self._secrets.like(params)


def local_update(
    algorithm: Algorithm,
    loss_gradient: LossGradient,
    broadcast: Tree,
    client: Tree,
    x: Any,
    y: Any,
    key: int,
    curvature: Curvature | None = None,
    noise: Rng | None = None,
    epochs: int | None = None,
    clipped: ClippedGradient | None = None,
) -> tuple[dict[str, Aggregate], Tree, float]:
    """Run ``start``, the steps and ``finish`` for one client.

    Args:
        algorithm: the pure functions.
        loss_gradient: ``(params, x, y) -> (mean loss, gradient)``.
        broadcast: what the server sent.
        client: the client's private state; ``None`` before its first round.
        x: inputs, one row per example.
        y: targets.
        key: the client's random key in this request.
        curvature: Hessian-vector products, if the model has them.
        noise: the stream for the algorithm's draws, instead of the key.
        epochs: epochs (or steps) to do instead of the algorithm's own.
        clipped: the sum of clipped gradients, if the model has a faster way than one example at a time.

    Returns:
        The reply, the new private state and the mean loss over the steps.
    """
    if client is None:
        client = facet(algorithm, Stateful).client_init(broadcast["params"])
    drawn = facet(algorithm, Stateful).draw(noise or Rng(int(key)).child("draw"), broadcast["params"])
    extra = {} if drawn is None else {"drawn": drawn}
    local = {**start_update(algorithm, broadcast, client), **extra}
    losses: list[float] = []
    taken: Any = None
    secrets = step_secrets(algorithm, len(y), key, noise, epochs)
    for rows in batch_rows(quota(algorithm, epochs), len(y), key) if secrets is None else secrets.rows:
        if rows is not taken:  # full batches are the same rows in every step
            taken, inputs, targets = rows, x[rows], y[rows]
        batch = MiniBatch(loss_gradient, inputs, targets, curvature, clipped, secrets)
        local = {**algorithm.step(local, batch, broadcast), **extra}
        losses.append(batch.first or 0.0)
    work = LocalWork(float(len(y)), float(len(losses)))
    reply, state = finish_update(algorithm, local, broadcast, client, work)
    return reply, state, float(np.add.reduce(losses)) / len(losses) if losses else 0.0  # np.mean without its overhead


def local_contact(
    algorithm: Algorithm,
    phase: str,
    loss_gradient: LossGradient,
    broadcast: Tree,
    client: Tree,
    x: Any,
    y: Any,
    key: int,
    curvature: Curvature | None = None,
    noise: Rng | None = None,
    epochs: int | None = None,
    clipped: ClippedGradient | None = None,
) -> tuple[dict[str, Aggregate], Tree, float]:
    """Run all passes of a phase for one client; see ``local_update``. ``epochs`` applies to passes of the algorithm's own kind."""
    passes = _passes(algorithm, phase)
    reply: dict[str, Aggregate] = {}
    loss = 0.0
    for at, part in enumerate(passes):
        chosen = pass_key(int(key), at, len(passes))
        many = epochs_of_pass(algorithm, part, epochs)
        args = (part, loss_gradient, broadcast, client, x, y, chosen, curvature, noise, many, clipped)
        reply, client, loss = local_update(*args)
    return reply, client, loss


def _passes(algorithm: Algorithm, phase: str) -> tuple[Algorithm, ...]:
    """Return the algorithm's passes, cached: its settings do not change, and every client of every round needs them."""
    made: dict[str, tuple[Algorithm, ...]] = algorithm.__dict__.setdefault("_made", {})
    if phase not in made:
        made[phase] = facet(algorithm, Phased).passes(phase)
    return made[phase]


# ---------------------------------------------------------------- one contact of a NumPy learner


def load_of(algorithm: Algorithm) -> Callable[[NDArray[np.int64], Mapping[str, Any], Tree], Workload]:
    """Return ``declare_workload`` as the ``load`` of a `Task` that trains with an algorithm."""
    return functools.partial(_load, algorithm)


def _load(algorithm: Algorithm, sizes: NDArray[np.int64], args: Mapping[str, Any], message: Tree) -> Workload:
    del args
    return declare_workload(algorithm, sizes, message)


def declare_workload(algorithm: Algorithm, sizes: NDArray[np.int64], message: Tree = None) -> Workload:
    """Return the work that clients declare beforehand: examples, mini-batch steps and epochs, summed over all passes.

    Args:
        algorithm: the pure functions.
        sizes: examples of each client, ``(clients,)``.
        message: the request's message. The passes are those of its ``"phase"``, or of all phases if it names none (a node that is its own server);
            its ``"epochs"`` replace the algorithm's own, and a ``"profile"`` in its ``"reports"`` is one more pass over the data.
    """
    named = isinstance(message, Mapping) and "phase" in message
    phases = (str(message["phase"]),) if named else algorithm.phases
    asked = coming_epochs(algorithm, message)
    passes = [
        quota(part, epochs_of_pass(algorithm, part, asked))
        for phase in phases
        for part in facet(algorithm, Phased).passes(phase)
    ]
    batches, epochs = np.zeros(len(sizes)), np.zeros(len(sizes))
    for part in passes:
        steps = count_many(part, sizes)
        batches += steps
        epochs += steps / _batches(part, sizes) if part.steps is not None else part.epochs
    looks = training_passes(message)
    if looks:
        batches += np.where(sizes > 0, looks * _batches(algorithm, sizes), 0)
    return Workload(sizes.astype(np.float64) * len(passes), batches, epochs + looks)


def _batches(part: Counted, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of mini-batches of a pass over the data; 1 without a pass."""
    return np.asarray(np.maximum(-(-sizes // np.maximum(part.batch_of(sizes), 1)), 1))


def trained(
    algorithm: Algorithm,
    island: Island,
    message: Tree,
    rows: tuple[Any, Any],
    loss_gradient: LossGradient,
    curvature: Curvature,
    weight: float = 1.0,
    clipped: ClippedGradient | None = None,
) -> dict[str, Aggregate]:
    """Run a phase at a client, keep its state, and return what may leave: with privacy only the mechanism's reply, otherwise also the mean loss.

    Args:
        algorithm: the pure functions.
        island: the client.
        message: ``{"broadcast", "phase"}``, and optionally ``"epochs"``; see `atoll.learn.local.update`.
        rows: inputs and targets.
        loss_gradient: see ``local_update``.
        curvature: see ``local_update``.
        weight: weight of the client's loss in the cohort's mean.
        clipped: see ``local_update``.

    Raises:
        DataError: the data break an assumption of the algorithm's privacy.
        CompositionError: the algorithm does not support the requested amount of local work.
    """
    epochs = asked_epochs(algorithm, message)
    secret = begin_release(algorithm, island)
    x, y = rows
    # Overflows are not finite; adding up replies rejects and names them.
    with np.errstate(over="ignore", invalid="ignore"):
        reply, state, loss = local_contact(
            algorithm,
            message["phase"],
            loss_gradient,
            message["broadcast"],
            island.state,
            x,
            y,
            island.rng.key,
            curvature,
            secret,
            epochs,
            clipped,
        )
    if state is not None:
        island.state = state
    if secret is not None or facet(algorithm, Private).alone:
        return reply
    return {**reply, "loss": Mean(np.float64(loss), examples=weight, role="metric")}
