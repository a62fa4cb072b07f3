"""Surveys: programs that compare the clients' data without training a model.

W. Wu, "Towards Efficient Horizontal Federated Learning", 2021, section 2.2. With clients k = 1..K, local gradients ``G_k(t)`` at the local
model ``w_k(t)`` and the centralised gradient ``C(t)`` at the centralised model ``v(t)``, both from the same start and with the same learning
rate: ``w_k(t+1) = w_k(t) - lr G_k(t)``, ``v(t+1) = v(t) - lr C(t)``.

* aggregated: ``G = sum_k p_k sum_t G_k(t)``, ``C = sum_t C(t)``, with ``p_k = 1/K`` (the source) or ``n_k/n``;
* averaging models and averaging accumulated gradients give the same: ``sum_k p_k w_k(T) = w(0) - lr G`` (Eq. 2.35);
* ``||G - C|| <= sum_k p_k sum_t ||G_k(t) - C(t)|| <= T delta`` with ``delta = max_{k,t} ||G_k(t) - C(t)||`` (Eq. 2.21, theorem 2.3);
* one full-batch step: ``G = C`` if all sizes are equal (theorem 2.1) or the weights are ``n_k/n``.

The analysis is a program over a federation: clients send sums of gradients and a few norms, never rows. It is a diagnostic: do not run it if
gradients must stay hidden.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Parts
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.task import Task, task
from atoll.core.validation import Checked
from atoll.data.missing import known_rows
from atoll.learn.algorithm import Algorithm
from atoll.learn.algorithms.fedavg import FedAvg
from atoll.learn.learner import Learner, LearnerSettings, SupportsLossGradient, adapt
from atoll.learn.local.update import batch_rows
from atoll.learn.profiles import FLOOR
from atoll.learn.selection.base import Inquired
from atoll.learn.selection.sealed import HOLDER, SealedProfiles

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["Divergence", "EncryptedMatching", "GradientDivergence", "Matched", "local_gradients"]


@dataclass(frozen=True)
class Divergence:
    """The result of the analysis. Norms are Euclidean, over all parameters.

    Attributes:
        divergence: ``||G - C||``.
        triangle_bound: ``sum_k p_k sum_t ||G_k(t) - C(t)||``.
        step_bound: ``T delta``.
        delta: ``max_{k,t} ||G_k(t) - C(t)||``.
        central_norm: ``||C||``.
        by_step: ``sum_k p_k ||G_k(t) - C(t)||`` for every step, ``T`` numbers.
        by_client: ``sum_t ||G_k(t) - C(t)||`` for every client, ``K`` numbers.
        clients: the clients' names.
        sizes: examples of each client.
        steps: T.
        weights: ``"equal"`` or ``"examples"``.
        federated: the averaged model after T steps, ``sum_k p_k w_k(T)``.
        central: the centralised model after T steps.
        gradient: ``G``.
    """

    divergence: float
    triangle_bound: float
    step_bound: float
    delta: float
    central_norm: float
    by_step: list[float]
    by_client: list[float]
    clients: list[str]
    sizes: list[int]
    steps: int
    weights: str
    federated: Tree
    central: Tree
    gradient: Tree

    def report(self) -> dict[str, Any]:
        """Return the numbers as plain values, for tables and plots."""
        plain = asdict(replace(self, federated=None, central=None, gradient=None))
        return {name: value for name, value in plain.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class GradientDivergence(Checked):
    """The analysis of a model on a federated data set.

    Attributes:
        model: as in ``Training``; its learner must offer ``loss_gradient(params, x, y)``.
        lr: learning rate, of clients and of the centralised run.
        steps: local steps T between aggregations.
        batch_size: rows of a local mini-batch; ``None`` is all. The centralised batch has as many rows as all local ones together.
        weights: ``"equal"`` (``1/K``) or ``"examples"`` (``n_k / n``).
        loss: a name, a callable, or ``"auto"``.
        params: the starting point; by default the model's initial parameters.

    Example:
        >>> import atoll
        >>> islands = atoll.data.dirichlet(atoll.data.digits(), parties=10, alpha=0.1, seed=0)
        >>> analysis = GradientDivergence(model=atoll.models.linear(64, 10), lr=0.01, steps=5)
        >>> found = atoll.simulate(analysis.program(islands), islands, engine="inline")
        >>> 0 < found.divergence <= found.triangle_bound <= found.step_bound
        True
    """

    model: Any
    lr: float = 0.1
    steps: int = 1
    batch_size: int | None = None
    weights: str = "equal"
    loss: Any = "auto"
    params: Tree = None

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(f"lr={self.lr}", where="GradientDivergence", remedy="use a positive learning rate")
        if self.steps < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise ConfigError(
                f"steps={self.steps}, batch_size={self.batch_size}", where="GradientDivergence", remedy="use at least 1"
            )
        if self.weights not in ("equal", "examples"):
            raise ConfigError(
                f"weights={self.weights!r}", where="GradientDivergence", remedy="use 'equal' or 'examples'"
            )

    def program(self, data: Any) -> Callable[[Federation], Awaitable[Divergence]]:
        """Return the program of this analysis on a federated data set."""
        plan = Algorithm(lr=self.lr, batch_size=self.batch_size, steps=self.steps)
        learner = adapt(self.model, LearnerSettings(algorithm=plan, loss=self.loss), data)
        if not isinstance(learner, SupportsLossGradient):
            raise ConfigError(
                f"{type(learner).__name__} has no `loss_gradient(params, x, y)`",
                where="GradientDivergence.model",
                remedy="use a model such as atoll.models.linear",
            )
        local, central = _tasks(learner, plan)

        async def program(fed: Federation) -> Divergence:
            return await _analyse(fed, self, learner, local, central)

        program.tasks = (local, central, sizes_of)  # type: ignore[attr-defined]
        return program


def local_gradients(learner: Any, plan: Algorithm, params: Tree, x: Any, y: Any, key: int) -> tuple[list[Tree], Tree]:
    """Return the gradient of every local step, and the local model after the last: plain mini-batch SGD from ``params``."""
    gradients: list[Tree] = []
    for rows in batch_rows(plan, len(y), key):
        gradient = learner.loss_gradient(params, x[rows], y[rows])[1]
        gradients.append(gradient)
        params = T.sub(params, T.scale(gradient, plan.lr))
    return gradients, params


def _tasks(learner: Any, plan: Algorithm) -> tuple[Task, Task]:
    def local(island: Island, message: Tree) -> dict[str, Aggregate]:
        """Return the local run, compared with the centralised gradients of the same steps."""
        data = known_rows(island.data, "a survey of gradients")
        x, y = np.asarray(data.x), np.asarray(data.y)
        weight = float(len(y)) if message["by_examples"] else 1.0
        gradients, params = local_gradients(learner, plan, message["params"], x, y, island.rng.key)
        gaps = [float(T.norm(T.sub(own, c))) for own, c in zip(gradients, message["central"], strict=True)]
        total = gradients[0]
        for gradient in gradients[1:]:
            total = T.add(total, gradient)
        return {
            "gradient": Mean(total, examples=weight),
            "model": Mean(params, examples=weight),
            "gaps": Parts(np.array(gaps), examples=weight),
        }

    def central(island: Island, message: Tree) -> dict[str, Aggregate]:
        """Return this client's part of the centralised batch: the mean gradient over its rows, weighted by their number."""
        data = known_rows(island.data, "a survey of gradients")
        x, y = np.asarray(data.x), np.asarray(data.y)
        take = message["take"]
        rows = np.arange(len(y))
        if take is not None:
            rows = island.rng.generator().choice(len(y), size=int(take[island.name]), replace=False)
        if not len(rows):
            return {"gradient": Mean(T.zeros_like(message["params"]), examples=0.0)}
        gradient = learner.loss_gradient(message["params"], x[rows], y[rows])[1]
        return {"gradient": Mean(gradient, examples=float(len(rows)))}

    return Task("atoll.learn.divergence:local", local), Task("atoll.learn.divergence:central", central)


