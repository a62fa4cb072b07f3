"""Encrypted matching as a protocol: clients, a server and a key holder find the divergences of the clients' profiles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from ..algorithms import FedAvg
from ..learner import LearnerSettings, adapt
from ..profiles import FLOOR
from ..selection.base import Inquired
from ..selection.sealed import HOLDER, SealedProfiles

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["EncryptedMatching", "Matched"]


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
