"""Encrypted matching as a protocol: clients, a server and a key holder find the divergences of the clients' profiles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, PolicyError
from atoll.core.task import Task, task
from atoll.core.tree import Tree

from .algorithms import FedAvg
from .learner import LearnerSettings, adapt
from .profiles import FLOOR
from .selection.encrypted import encrypt_means, make_keys, masked_terms, open_sum, plain_part, require_public

if TYPE_CHECKING:
    from atoll.core.federation import Federation
    from atoll.core.island import Island

    from .learner import Learner

__all__ = ["EncryptedMatching", "Matched"]


@dataclass(frozen=True)
class Matched:
    """What the server learns.

    Attributes:
        clients: names of those who answered.
        divergences: of each, ``(clients,)``; ``inf`` of one without rows.
        error: bound on what rounding adds to each; the scheme's own noise is smaller.
    """

    clients: list[str]
    divergences: Any
    error: float


@dataclass(frozen=True, kw_only=True)
class EncryptedMatching:
    """Divergences of all clients' profiles under one model, with their means encrypted; see `atoll.learn.selection.encrypted` for who sees what.

    One survey, for three kinds of parties: the clients, the server (whose own data are the federated data set's ``test``) and a key holder, who is
    neither. A reply is a ciphertext of about 330 kB in place of ``4 q`` bytes of means.

    Attributes:
        model: a PyTorch module, or what makes one.
        layer: whose elements are profiled; see ``FedProf``.
        holder: name of the party that holds the key.
        params: the model's parameters; by default its initial ones.
        mask_bits: size of the masks that hide single terms from the key holder.
        digits: decimals of a sum that the key holder tells.
        floor: least variance.

    Example:
        >>> import atoll
        >>> islands = atoll.data.iid(atoll.data.digits(), parties=5, seed=0)
        >>> matching = EncryptedMatching(model=atoll.models.mlp(64, 10))
        >>> found = atoll.simulate(matching.program(islands), islands)  # doctest: +SKIP
    """

    citation: ClassVar[str] = "Wu 2021, Towards Efficient Horizontal Federated Learning, appendix B"
    model: Any
    layer: str = "auto"
    holder: str = "key-holder"
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
        """The program of this survey on a federated data set.

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
        sealed = _sealed(learner, self.layer)

        async def program(fed: Federation) -> Matched:
            return await _matched(fed, self, learner, sealed, data.test)

        program.tasks = (sealed,)  # type: ignore[attr-defined]
        program.others = {self.holder: "key-holder"}  # type: ignore[attr-defined]
        return program


@task
def hold_keys(island: Island, message: Tree) -> Any:
    """At the key holder: make the keys, keep the secret one, tell the public one."""
    del message
    secret, public = make_keys()
    island.secret.drawn = True  # the library draws from the system's entropy: this reply cannot be made again
    island.state = {"secret": secret}
    return public


@task
def open_sums(island: Island, message: Tree) -> Any:
    """At the key holder: the sums of masked terms."""
    key = island.state["secret"]
    return np.array([open_sum(key, sealed, message["digits"]) for sealed in message["sealed"]])


def _sealed(learner: Learner, layer: str) -> Task:
    def profile(island: Island, message: Tree) -> Tree:
        """A client's profile: variances in the clear, means encrypted."""
        told = learner.report_of(message["params"], island.data, {"profile": {"layer": layer}})["profile"]
        island.secret.drawn = True
        return {"mean": encrypt_means(message["key"], told["mean"]), "var": told["var"], "rows": len(island.data)}

    return Task("atoll.learn.matching:profile", profile)


async def _matched(fed: Federation, plan: EncryptedMatching, learner: Learner, sealed: Task, test: Any) -> Matched:
    if plan.holder not in fed.world.roster.others:
        raise PolicyError(
            f"there is no party {plan.holder!r} apart from the clients to hold the key",
            where="EncryptedMatching.holder",
            remedy=f"add one: Roster(names, others={{{plan.holder!r}: 'key-holder'}}); the server must not hold it",
        )
    key = await fed.ask(plan.holder, hold_keys, at="keys")
    require_public(key, "the server")
    params = learner.init(fed.rng.child("init")) if plan.params is None else plan.params
    replies = await fed.ask_all(fed.parties, sealed, {"params": params, "key": key}, at="profiles")
    own = learner.report_of(params, test, {"profile": {"layer": plan.layer}})["profile"]
    terms = [
        masked_terms(key, told["mean"], own, mask_bits=plan.mask_bits, floor=plan.floor) for told in replies.values
    ]
    message = {"sealed": [sealed for sealed, _ in terms], "digits": plan.digits}
    sums = await fed.ask(plan.holder, open_sums, message, at="sums")
    scales = np.array([scale for _, scale in terms])
    parts = np.array([plain_part(told["var"], own["var"], plan.floor) for told in replies.values])
    found = np.maximum(parts + scales * sums, 0.0)
    rows = np.array([told["rows"] for told in replies.values])
    return Matched(
        list(replies.senders.names), np.where(rows > 0, found, np.inf), float(scales.max() * 0.5 * 10.0**-plan.digits)
    )
