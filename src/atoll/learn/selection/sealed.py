"""Encrypted matching: divergences of profiles with encrypted means, which only their owners see; `atoll.secure.encrypted.squares` says what each party has and sees.

W. Wu, "Towards Efficient Horizontal Federated Learning", 2021, appendix B, variant 2: variances travel in the clear, means encrypted. With the client's
``mu, v`` and the server's ``mu*, v*``,

    ``div = (1/q) sum_i [ln(v*_i / v_i) + v_i / v*_i - 1] / 2  +  (1/q) sum_i (mu_i - mu*_i)^2 / (2 v*_i)``   (Eqs. B.2, B.3).

The first sum is plain; the second is computed on ciphertexts. The source does not say who holds the key: here, a party that is neither server nor client.

============  ===========================================  ==================================================
step          from, to                                     what is sent
============  ===========================================  ==================================================
``keys``      key holder to server, once                   the public key; the secret key stays at the holder
``profiles``  server to clients, and back                  public key, model; means encrypted, variances, rows
``sums``      server to key holder, and back               masked terms of every client; their rounded sums
============  ===========================================  ==================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import PolicyError
from atoll.core.requests.task import Task, Workload, task
from atoll.secure import (
    encrypt,
    encryption_key,
    make_keys,
    masked_squares,
    open_sum,
    require_library,
    require_public,
)

from ..profiles import FLOOR, mean_weights, plain_part
from .base import Inquired, Seen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties

    from ..learner import Learner

__all__ = ["HOLDER", "Divergences", "SealedProfiles"]

HOLDER = "key-holder"
_CIPHERTEXT = 332_000


@dataclass(frozen=True)
class Divergences:
    """What the server learns from the conversation.

    Attributes:
        parties: parties that answered.
        values: divergence of each party, ``(parties,)``; ``inf`` without rows.
        rows: number of rows of each party.
        error: bound on the rounding error of each value; the scheme's own noise is smaller.
    """

    parties: Parties
    values: NDArray[np.float64]
    rows: NDArray[np.float64]
    error: float


@task
def hold_keys(island: Island, message: Tree) -> Any:
    """At the key holder: make the keys, keep the secret key, return the public key."""
    del message
    secret, public = make_keys()
    island.secret.drawn = True  # the library draws from the system's entropy: this reply cannot be made again
    island.state = {"secret": secret}
    return public


@task
def open_sums(island: Island, message: Tree) -> Any:
    """At the key holder: return the sums of masked terms."""
    key = island.state["secret"]
    return np.array([open_sum(key, sealed, message["digits"]) for sealed in message["sealed"]])


@dataclass(frozen=True)
class SealedProfiles:
    """An `Inquiry`: every client's divergence from the server's profile of the same model, with the means encrypted.

    Its memory is the public key, ``"key"`` (bytes; empty before the first conversation).

    Attributes:
        layer: the layer to profile; see ``FedProf``.
        holder: name of the party that holds the secret key: neither the server nor a client.
        mask_bits: size of the masks that hide single terms from the key holder.
        digits: decimals of a sum that the key holder reveals.
        floor: the smallest variance.
    """

    layer: str = "auto"
    holder: str = HOLDER
    mask_bits: int = 16
    digits: int = 4
    floor: float = FLOOR

    # ------------------------------------------------------------------ as a rule's inquiry

    @property
    def others(self) -> Mapping[str, str]:
        """The key holder."""
        return {self.holder: "key-holder"}

    def check(self, learner: Learner) -> None:
        """Refuse a missing library, or a model without profiles.

        Raises:
            MissingExtraError: TenSEAL is not installed.
            CompositionError: the model has no profiles.
        """
        require_library()
        learner.check_reports({"profile": {"layer": self.layer}})

    def tasks(self, learner: Learner) -> tuple[Task, ...]:
        """Return the clients' task."""
        return (self.profiles(learner),)

    async def hold(
        self, fed: Federation, learner: Learner, rows: Any, asked: Inquired, memory: Tree
    ) -> tuple[Seen, Tree]:
        """Find the divergences of some clients, as reports ``"divergence"``."""
        self.require_holder(fed)
        own = self.own(learner, asked.model, rows)
        key = memory["key"] if len(memory["key"]) else await self.keys(fed, asked.round)
        found = await self.divergences(fed, self.profiles(learner), asked, key, own)
        told = {"divergence": found.values.tolist()}
        seconds = np.zeros(len(found.parties))
        seen = Seen(asked.round, asked.parties, found.parties, seconds, told, examples=found.rows)
        return seen, {**memory, "key": key}

    # ------------------------------------------------------------------ its steps

    def require_holder(self, fed: Federation) -> None:
        """Refuse a world without another party to hold the key.

        Raises:
            PolicyError: no such party exists.
        """
        if self.holder not in fed.world.roster.others:
            raise PolicyError(
                f"there is no party {self.holder!r} apart from the clients to hold the key",
                where="encrypted matching",
                remedy=f"add one: Roster(names, others={{{self.holder!r}: 'key-holder'}}); the server must not hold it",
            )

    def own(self, learner: Learner, model: Tree, rows: Any) -> Tree:
        """Return the server's profile of a model, from its own rows.

        Raises:
            DataError: the server has no rows.
        """
        return learner.report_of(model, rows, {"profile": {"layer": self.layer}})["profile"]

    def profiles(self, learner: Learner) -> Task:
        """Return the clients' task: send variances in the clear and means encrypted, after one pass over the rows."""

        def profile(island: Island, message: Tree) -> Tree:
            told = learner.report_of(message["params"], island.data, {"profile": {"layer": self.layer}})["profile"]
            island.secret.drawn = True
            return {"mean": encrypt(message["key"], told["mean"]), "var": told["var"], "rows": len(island.data)}

        def load(sizes: NDArray[np.int64], args: Any, message: Tree) -> Workload:
            del args, message
            return learner.report.of_sizes(sizes, {"reports": {"profile": None}})

        return Task("atoll.learn.selection.sealed:profile", profile, load=load, reply_bytes=_CIPHERTEXT)

    async def keys(self, fed: Federation, at: int) -> Any:
        """Return the public key of a new pair, made in a round."""
        key = await fed.ask(self.holder, hold_keys, at=(at, "keys"))
        require_public(key, "the server")
        return key

    async def divergences(self, fed: Federation, profiles: Task, asked: Inquired, key: Any, own: Tree) -> Divergences:
        """Ask clients for their profiles, and the key holder for the sums.

        Args:
            fed: the federation.
            profiles: the clients' task.
            asked: the parties to ask, and the model.
            key: the public key.
            own: the server's own profile of the model.
        """
        message = {"params": asked.model, "key": encryption_key(key)}
        new = {name: value for name, value in message.items() if name != "params" or not asked.known}
        down = np.full(len(asked.parties), M.nbytes(new))
        at, deadline = (asked.round, "replied" if asked.known else "survey"), asked.deadline
        replies = await fed.ask_all(
            asked.parties, profiles, message, at=(*at, "profiles"), quorum=0, deadline=deadline, down=down
        )
        if not len(replies.senders):
            return Divergences(replies.senders, np.zeros(0), np.zeros(0), 0.0)
        bits, floor = self.mask_bits, self.floor
        centre, weight = own["mean"], mean_weights(own["var"], floor)
        terms = [masked_squares(key, told["mean"], centre, weight, mask_bits=bits) for told in replies.values]
        opened = {"sealed": [sealed for sealed, _ in terms], "digits": self.digits}
        sums = await fed.ask(self.holder, open_sums, opened, at=(*at, "sums"))
        scales = np.array([scale for _, scale in terms])
        parts = np.array([plain_part(told["var"], own["var"], floor) for told in replies.values])
        rows = np.array([told["rows"] for told in replies.values], dtype=np.float64)
        values = np.where(rows > 0, np.maximum(parts + scales * sums, 0.0), np.inf)
        return Divergences(replies.senders, values, rows, float(scales.max() * 0.5 * 10.0**-self.digits))
