"""`PrADA`: labels of one domain teach another through a party that has features of both, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.errors import DataError
from atoll.core.message import Bits
from atoll.core.validation import require_parts
from atoll.secure.encrypted import Paillier

from ..model import ANSWERS, ColumnScales, GuestRows, Part, Save, require
from .products import begin_later, product_bytes
from .representation import Descent, Representation
from .roles import PairModel, read_count, represent_part
from .sides import CURVE, SLOPE, signs_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

__all__ = ["PrADA"]

Numbers = Any
"""An array of float64 numbers."""
_BOUND = 1000.0
"""The largest number that a party tells: far beyond what scaled columns give."""


@dataclass(frozen=True, kw_only=True)
class PrADA(PairModel):
    """Adversarial domain adaptation over groups of features: rows of a *source* domain have labels, those of a *target* domain have few or none.

    The guest has rows of both domains, and a column that tells them apart; the host has features of them, in groups. Each group has an extractor, ``z_g = tanh([x_g, 1] W_g)``, and a discriminator
    of its own, ``sigmoid([z_g, 1] q_g)``, which tells the domains apart from ``z_g`` alone. Extractors are trained to fool theirs, so that each group looks alike in both domains. The guest's scores are
    ``s = own + z v``, where ``own`` is what its own columns say, a linear model that it fits first. Training descends on

    ``mean_L l(y, s) - adapt sum_g D_g + penalty/2 (|W|^2 + |v|^2)``, while ``q_g`` descends on ``D_g``,

    the mean cross-entropy of the discriminator over the domains, each of which counts one half. L are the labelled rows; in the last steps (``tune``) those of the target alone, if it has any. l is the logistic loss
    by Taylor's series, so that gradients are products of both parties' numbers and travel as in `SFTL`. Domains and discriminators stay in the clear at the host. Kang et al. 2022,
    "Privacy-preserving Federated Adversarial Domain Adaptation over Feature Groups for Interpretability", as the survey of learning without full labels has it (section 5.1.2). There the two
    domains are two parties; here one guest has both.

    Attributes:
        groups: the host's columns by their number, a list a group; a column may be in none.
        domain: the number of the guest's column that is 1 in a row of the target, and 0 in one of the source.
        width: numbers that a group's extractor gives.
        steps: steps of gradient descent.
        rate: learning rate.
        momentum: of gradient descent.
        adapt: weight of the adversaries.
        tune: share of the steps, the last ones, for the target's labels alone.
        penalty: weight of the squares of W and v.
        security: ``paillier``, ``shared`` or ``none``, see `SFTL`.
        cipher: the encryption of ``paillier``.
        seed: of the first weights.
    """

    groups: Sequence[Sequence[int]]
    domain: int = 0
    width: int = 2
    steps: int = 200
    rate: float = 0.1
    momentum: float = 0.9
    adapt: float = 1.0
    tune: float = 0.25
    penalty: float = 0.01
    security: Literal["paillier", "shared", "none"] = "paillier"
    cipher: Paillier = field(default_factory=Paillier)
    seed: int = 0

    def __post_init__(self) -> None:
        require_parts(self, {"cipher": (Paillier, "atoll.secure.encrypted.Paillier()")})
        object.__setattr__(self, "groups", tuple(tuple(int(one) for one in group) for group in self.groups))
        every = [one for group in self.groups for one in group]
        bounds = (
            ("groups", bool(every) and all(self.groups) and min(every) >= 0 and len(set(every)) == len(every), "name each column of the host once, by its number, at least one a group"),
            ("domain", self.domain >= 0, "use the number of a column"),
            ("width", 1 <= self.width <= 64, "use 1 to 64 numbers"),
            ("adapt", 0 <= self.adapt < np.inf, "use a finite number >= 0"),
            ("tune", 0 <= self.tune <= 1, "use a share of the steps"),
            ("penalty", 0 <= self.penalty < np.inf, "use a finite number >= 0"),
        )  # fmt: skip
        self.require_bounds(bounds)
        self.require_security()

    @property
    def units(self) -> int:
        """Numbers of all extractors."""
        return self.width * len(self.groups)

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        plain = self.security == "none"
        hidden = "the gradient of its own weights in each step, from which more follows where it has more weights than there are shared rows"
        return {
            "host": [
                "numbers that tell the labels of the shared rows" if plain else hidden,
                "which shared rows are of the target domain, which have labels, and the classes' number",
            ],
            "guest": [
                "what the host's extractors give for the shared rows" if plain else hidden,
                "scores of the rows for which the host answers",
            ],
        }

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted; seconds without those of encryption."""
        n, bits = rows + self.units, self.cipher.key_bits
        step = sum(product_bytes(self.security, (self.units, n, m), bits) for m in (columns[1] + 1, outputs))
        shape = (1, self.units, rows * outputs) if self.security == "shared" else (rows, self.units, outputs)
        seconds = 2e-8 * self.units * n * (columns[1] + 1 + outputs)
        return {"seconds": self.steps * seconds, "bytes": self.steps * step + product_bytes(self.security, shape, bits)}

    def _tunes(self, step: int) -> bool:
        """Whether a step is for the target's labels alone."""
        return step >= round(self.steps * (1 - self.tune))

    def _domains(self, x: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows are of the target domain.

        Raises:
            DataError: the guest's column says something else, or there is no such column.
        """
        if self.domain >= x.shape[1] or not np.isin(x[:, self.domain], (0, 1)).all():
            raise DataError(
                f"column {self.domain} of the guest does not say of each row whether it is of the target domain",
                where="PrADA",
                remedy="name a column of the guest that is 0 in rows of the source and 1 in rows of the target: domain=",
            )
        return np.asarray(x[:, self.domain] == 1)

    def _own(self, rows: GuestRows) -> dict[str, Any]:
        """The linear model of the guest's own columns: the least of the Taylor loss of its labelled rows, with the penalty."""
        x = np.delete(rows.x, self.domain, axis=1) if rows.x.shape[1] > self.domain else rows.x
        scales = ColumnScales.of(x)
        inputs, y = np.column_stack([scales.apply(x), np.ones(len(x))]), signs_of(rows)
        known = y[:, 0] != 0
        few = max(1, int(known.sum()))
        squares = CURVE * inputs[known].T @ inputs[known] / few + (self.penalty + 1e-9) * np.eye(inputs.shape[1])
        return {
            "scales": scales.packed(),
            "weights": np.linalg.solve(squares, SLOPE * inputs[known].T @ y[known] / few),
            "domain": self.domain,
        }

    # The roles.

    async def train_guest(
        self,
        rows: GuestRows,
        peers: Peers,
        hosts: Sequence[str],
        *,
        secret: Secret,
        state: Any = None,
        save: Save | None = None,
        others: GuestRows | None = None,
    ) -> Part:
        """The guest's role; return its part: its own linear model, and the weights of the host's groups. It makes the own model of all its rows with labels, shared or not."""
        host, target, y = self.require_host(hosts), self._domains(rows.x), signs_of(rows)
        every = (
            rows
            if others is None
            else GuestRows(
                np.concatenate([rows.x, others.x]), np.concatenate([rows.targets, others.targets]), rows.objective
            )
        )
        own, known = self._own(every), y[:, 0] != 0
        if state is None:
            begin = {"labelled": Bits.pack(known), "target": Bits.pack(target), "outputs": y.shape[1]}
            await peers.send(host, begin)
            columns = read_count(await peers.recv(host), "columns", "columns it has", host, "PrADA")
            v = np.random.default_rng([self.seed, 0]).normal(size=(self.units, y.shape[1])) / np.sqrt(self.units)
            state = {"step": 0, "theirs": columns, "pair": None, "v": v, "speed": np.zeros_like(v)}
        v, speed, offset = np.array(state["v"]), np.array(state["speed"]), _say(own, rows.x)
        theirs = int(state["theirs"])
        pair = await self.open_pair(peers, host, secret, state["pair"], first=True)
        kept = lambda: {"theirs": theirs, "pair": pair.captured(), "v": v, "speed": speed}  # noqa: E731
        async for step in self.descend(state["step"], save, kept):
            counts = _counted(known, target, tune=self._tunes(step))
            few = max(1, int(counts.sum()))
            slope = (CURVE * offset - SLOPE * y) * counts[:, None] / few
            numbers = np.concatenate([v @ slope.T * len(y), v @ v.T], axis=1)
            if not (np.abs(numbers) <= _BOUND).all():
                raise DataError(
                    f"numbers beyond {_BOUND:g}", where="PrADA", remedy="use a smaller rate, or a larger penalty"
                )
            await pair.give(numbers, theirs)
            weights = np.concatenate([slope, CURVE * v], axis=0)
            product = await pair.take(np.broadcast_to(weights, (self.units, *weights.shape)), 1.0)
            speed = self.momentum * speed + product + self.penalty * v
            v = v - self.rate * speed
        return {"own": own, "v": v, **self.protocol}

    async def train_host(
        self,
        x: NDArray[Any],
        peers: Peers,
        guest: str,
        *,
        secret: Secret,
        state: Any = None,
        save: Save | None = None,
        others: NDArray[Any] | None = None,
    ) -> Part:
        """The host's role; return its part: the extractors."""
        del others
        told = await peers.recv(guest) if state is None else state["told"]
        known, target = (_flags(told, name, len(x), guest) for name in ("labelled", "target"))
        outputs = read_count(told, "outputs", "classes there are", guest, "PrADA")
        mask = self._mask(x.shape[1])
        if state is None:
            await peers.send(guest, {"columns": x.shape[1] + 1})
            state = self._begin_host(x, mask)
        net = Representation.unpacked(state["net"])
        descent = Descent(self.rate, self.momentum, [np.array(one) for one in state["speed"]])
        q, q_speed, rows = np.array(state["q"]), np.array(state["q_speed"]), net.read(x)
        pair = await self.open_pair(peers, guest, secret, state["pair"], first=False)
        kept = lambda: {"net": net.packed(), "speed": descent.speed, "q": q, "q_speed": q_speed, "told": told, "pair": pair.captured()}  # noqa: E731  # fmt: skip
        async for step in self.descend(state["step"], save, kept):
            z, counts = net.represent(rows), _counted(known, target, tune=self._tunes(step))
            few = max(1, int(counts.sum()))
            by_unit = (1 - z**2).T[:, :, None] * rows[None]
            crossed = CURVE / few * np.einsum("dip,ie->dep", by_unit[:, counts], z[counts])
            product = await pair.take(np.concatenate([by_unit / max(1, len(x)), crossed], axis=1), _BOUND)
            seen = z[counts]
            await pair.give(np.concatenate([z.T, seen.T @ seen / few], axis=1), outputs)
            fooled, moved = self._adversaries(z, q, target)
            whole = (product.T - self.adapt * net.backward(rows, z, fooled)) * mask + self.penalty * net.encode
            descent.step(net, whole, np.zeros_like(net.decode))
            q_speed = self.momentum * q_speed + moved
            q = q - self.rate * q_speed
        return {"net": net.packed(), "q": q, "outputs": outputs, **self.protocol}

    def _begin_host(self, x: NDArray[Any], mask: Numbers) -> dict[str, Any]:
        """The host's state before the first step."""
        net = Representation.begin(ColumnScales.of(x), self.units, np.random.default_rng([self.seed, 1]))
        net.encode = net.encode * mask
        q = np.zeros((self.width + 1, len(self.groups)))
        return {"step": 0, "pair": None, "speed": [], "q": q, "q_speed": 0.0, "net": net.packed()}

    def _mask(self, columns: int) -> Numbers:
        """1 where a unit reads a column of its group, or the offset, ``(columns + 1, units)``.

        Raises:
            DataError: the host has no such column.
        """
        made = np.zeros((columns + 1, self.units))
        made[-1] = 1
        for g, group in enumerate(self.groups):
            if max(group) >= columns:
                raise DataError(
                    f"column {max(group)} of group {g}, where the host has {columns}",
                    where="PrADA",
                    remedy="name the host's columns by their numbers, from 0",
                )
            made[list(group), g * self.width : (g + 1) * self.width] = 1
        return made

    def _adversaries(self, z: Numbers, q: Numbers, target: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
        """The gradients of the discriminators' losses by z and by their weights. Each domain counts one half; without both there is nothing to tell apart."""
        towards, moved = np.zeros_like(z), np.zeros_like(q)
        if target.all() or not target.any():
            return towards, moved
        share = np.where(target, 0.5 / target.sum(), 0.5 / (~target).sum())
        for g in range(len(self.groups)):
            part = slice(g * self.width, (g + 1) * self.width)
            inputs = np.column_stack([z[:, part], np.ones(len(z))])
            slope = (1 / (1 + np.exp(-inputs @ q[:, g])) - target) * share
            moved[:, g] = inputs.T @ slope
            towards[:, part] = slope[:, None] * q[:-1, g]
        return towards, moved

    def train_pooled(self, rows: GuestRows) -> Part:
        """The linear model of the given columns alone, which has no groups and adapts to nothing."""
        return {"own": self._own(rows), "v": np.zeros((self.units, rows.objective.outputs))}

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> dict[str, Any]:
        """At the host: what its extractors give for rows. `predict_host` keeps it back."""
        return {"z": represent_part(part, x)}

    @classmethod
    def read_answer(cls, part: Part, message: Any, rows: int, host: int, name: str) -> NDArray[np.float64]:
        """What a host's extractors give.

        Raises:
            MessageError: it is none.
        """
        z = message.get("z") if isinstance(message, Mapping) else None
        good = isinstance(z, np.ndarray) and z.dtype == np.float64 and z.shape == (rows, len(part["v"]))
        require(good and bool((np.abs(np.asarray(z)) <= 1).all()), f"no features of {rows} rows of {name!r}", "PrADA")
        return np.asarray(z)

    @classmethod
    def margins(cls, part: Part, x: NDArray[Any], answers: Sequence[Any]) -> NDArray[np.float64]:
        """Scores of rows: what the guest's own columns say, and the host's groups if it answers."""
        said = _say(part["own"], x)
        return said + answers[0] @ np.asarray(part["v"]) if answers else said

    async def predict_guest(
        self, part: Part, x: NDArray[Any], peers: Peers, hosts: Sequence[str], *, secret: Secret
    ) -> NDArray[Any]:
        """The guest's role when the parties predict: products of its weights with the host's features."""
        pair = await begin_later(part, peers.channel(ANSWERS), hosts[0], secret, first=True)
        return np.asarray(_say(part["own"], x) + await pair.take_rows(np.asarray(part["v"]), len(x), 1.0))


def _counted(known: NDArray[np.bool_], target: NDArray[np.bool_], *, tune: bool) -> NDArray[np.bool_]:
    """Which rows' labels count in a step."""
    return known & target if tune and (known & target).any() else known


def _say(own: Mapping[str, Any], x: NDArray[Any]) -> NDArray[np.float64]:
    """What a linear model of the guest's columns says."""
    rows = np.delete(x, int(own["domain"]), axis=1) if x.shape[1] > int(own["domain"]) else x
    inputs = np.column_stack([ColumnScales.unpacked(own["scales"]).apply(rows), np.ones(len(x))])
    return np.asarray(inputs @ np.asarray(own["weights"]))


def _extract(part: Part, x: NDArray[Any]) -> NDArray[np.float64]:
    net = Representation.unpacked(part["net"])
    return np.asarray(net.represent(net.read(x)))


def _flags(told: Any, name: str, rows: int, guest: str) -> NDArray[np.bool_]:
    found = told.get(name) if isinstance(told, Mapping) else None
    require(
        isinstance(found, Bits) and found.shape == (rows,),
        f"{guest!r} does not say of {rows} rows which are {name}",
        "PrADA",
    )
    return np.asarray(found.unpack(), np.bool_)  # type: ignore[union-attr]
