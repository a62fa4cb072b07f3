"""`SFTL`: one party's labels teach another, which has other columns, through the few rows that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.message import Bits
from atoll.core.validation import require_parts
from atoll.secure.encrypted import Paillier

from ..model import ANSWERS, GuestRows, Part, Save, require
from .products import begin_later, product_bytes, seconds_of_product
from .roles import PairModel, read_count, represent_part
from .sides import SourceSide, TargetSide

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

__all__ = ["SFTL"]


@dataclass(frozen=True, kw_only=True)
class SFTL(PairModel):
    """Transfer of labels to a party with other columns: the *source*, the guest, has labels; the *target*, the host, has none.

    Each party maps its columns to a common space, ``u = tanh([x, 1] W)``. The source's labels become a direction there, one for each class (of two, one):
    ``Phi_k = mean_i y_ik u_i`` over its labelled rows, with ``y = 1`` for the class and ``-1`` for the others. A row's score is ``s_k = Phi_k . u``, that of a
    target's row too. The parties minimise together, by gradient descent over all rows,

    ``mean_L l(y, s(u^B)) + align mean_AB |u^A - u^B|^2 + source mean_A l(y, s(u^A)) + restore (R_A + R_B) + penalty/2 (|W_A|^2 + |W_B|^2)``

    where AB are the shared rows, L those of them with labels, A the source's rows with labels, R how badly a party's columns come back from ``u`` over all of its rows, and l the
    logistic loss by Taylor's series, ``log 2 - ys/2 + s^2/8``. Then a gradient is a product of numbers of one party with numbers of the other (see `Pair`), and encryption
    or shares carry it without loss. Liu et al. 2020, "A Secure Federated Transfer Learning Framework", and equations 102 and 103 of the survey of learning without full labels; theirs
    lacks the terms of ``source`` and ``restore``, and trains on rows outside the overlap beforehand.

    ============  =========================================  ===================================================
    security      what the host sees                         what the guest sees
    ============  =========================================  ===================================================
    ``paillier``  the gradient of its own W, in each step    the gradient of its own W, in each step
    ``shared``    the same                                   the same
    ``none``      u of the shared rows, and labels of them   u of the shared rows
    ============  =========================================  ===================================================

    The parties follow the protocol. A step's gradient is a sum over the shared rows: with fewer shared rows than columns, several steps can determine their labels.

    Attributes:
        width: numbers in the common space.
        steps: steps of gradient descent.
        rate: learning rate.
        momentum: of gradient descent.
        align: weight of the alignment.
        source: weight of the source's own labels.
        restore: weight of how well columns come back from the common space.
        penalty: weight of the squares of W.
        security: see above; ``shared`` multiplies by oblivious transfers between the two parties.
        cipher: the encryption of ``paillier``.
        seed: of the first weights.
    """

    width: int = 8
    steps: int = 200
    rate: float = 0.05
    momentum: float = 0.9
    align: float = 0.3
    source: float = 1.0
    restore: float = 1.0
    penalty: float = 0.2
    security: Literal["paillier", "shared", "none"] = "paillier"
    cipher: Paillier = field(default_factory=Paillier)
    seed: int = 0

    def __post_init__(self) -> None:
        require_parts(self, {"cipher": (Paillier, "atoll.secure.encrypted.Paillier()")})
        weights = [(name, 0 <= getattr(self, name) < np.inf, "use a finite number >= 0") for name in ("align", "source", "restore", "penalty")]  # fmt: skip
        self.require_bounds([("width", 1 <= self.width <= 1024, "use 1 to 1024 numbers"), *weights])
        self.require_security()

    def learns(self) -> dict[str, list[str]]:
        """What the guest and a host learn of each other beside the shared rows."""
        if self.security == "none":
            host = ["the representations of the shared rows at the guest, and numbers that tell their labels"]
            guest = ["the representations of the shared rows at the host"]
        else:
            by = f"Paillier's assumption, with keys of {self.cipher.key_bits} bits" if self.security == "paillier" else "the security of oblivious transfers"  # fmt: skip
            one = f"the gradient of its own network in each of {self.steps} steps, under {by}"
            host = [f"{one}; with fewer shared rows than columns, these can tell labels of the shared rows"]
            guest = [f"{one}; with fewer shared rows than columns, these can tell representations of the shared rows"]
        both = "how many columns the other has"
        return {
            "host": [*host, "which shared rows have labels, and the classes' number", both, "scores of its own rows, if the guest answers for them"],
            "guest": [*guest, both, "scores of the rows for which the host answers" + (", and their representations" if self.security == "none" else "")],
        }  # fmt: skip

    def predict_cost(self, rows: int, columns: Sequence[int], outputs: int = 1) -> dict[str, float]:
        """Seconds of all parties' processors and bytes between them, before anyone is contacted.

        Args:
            rows: shared training rows.
            columns: how many columns each party has, the guest first.
            outputs: scores of a row.
        """
        n, bits, parties = rows + self.width, self.cipher.key_bits, [count + 1 for count in columns[:2]]
        step = sum(product_bytes(self.security, (self.width, n, m), bits) for m in parties)
        last = product_bytes(self.security, (rows, self.width, outputs), bits)
        if self.security == "shared":
            last = product_bytes(self.security, (1, self.width, rows * outputs), bits)
        cost = 2e-8 * self.width * n * sum(parties)
        if self.security == "shared":
            cost += 2e-8 * step
        elif self.security == "paillier":
            whole, half = seconds_of_product(2 * bits), seconds_of_product(bits)
            # A number is encrypted modulo both primes' squares; a sum takes three digits of 8 bits of both signs; 31 sums share a plaintext.
            cost += (
                2 * self.width * n * bits / 8 * half
                + self.width * sum(parties) * (3 * (1020 + n) + 64 + 1.2 * bits / 31) * whole
            )
        return {"seconds": self.steps * cost, "bytes": self.steps * step + last}

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
        """The source's role; return its part: its network and the directions of the labels."""
        host, side = self.require_host(hosts), SourceSide.of(self, rows, others, state)
        if state is None:
            labelled = side.labelled[: side.shared]
            begin = {"labelled": Bits.pack(labelled), "outputs": side.y.shape[1], "columns": side.x.shape[1]}
            await peers.send(host, begin)
            state = {
                "step": 0,
                "theirs": read_count(await peers.recv(host), "columns", "columns it has", host, "SFTL"),
                "pair": None,
            }
        theirs = int(state["theirs"])
        pair = await self.open_pair(peers, host, secret, state["pair"], first=True)
        kept = lambda: {**side.packed(), "theirs": theirs, "pair": pair.captured()}  # noqa: E731
        async for _ in self.descend(state["step"], save, kept):
            await pair.give(side.tell(), theirs)
            side.descend(await pair.take(side.weights(), 1.0))
        return {"net": side.net.packed(), "phi": side.directions(side.represent()), **self.protocol}

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
        """The target's role; return its part: its network."""
        told = await peers.recv(guest) if state is None else state["told"]
        side, theirs = (
            TargetSide.of(self, x, others, told, guest, state),
            read_count(told, "columns", "columns it has", guest, "SFTL"),
        )
        if state is None:
            await peers.send(guest, {"columns": side.x.shape[1]})
            state = {"step": 0, "pair": None}
        pair = await self.open_pair(peers, guest, secret, state["pair"], first=False)
        kept = lambda: {**side.packed(), "told": told, "pair": pair.captured()}  # noqa: E731
        async for _ in self.descend(state["step"], save, kept):
            weights, numbers = side.weights(), side.tell()
            product = await pair.take(weights, side.bound)
            await pair.give(numbers, theirs)
            side.descend(product)
        return {"net": side.net.packed(), "outputs": side.outputs, **self.protocol}

    def train_pooled(self, rows: GuestRows) -> Part:
        """The same learner on rows that have all columns in one place: their representations, directions and scores."""
        side = SourceSide.of(self, GuestRows(rows.x[:0], rows.targets[:0], rows.objective), rows)
        for _ in range(self.steps):
            side.descend()
        return {"net": side.net.packed(), "phi": side.directions(side.represent())}

    @classmethod
    def answer(cls, part: Part, x: NDArray[Any]) -> dict[str, Any]:
        """At the host: the representations of rows. `predict_host` keeps them back."""
        return {"u": represent_part(part, x)}

    @classmethod
    def read_answer(cls, part: Part, message: Any, rows: int, host: int, name: str) -> NDArray[np.float64]:
        """The representations that a host answers with.

        Raises:
            MessageError: they are none.
        """
        u = message.get("u") if isinstance(message, Mapping) else None
        shape = (rows, np.asarray(part["phi"]).shape[1])
        good = isinstance(u, np.ndarray) and u.dtype == np.float64 and u.shape == shape and bool((np.abs(u) <= 1).all())
        require(good, f"no representations of {rows} rows of {name!r}", "SFTL")
        return np.asarray(u)

    @classmethod
    def margins(cls, part: Part, x: NDArray[Any], answers: Sequence[Any]) -> NDArray[np.float64]:
        """Scores of rows: of the host's representations if it answers, else of the guest's own."""
        u = answers[0] if answers else represent_part(part, x)
        return np.asarray(u @ np.asarray(part["phi"]).T)

    @classmethod
    def own_margins(cls, part: Part, guest_part: Part, x: NDArray[Any]) -> NDArray[np.float64]:
        """Scores of the host's rows, under the guest's directions."""
        return np.asarray(represent_part(part, x) @ np.asarray(guest_part["phi"]).T)

    async def predict_guest(
        self, part: Part, x: NDArray[Any], peers: Peers, hosts: Sequence[str], *, secret: Secret
    ) -> NDArray[Any]:
        """The guest's role when the parties predict: products of its directions with the host's representations, which it does not see unless they are plain."""
        pair = await begin_later(part, peers.channel(ANSWERS), hosts[0], secret, first=True)
        found: NDArray[Any] = await pair.take_rows(np.asarray(part["phi"]).T, len(x), 1.0)
        return found

    async def serve_guest(self, part: Part, peers: Peers, host: str, rows: int, *, secret: Secret) -> None:
        """The guest's role when a host predicts rows of its own: give the directions."""
        pair = await begin_later(part, peers.channel(ANSWERS), host, secret, first=True)
        await pair.give(np.asarray(part["phi"]), rows)

    async def serve_host(
        self, part: Part, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret
    ) -> NDArray[Any]:
        """The host's role when it predicts rows of its own: products of their representations with the directions, which it does not see unless they are plain."""
        pair, u = await begin_later(part, peers.channel(ANSWERS), guest, secret, first=False), represent_part(part, x)
        found: NDArray[Any] = await pair.take(np.broadcast_to(u.T, (int(part["outputs"]), *u.T.shape)), 1.0)
        return found.T