@task
def sizes_of(island: Island, message: Tree) -> dict[str, Aggregate]:
    """Return how many examples each client has."""
    del message
    return {"size": Parts(np.float64(len(island.data)))}


async def _analyse(
    fed: Federation, plan: GradientDivergence, learner: Learner, local: Task, central: Task
) -> Divergence:
    counted = await fed.sum(fed.parties, sizes_of, quorum=len(fed.parties))
    sizes = np.array([int(part.value) for part in counted["size"]])
    if not (sizes > 0).all():
        empty = fed.parties.names[int(np.flatnonzero(sizes == 0)[0])]
        raise DataError(f"client {empty} has no examples", where="GradientDivergence", remedy="leave empty clients out")
    start = learner.init(fed.rng.child("init")) if plan.params is None else plan.params
    params, gradients = start, []
    for step in range(plan.steps):
        take = _shares(fed, plan, sizes, step)
        combined = await fed.sum(fed.parties, central, {"params": params, "take": take}, at=("central", step))
        gradients.append(combined["gradient"])
        params = T.sub(params, T.scale(combined["gradient"], plan.lr))
    message = {"params": start, "central": gradients, "by_examples": plan.weights == "examples"}
    combined = await fed.sum(fed.parties, local, message, at="local", quorum=len(fed.parties))
    return _summary(plan, fed.parties.names, sizes, gradients, params, combined)


def _shares(fed: Federation, plan: GradientDivergence, sizes: Any, step: int) -> Tree:
    """Return how many rows of a uniformly drawn centralised batch each client has; ``None`` if the batch is all data."""
    if plan.batch_size is None:
        return None
    wanted = int(np.minimum(sizes, plan.batch_size).sum())
    drawn = fed.rng.child("central", step).generator().multivariate_hypergeometric(sizes, wanted)
    return dict(zip(fed.parties.names, (int(c) for c in drawn), strict=True))


