"""What the methods of transfer share: the loss that they fit, how their roles begin, descend and save, and how two parties multiply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import CompositionError, ConfigError
from atoll.secure.encrypted import Paillier
from atoll.trees.objectives import SQUARED, TreeLoss

from ..model import ANSWERS, Part, Save, VerticalModel, require
from .products import Pair, begin_later, begin_pair
from .representation import Representation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

__all__ = ["PairModel", "TransferModel", "read_count", "represent_part"]


class TransferModel(VerticalModel):
    """A vertical model of classes that descends in steps, and that also reads the rows that a party has alone.

    Attributes:
        width: numbers in the common space.
        steps: steps of gradient descent.
        rate: learning rate.
        momentum: of gradient descent.
        seed: of the first weights.
    """

    precision: ClassVar[type[np.floating[Any]]] = np.float64
    reads_others: ClassVar[bool] = True

    width: int
    steps: int
    rate: float
    momentum: float
    seed: int

    def require_bounds(self, bounds: Sequence[tuple[str, bool, str]]) -> None:
        """Refuse settings out of bounds: name, whether it is good, and the remedy; those that all methods have are among them.

        Raises:
            ConfigError: one is.
        """
        common = (
            ("steps", self.steps >= 1, "use at least 1 step"),
            ("rate", 0 < self.rate < np.inf, "use a finite number above 0"),
            ("momentum", 0 <= self.momentum < 1, "use a number of at least 0 and below 1"),
            ("seed", self.seed >= 0, "use a whole number >= 0"),
        )
        for name, good, remedy in (*bounds, *common):
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r}", where=type(self).__name__, remedy=remedy)

    def fit_objective(self, objective: TreeLoss) -> TreeLoss:
        """The loss of classes.

        Raises:
            ConfigError: the labels are numbers.
        """
        if objective.name == SQUARED:
            raise ConfigError(
                "labels that are numbers",
                where=type(self).__name__,
                remedy="use classes as labels, or task='binary' or 'multiclass'",
            )
        return objective

    def is_kept(self, step: int) -> bool:
        """Whether all roles save after so many steps: after every tenth."""
        return step % 10 == 0 or step == self.steps

    async def descend(self, begun: int, save: Save | None, kept: Callable[[], Mapping[str, Any]]) -> AsyncIterator[int]:
        """The steps that are left, each followed by a checkpoint where one is due: the frame of every role.

        Args:
            begun: steps done before.
            save: see `VerticalModel.train_guest`.
            kept: what a resumed role needs, beside how many steps are done.
        """
        for step in range(begun, self.steps):
            yield step
            if save is not None and self.is_kept(step + 1):
                await save({**kept(), "step": step + 1})


class PairModel(TransferModel):
    """A `TransferModel` of two parties that tell each other nothing but products, see `Pair`.

    Attributes:
        security: ``paillier``, ``shared`` or ``none``.
        cipher: the encryption of ``paillier``.
    """

    cipher: Paillier

    def require_security(self) -> None:
        """Refuse a protocol that there is not, and a cipher where none is used.

        Raises:
            ConfigError: ``security`` is unknown.
            CompositionError: a cipher is set.
        """
        if self.security not in ("paillier", "shared", "none"):
            raise ConfigError(f"security={self.security!r}", where=type(self).__name__, remedy="use 'paillier', 'shared' or 'none'")  # fmt: skip
        if self.security != "paillier" and self.cipher != Paillier():
            raise CompositionError(
                f"cipher with security={self.security!r}", where=type(self).__name__, remedy="leave cipher out"
            )

    def require_host(self, hosts: Sequence[str]) -> str:
        """The one host.

        Raises:
            CompositionError: there are others.
        """
        if len(hosts) != 1:
            raise CompositionError(f"{len(hosts)} hosts", where=type(self).__name__, remedy="use one host")
        return hosts[0]

    def is_kept(self, step: int) -> bool:
        """Whether both roles save after so many steps: after each that takes long."""
        return self.security != "none" or super().is_kept(step)

    async def open_pair(self, peers: Peers, peer: str, secret: Secret, state: Any, *, first: bool) -> Pair:
        """One side of the products; ``state`` is what it captured, if it goes on."""
        return await begin_pair(self.security, peers, peer, secret, first=first, cipher=self.cipher, state=state)

    @property
    def protocol(self) -> dict[str, Any]:
        """How a saved part answers later."""
        return {"security": self.security, "key_bits": self.cipher.key_bits, "insecure": self.cipher.insecure}

    async def predict_host(self, part: Part, x: NDArray[Any], peers: Peers, guest: str, *, secret: Secret) -> None:
        """The host's role when the parties predict: let the guest multiply the representations of its rows, which it does not see unless they are plain."""
        pair = await begin_later(part, peers.channel(ANSWERS), guest, secret, first=False)
        await pair.give_rows(represent_part(part, x), int(part["outputs"]))


def represent_part(part: Part, x: NDArray[Any]) -> NDArray[np.float64]:
    """What a party's trained network makes of rows."""
    net = Representation.unpacked(part["net"])
    return np.asarray(net.represent(net.read(x)))


def read_count(told: Any, name: str, what: str, sender: str, where: str) -> int:
    """A number of columns or classes in what another party says at the beginning.

    Raises:
        MessageError: it says none.
    """
    found = told.get(name) if isinstance(told, Mapping) else None
    require(type(found) is int and 1 <= found <= 1 << 20, f"{sender!r} does not say how many {what}", where)
    return int(found)  # type: ignore[arg-type]
