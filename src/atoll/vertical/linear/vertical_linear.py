"""`VerticalLinear`: one linear model over columns at several owners, the optimum that scikit-learn finds on all columns in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.validation import require_parts
from atoll.secure.encrypted import Paillier
from atoll.secure.shares import deal
from atoll.trees.objectives import LOGISTIC, SOFTMAX, SQUARED, TreeLoss

from ..model import ColumnScales, GuestRows, Part, Save, VerticalModel, require
from .families import FAMILIES, LinearLoss, Taylor, family_objective
from .protocols import (
    ARBITER,
    ArbiterProducts,
    CkksColumns,
    JointProducts,
    LocalProducts,
    PaillierColumns,
    PairProducts,
    TaylorRows,
    run_arbiter,
)
from .rows import GuestTotals, HostTotals, PlainGuest, PlainHost, read_numbers
from .sealed import predict_products, predict_slots
from .shares import DEALER, fit_shared_weights, predict_shared, sharing_among
from .solver import BATCHES, MEMORY, SAMPLED, SOLVERS, JointRows, OwnBlock, fit_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

__all__ = ["VerticalLinear"]

MOST_OUTPUTS = 1000
SECURITIES = ("pair", "arbiter", "shared", "ckks", "none")
_BATCH_ROWS = 10
"""Least rows of a batch for each column of a party."""
_SEALED_EXACT = 1e-20
"""See `JointRows.exact`: with numbers in units of 2^-40."""


@dataclass(frozen=True, kw_only=True)
class VerticalLinear(VerticalModel):
    """A linear model over columns at several owners: least squares, logistic, multinomial or Poisson regression.

    All parties minimise ``sum_i L(y_i, m_i) + penalty |w|^2 / 2 + l1 |w|_1`` over margins ``m = x w + b``, where b is free. These are scikit-learn's optima: ``Ridge(alpha=penalty)``,
    ``LogisticRegression(C=1 / penalty)``, with n rows ``PoissonRegressor(alpha=penalty / n)`` and ``Lasso(alpha=l1 / n)``, on columns that each owner centres and divides by their standard deviations over the
    training rows (divided by n). A missing value counts as the column's mean.

    Each party keeps the weights of its own columns. See `atoll.vertical.linear.solver` for the steps.

    ============  ========================================================  ====================================================
    security      what a host sees                                          what the guest sees of a host
    ============  ========================================================  ====================================================
    ``pair``      sums over the rows of its columns times the guest's       sums over the rows of its own columns times the
                  numbers, one for each column and round                    host's numbers, one for each column and round
    ``arbiter``   the same, with the numbers of all others added up         the same
    ``ckks``      as ``pair``                                               as ``pair``
    ``shared``    nothing of a row, and no sums: shares                     the same
    ``none``      derivatives of the loss by row, and so all labels         its part of each row's margin, in every step
    ============  ========================================================  ====================================================

    ``pair`` needs no third party; under ``arbiter`` a party without columns has the key, and learns how long the training takes. ``shared`` has a dealer without columns, or none with ``triples="transfers"``, see `atoll.vertical.linear.shares`. The first three fit Taylor's loss of order 2 (Hardy et al. 2017) in place of the logistic, multinomial and Poisson ones: AUCs differ little, single probabilities do. See
    `atoll.vertical.linear.protocols`. The parties follow the protocol: one that encrypts a column of its own making, such as a single 1 among zeros, learns another's number of that row.

    Attributes:
        family: ``auto`` follows the labels: least squares for numbers, logistic for two classes, multinomial for more; or ``least-squares``, ``logistic``, ``multinomial``, ``poisson``.
        penalty: L2 penalty of the weights.
        l1: L1 penalty of the weights.
        security: see above.
        solver: how ``pair``, ``arbiter`` and ``ckks`` find the optimum: ``newton``, by conjugate gradients; ``quasi-newton`` (K. Yang et al. 2019), by the memory of L-BFGS, with about as many products and a
            quarter fewer round trips; or ``gradient``, gradient descent, to compare with. See `atoll.vertical.linear.solver`.
        cipher: the encryption of ``pair`` and ``arbiter``.
        batch: of ``quasi-newton`` under ``pair`` and ``arbiter``: rows of the batch from which products make the memory before all rows count; 0 for none. At least ten times the columns of each party, so that
            sums over the batch do not tell its rows. For tables of many rows whose columns tell of each other's across parties.
        seed: which rows are in the batch; all parties know it.
        triples: of ``shared``: who makes the triples, a ``dealer`` without columns, or two parties by oblivious ``transfers``, for tables of some hundred rows: a product of ``(n, k)`` and ``(k, m)`` takes
            ``2 k min(n, m) (1024 + 288 max(n, m))`` bytes.
        short_exponents: whether noise has exponents of 448 bits: encryption takes less than half the time, under a further assumption, see `KeyOwner`.
    """

    precision = np.float64

    family: Literal["auto", "least-squares", "logistic", "multinomial", "poisson"] = "auto"
    penalty: float = 1.0
    l1: float = 0.0
    security: Literal["pair", "arbiter", "shared", "ckks", "none"] = "pair"
    solver: Literal["newton", "quasi-newton", "gradient"] = "newton"
    cipher: Paillier = field(default_factory=Paillier)
    short_exponents: bool = False
    triples: Literal["dealer", "transfers"] = "dealer"
    batch: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        require_parts(self, {"cipher": (Paillier, "atoll.secure.encrypted.Paillier()")})
        bounds = (
            ("family", self.family in ("auto", *FAMILIES), f"use auto, {', '.join(FAMILIES)}"),
            ("penalty", 0 <= self.penalty < np.inf, "use a finite number >= 0"),
            ("l1", 0 <= self.l1 < np.inf, "use a finite number >= 0"),
            ("security", self.security in SECURITIES, f"use {', '.join(SECURITIES)}"),
            ("solver", self.solver in SOLVERS, f"use {', '.join(SOLVERS)}"),
            ("triples", self.triples in ("dealer", "transfers"), "use dealer or transfers"),
            ("batch", self.batch >= 0, "use a number of rows, or 0 for none"),
        )
        for name, good, remedy in bounds:
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="VerticalLinear", remedy=remedy)
        sealed, name = self.security in ("pair", "arbiter"), ""
        if not sealed and (self.short_exponents or self.cipher != Paillier()):
            name = "short_exponents" if self.short_exponents else "cipher"
        if self.security in ("shared", "ckks") and self.l1:
            name = "l1"
        if self.triples != "dealer" and self.security != "shared":
            name = "triples"
        if self.solver != "newton" and self.security in ("shared", "none"):
            name = "solver"
        if self.solver != "newton" and self.l1:
            raise CompositionError(
                f"solver={self.solver!r} with l1={self.l1:g}", where="VerticalLinear", remedy="leave solver out"
            )
        if self.batch and (self.solver != "quasi-newton" or not sealed):
            raise CompositionError(
                f"batch={self.batch} with solver={self.solver!r} and security={self.security!r}",
                where="VerticalLinear",
                remedy="use solver='quasi-newton' with security='pair' or 'arbiter', or leave batch out",
            )
        if name:
            raise CompositionError(
                f"{name} with security={self.security!r}", where="VerticalLinear", remedy=f"leave {name} out"
            )

    def fit_objective(self, objective: TreeLoss) -> TreeLoss:
        """The loss of the family."""
        return family_objective(self.family, objective)

    @property
    def implied_task(self) -> Literal["auto", "regression"]:  # type: ignore[override]
        """Counts and amounts are numbers, however few of them differ."""
        return "regression" if self.family in ("poisson", "least-squares") else "auto"

    @property
    def helpers(self) -> Mapping[str, str]:
        """The arbiter or the dealer, where there is one."""
        if self.security == "shared" and self.triples == "dealer":
            return {DEALER: DEALER}
        return {ARBITER: ARBITER} if self.security == "arbiter" else {}

    def names(self) -> tuple[str, ...]:
        """The class and the protocol."""
        return (type(self).__name__, self.security)

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The class and all protocols."""
        return (cls.__name__, *SECURITIES)

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        predicted = "each host's part of the margin of every row that is predicted"
        steps = self._describe_steps()
        if self.security == "none":
            return {
                "host": [
                    "the derivatives of the loss by the margin of each training row in every step, and so their labels"
                ],
                "guest": [
                    "each host's part of the margin of every training row in every step: after as many as a host has columns, all of them up to a linear map",
                    predicted,
                ],
            }
        if self.security == "shared":
            opened = "where the logistic function is in pieces, two numbers a round: how far the loss may still fall, and whether the momentum leads uphill"
            trusted = "if the dealer shows nobody what it deals"
            if self.triples == "transfers":
                trusted = "if the oblivious transfers hide choices and words, as they do of a party that follows them"
            apart = f"nothing of another's rows, labels or weights, which are shares of uniform words, {trusted}"
            directions = "in how many directions each other party's columns vary"
            shown = {"host": [apart, directions, opened], "guest": [apart, directions, opened, predicted]}
            if self.triples == "transfers":
                return shown
            return {
                **shown,
                DEALER: [
                    "how many rows and directions the columns have, and how many rounds the training takes",
                    "nothing of a number: it sees no shares",
                ],
            }
        assumed = "Paillier's assumption" + (" and noise with exponents of 448 bits" if self.short_exponents else "")
        sealed = f"nothing of another's single rows: ciphertexts of {self.cipher.key_bits} bits, under {assumed}"
        if self.security == "ckks":
            sealed = "nothing of another's single rows: CKKS ciphertexts of a ring of 8192, under the assumption of learning with errors in rings"
        alone = self.security != "arbiter"
        whose = "each other party's numbers" if alone else "the sum of all other parties' numbers"
        over = f"the training rows, and over {self.batch} of them," if self.batch else "the training rows"
        sums = f"for each of its own columns and rounds, the sum over {over} of the column times {whose}: margins"
        label = (
            ", and in the first round the labels: a column that is 0 in almost all rows tells the labels of the others"
        )
        if not alone:
            sealed += ", and if the arbiter, which has the key, shows nobody what it opens and is shown no ciphertexts of columns"
        found = {
            "host": [sealed, sums + label, "how many columns each other party has", "sums of " + steps],
            "guest": [sealed, sums, "how many columns each host has", steps, predicted],
        }
        if not alone:
            found[ARBITER] = [
                "how many columns each party has, in units of a ciphertext, and how many rounds and steps the training takes",
                "nothing of the sums that it opens: uniform numbers",
            ]
        return found

    def _describe_steps(self) -> str:
        """What the sums of steps tell."""
        if self.solver == "gradient":
            return "inner products of gradients, 5 numbers a party and round"
        if self.batch:
            return f"inner products of gradients and of up to {SAMPLED} steps of a batch, up to {2 * SAMPLED**2} numbers a party and round"
        if self.solver == "quasi-newton":
            return f"inner products of gradients and of the last {MEMORY} steps, up to {4 * MEMORY + 5} numbers a party and round"
        return "inner products of the steps' directions, a number a party, round and step"

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them.

        In the clear about sixty products with all rows, 4 ns a value. Encrypted, each row once a party and about fifteen products, of which each raises a row's ciphertext to a number of 60 bits.

        Args:
            rows: training rows.
            columns: how many columns each party has, the guest first.
            outputs: margins of a row.
        """
        hosts = len(columns) - 1
        if self.security == "none":
            products = 60.0 if self.l1 == 0 else 600.0
            seconds = products * (4e-9 * rows * (sum(columns) + 1) * outputs + 1e-3 * hosts)
            return {"seconds": seconds, "bytes": products * hosts * 16.0 * rows * outputs}
        if self.security == "shared":
            pieces = outputs == 1 and self.family in ("auto", "logistic")
            return predict_shared(rows, sum(columns) + 1, outputs, len(columns), pieces, self.triples == "transfers")
        if self.security == "ckks":
            return predict_slots(rows, [columns[0] + 1, *columns[1:]], outputs, 25.0)
        products = 200.0 if self.l1 else {"gradient": 1000.0}.get(self.solver, 15.0)
        return predict_products(
            self.cipher, rows, [columns[0] + 1, *columns[1:]], outputs, products, self.short_exponents
        )

    # The roles.

    async def train_guest(
        self,
        rows: GuestRows,
        peers: Peers | None = None,
        hosts: Sequence[str] = (),
        *,
        secret: Secret | None = None,
        state: Any = None,
        save: Save | None = None,
    ) -> dict[str, Any]:
        """The guest's role: find the weights with the hosts, or alone; return the guest's part of the model.

        Args:
            rows: the training rows.
            peers: the session; ``None`` without hosts.
            hosts: the hosts' roles.
            secret: the guest's entropy.
            state: what ``save`` kept last.
            save: called after each step with what a resumed role needs.
        """
        scales, outputs = ColumnScales.of(rows.x), rows.objective.outputs
        x = np.concatenate([scales.apply(rows.x), np.ones((len(rows.x), 1))], axis=1)
        # Least squares in deviations of y from its mean: the steps end by the same measure whatever the unit.
        plain = rows.objective.name == SQUARED
        offset = float(np.mean(rows.targets)) if plain else 0.0
        unit = (float(np.std(rows.targets)) or 1.0) if plain else 1.0
        if plain:
            rows = GuestRows(rows.x, (rows.targets - offset) / unit, rows.objective)
        pieces = self.security == "shared" and rows.objective.name == LOGISTIC
        loss = LinearLoss(rows.objective, rows.targets, pieces=pieces)
        exact = self.security == "none" or pieces
        taylor = None if exact else Taylor.of(rows.objective, rows.targets)
        block = self._block(x, 1 + len(hosts), taylor is None and rows.objective.name == SOFTMAX, unit, intercept=True)
        if state is None:
            start = np.zeros((x.shape[1], outputs))
            start[-1] = rows.base
            state = {"step": 0, "weights": start}
            if hosts:
                public = {
                    "security": self.security,
                    "outputs": outputs,
                    "coupled": block.coupled,
                    "unit": unit,
                    "curvature": taylor.curvature if taylor else 1.0,
                    "pieces": pieces,
                    "hosts": list(hosts),
                }
                await peers.broadcast(public, hosts)  # type: ignore[union-attr]
        if hosts and self.security == "shared":
            given = taylor.targets if taylor else rows.targets[:, None]
            at = self._sharing(peers, ["", *hosts], "", secret)
            w = await fit_shared_weights(block, outputs, given, taylor.curvature if taylor else 1.0, pieces, **at)
            return {"scales": scales.packed(), "weights": w[:-1], "base": w[-1], "unit": unit, "offset": offset}
        totals = GuestTotals(peers, hosts)
        own: JointRows
        if taylor is None:
            own = PlainGuest(block, loss, outputs, peers, hosts)
        else:
            products = await self._products(x, outputs, peers, hosts, secret) if hosts else LocalProducts(x)
            sampled = self._batch(len(x)) if hosts else None
            own = TaylorRows(block, taylor.curvature, taylor.targets, products, totals, self._exact(len(x)), sampled)
        solver = self._solver(len(x)) if hosts else self.solver
        w = await fit_weights(
            block, own, outputs, _start(state), self._saver(save, {}, peers if hosts else None), solver
        )
        for helper in self.helpers if hosts else ():
            await peers.send(helper, {"do": "end"})  # type: ignore[union-attr]
        return {"scales": scales.packed(), "weights": w[:-1], "base": w[-1], "unit": unit, "offset": offset}

    async def train_host(
        self,
        x: NDArray[Any],
        peers: Peers,
        guest: str,
        *,
        secret: Secret,
        state: Any = None,
        save: Save | None = None,
    ) -> dict[str, Any]:
        """A host's role: find the weights of its columns with the others; return the host's part of the model.

        Args:
            x: the training rows in the common order.
            peers: the session.
            guest: the guest's role.
            secret: the host's entropy.
            state: what ``save`` kept last.
            save: called after each step with what a resumed role needs.
        """
        scales = ColumnScales.of(x)
        if state is None:
            public = self._read_public(await peers.recv(guest))
            state = {"step": 0, "weights": np.zeros((x.shape[1], public["outputs"])), "public": public}
        public = state["public"]
        outputs, others = (
            int(public["outputs"]),
            [guest, *(name for name in peers.names if name != guest and name not in self.helpers)],
        )
        scaled = scales.apply(x)
        block = self._block(scaled, len(others) + 1, bool(public["coupled"]), float(public["unit"]))
        if self.security == "shared":
            parties, me = _places(public["hosts"], guest, [name for name in others if name != guest])
            at = self._sharing(peers, parties, me, secret)
            curvature, pieces = float(public["curvature"]), bool(public["pieces"])
            w = await fit_shared_weights(block, outputs, None, curvature, pieces, **at)
            return {"scales": scales.packed(), "weights": w}
        own: JointRows
        if self.security == "none":
            own = PlainHost(block, outputs, peers, guest)
        else:
            products = await self._products(scaled, outputs, peers, others, secret)
            own = TaylorRows(
                block, float(public["curvature"]), None, products, HostTotals(peers, guest), self._exact(len(x)), self._batch(len(x)),
            )  # fmt: skip
        solver = self._solver(len(x))
        w = await fit_weights(block, own, outputs, _start(state), self._saver(save, {"public": public}), solver)
        return {"scales": scales.packed(), "weights": w}

    def _sharing(self, peers: Any, parties: Sequence[str], me: str, secret: Secret | None) -> dict[str, Any]:
        """Where a party stands, for `fit_shared_weights`."""
        transfers = self.triples == "transfers"
        return {"peers": peers, "parties": parties, "me": me, "secret": _given(secret), "transfers": transfers}

    async def _products(
        self, x: NDArray[np.float64], outputs: int, peers: Any, others: Sequence[str], secret: Secret | None
    ) -> JointProducts:
        """The products with the other parties' rows, after they have exchanged what these need."""
        secret = _given(secret)
        place = (outputs, peers, others, secret)
        made: JointProducts
        if self.security == "arbiter":
            made = ArbiterProducts(self.cipher, x, *place)
        elif self.security == "ckks":
            made = PairProducts(CkksColumns(x, secret), *place)
        else:
            made = PairProducts(PaillierColumns(self.cipher, x, secret, self.short_exponents), *place)
        await made.begin()
        if self.batch:
            self._require_batch(len(x), made.columns_of)
        return made

    def _batch(self, rows: int) -> NDArray[np.int64] | None:
        """The rows of the batch, the same at all parties; ``None`` where it has all."""
        if not 0 < self.batch < rows:
            return None
        drawn = Rng.of(self.seed).child("batch").generator().choice(rows, self.batch, replace=False)
        return np.sort(drawn.astype(np.int64))

    def _solver(self, rows: int) -> str:
        return self.solver if self._batch(rows) is None else BATCHES

    def _require_batch(self, rows: int, columns: Mapping[str, int]) -> None:
        """Refuse a batch of so few rows that a peer's sums over it may tell them.

        Raises:
            DataError: it is so.
        """
        name = max(columns, key=lambda one: columns[one])
        if 0 < self.batch < min(rows, _BATCH_ROWS * columns[name]):
            raise DataError(
                f"a batch of {self.batch} rows, where {name!r} has {columns[name]} columns: sums over so few rows may tell them",
                where="VerticalLinear",
                remedy=f"use batch={_BATCH_ROWS * columns[name]} or more, or leave batch out",
            )

    async def assist(
        self, helper: str, peers: Peers, parties: Sequence[str], *, secret: Secret, state: Any = None, save: Save | None = None
    ) -> None:  # fmt: skip
        """The arbiter's or the dealer's role."""
        del helper
        if self.security == "shared":
            place: Any = SimpleNamespace(secret=secret)
            await deal.run(place, peers, parties=list(parties), sharing=sharing_among(len(parties)).spec())
            return
        await run_arbiter(self.cipher, peers, parties, secret, self.short_exponents, state, save)

    def _saver(self, save: Save | None, more: Mapping[str, Any], leader: Any = None) -> Any:
        """What keeps a step: at the guest (``leader`` is its session) it first tells the helpers, which keep theirs."""
        if save is None:
            return None

        async def keep(step: int, w: NDArray[np.float64]) -> None:
            for helper in self.helpers if leader is not None else ():
                await leader.send(helper, {"do": "save"})
            await save({**more, "step": step, "weights": w})

        return keep

    def _exact(self, rows: int) -> float:
        """See `JointRows.exact`; of CKKS above what an error of 2^-24 in each sum makes of it."""
        return 1e-13 + 2e-12 / rows**2 if self.security == "ckks" else _SEALED_EXACT

    def _block(
        self, x: NDArray[np.float64], parties: int, coupled: bool, unit: float, intercept: bool = False
    ) -> OwnBlock:
        ridge, l1 = np.full(x.shape[1], self.penalty), np.full(x.shape[1], self.l1 / unit)
        if intercept:
            ridge[-1] = l1[-1] = 0.0
        return OwnBlock(x, ridge, l1, parties, coupled)

    def _read_public(self, message: Any) -> dict[str, Any]:
        """What the guest says before the first step.

        Raises:
            MessageError: it says something else, or agreed on other settings.
        """
        found = message if isinstance(message, Mapping) else {}
        told = found.get("security")
        require(told == self.security, f"security={told!r}, where {self.security!r} was agreed", "VerticalLinear")
        outputs, unit, curvature = found.get("outputs"), found.get("unit"), found.get("curvature")
        require(type(outputs) is int and 1 <= outputs <= MOST_OUTPUTS, f"{outputs!r} margins a row", "VerticalLinear")
        require(isinstance(unit, float) and 0 < unit < np.inf, f"labels in units of {unit!r}", "VerticalLinear")
        good = isinstance(curvature, float) and 0 < curvature < np.inf
        require(good, f"a second derivative of {curvature!r}", "VerticalLinear")
        return {
            "outputs": outputs,
            "unit": unit,
            "curvature": curvature,
            "coupled": bool(found.get("coupled")),
            "pieces": bool(found.get("pieces")),
            "hosts": found.get("hosts"),
        }

    def train_pooled(self, rows: GuestRows) -> Part:
        """The same learner's model of rows that have all columns in one place."""
        training = self.train_guest(rows)
        try:
            training.send(None)  # nobody is asked, so it never waits
        except StopIteration as done:
            part: Part = done.value
            return part
        raise RuntimeError("a training without hosts waited for one")

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> dict[str, Any]:
        """The host's part of each row's margins, ``(rows, outputs)``."""
        return {"margins": ColumnScales.unpacked(part["scales"]).apply(x) @ np.asarray(part["weights"])}

    @classmethod
    def read_answer(cls, part: Part, message: Any, rows: int, host: int, name: str) -> NDArray[np.float64]:
        """A host's part of each row's margins.

        Raises:
            MessageError: it is none, or not a finite number for each row and output.
        """
        told = message.get("margins") if isinstance(message, Mapping) else None
        return read_numbers(told, (rows, len(np.asarray(part["base"]))), name)

    @classmethod
    def margins(cls, part: Part, x: NDArray[Any], answers: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The margins of rows, ``(rows, outputs)``, from what all owners say of them."""
        made = ColumnScales.unpacked(part["scales"]).apply(x) @ np.asarray(part["weights"]) + np.asarray(part["base"])
        for each in answers:
            made = made + each
        return np.asarray(float(part["unit"]) * made + float(part["offset"]))


def _given(secret: Secret | None) -> Secret:
    """The party's entropy.

    Raises:
        ConfigError: there is none.
    """
    if secret is None:
        raise ConfigError("hosts without the party's entropy", where="VerticalLinear", remedy="give peers and secret")
    return secret


def _places(told: Any, guest: str, others: Sequence[str]) -> tuple[list[str], str]:
    """All roles with columns in the guest's order, and this host's own.

    Raises:
        MessageError: the guest names other hosts than the session has.
    """
    hosts = [str(one) for one in told] if isinstance(told, list | tuple) else []
    mine = [name for name in hosts if name not in others]
    good = len(mine) == 1 and len(set(hosts)) == len(hosts) == len(others) + 1 and guest not in hosts
    require(good, f"hosts {hosts!r:.200} of {guest!r}", "VerticalLinear")
    return [guest, *hosts], mine[0]


def _start(state: Any) -> tuple[int, NDArray[np.float64]]:
    return int(state["step"]), np.asarray(state["weights"], np.float64)