def _summary(
    plan: GradientDivergence, names: list[str], sizes: Any, gradients: list[Tree], central: Tree, combined: Any
) -> Divergence:
    total = gradients[0]
    for gradient in gradients[1:]:
        total = T.add(total, gradient)
    gaps = np.array([part.value for part in combined["gaps"]])
    weights = np.array([part.weight for part in combined["gaps"]])
    weights = weights / weights.sum()
    return Divergence(
        divergence=float(T.norm(T.sub(combined["gradient"], total))),
        triangle_bound=float((weights[:, None] * gaps).sum()),
        step_bound=float(plan.steps * gaps.max()),
        delta=float(gaps.max()),
        central_norm=float(T.norm(total)),
        by_step=[float(v) for v in (weights[:, None] * gaps).sum(axis=0)],
        by_client=[float(v) for v in gaps.sum(axis=1)],
        clients=names,
        sizes=[int(n) for n in sizes],
        steps=plan.steps,
        weights=plan.weights,
        federated=combined["model"],
        central=central,
        gradient=combined["gradient"],
    )


# ---------------------------------------------------------------- encrypted matching as a protocol


@dataclass(frozen=True)
class Matched:
    """What the server learns from the survey.

    Attributes:
        clients: names of the clients that answered.
        divergences: divergence of each client, ``(clients,)``; ``inf`` without rows.
        error: bound on the rounding error of each value; the scheme's own noise is smaller.
    """

    clients: list[str]
    divergences: Any
    error: float


@dataclass(frozen=True, kw_only=True)
class EncryptedMatching:
    """Divergences of all clients' profiles under one model, with encrypted means; `atoll.secure.encrypted.squares` says what each party sees.

    This is one survey without a training (``FedProf(matching="encrypted")`` runs it in its rounds), for three kinds of parties: the clients, the server (with
    the federated data set's ``test`` as its own data) and a key holder, which is neither. A reply is a ciphertext of about 330 kB instead of ``4 q`` bytes
    of means.

    Attributes:
        model: a PyTorch module, or a factory of one.
        layer: the layer to profile; see ``FedProf``.
        holder: name of the party that holds the key.
        params: the model's parameters; by default its initial ones.
        mask_bits: size of the masks that hide single terms from the key holder.
        digits: decimals of a sum that the key holder reveals.
        floor: the smallest variance.

    Example:
        >>> import atoll
        >>> islands = atoll.data.iid(atoll.data.digits(), parties=5, seed=0)
        >>> matching = EncryptedMatching(model=atoll.models.mlp(64, 10))
        >>> found = atoll.simulate(matching.program(islands), islands)  # doctest: +SKIP
    """

    citation: ClassVar[str] = "Wu 2021, Towards Efficient Horizontal Federated Learning, appendix B"
    model: Any
    layer: str = "auto"
    holder: str = HOLDER
    params: Tree = None
    mask_bits: int = 16
    digits: int = 4
    floor: float = FLOOR

    def __post_init__(self) -> None:
        if not 1 <= self.mask_bits <= 18:
            raise ConfigError(f"mask_bits={self.mask_bits}", where="EncryptedMatching", remedy="use 1 to 18 bits")
        if not 1 <= self.digits <= 6:
            raise ConfigError(
                f"digits={self.digits}", where="EncryptedMatching", remedy="use 1 to 6: the scheme's noise hides more"
            )
        if not self.floor > 0:
            raise ConfigError(f"floor={self.floor}", where="EncryptedMatching", remedy="use a small positive number")

    def program(self, data: Any) -> Callable[[Federation], Awaitable[Matched]]:
        """Return the program of this survey on a federated data set.

        Raises:
            ConfigError: the server has no data of its own.
        """
        if getattr(data, "test", None) is None:
            raise ConfigError(
                "the server has no data to compare clients with",
                where="EncryptedMatching",
                remedy="give the federated data set a `test` set",
            )
        learner = adapt(self.model, LearnerSettings(algorithm=FedAvg()), data)
        learner.check_reports({"profile": {"layer": self.layer}})
        asking = SealedProfiles(self.layer, self.holder, self.mask_bits, self.digits, self.floor)
        sealed = asking.profiles(learner)

        async def program(fed: Federation) -> Matched:
            asking.require_holder(fed)
            params = learner.init(fed.rng.child("init")) if self.params is None else self.params
            own, key = asking.own(learner, params, data.test), await asking.keys(fed, 0)
            asked = Inquired(fed.parties, params, known=False, round=0, deadline=None)
            found = await asking.divergences(fed, sealed, asked, key, own)
            return Matched(list(found.parties.names), found.values, found.error)

        program.tasks = (sealed,)  # type: ignore[attr-defined]
        program.others = asking.others  # type: ignore[attr-defined]
        return program
