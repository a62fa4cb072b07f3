"""Mixing through a server that sees ciphertexts only: the weighted mean of all nodes' states.

===========  ====================================================================  ==========================================
superstep    the party                                                             the server gets
===========  ====================================================================  ==========================================
keys         *keeper*, the first node of the round: makes a pair of keys, and      nothing
             sends both to every node in sealed letters
seal         *node of the round*: encrypts its state times its rows, and its rows  a ciphertext
take         *every node*: gets the ciphertext of the sum, opens it, divides, and  nothing
             continues from the mean
===========  ====================================================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import DataError, PolicyError, QuorumError
from atoll.core.requests.task import Task
from atoll.secure.encrypted.agreement import EncryptedAgreement
from atoll.secure.encrypted.lanes import numbers_of, words_of
from atoll.secure.words import form_of

from ..shared import Share, shared, with_shared

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.secure.encrypted import Scheme
    from atoll.secure.words import FixedPoint

__all__ = ["BlindMixer"]


@dataclass(frozen=True, eq=False)
class BlindMixer:
    """Mixes ``island.state`` of all nodes; see `atoll.learn.topology.mixer.Mixer` for the one that sends letters to neighbours.

    Attributes:
        names: names of the whole population.
        scheme: of encryption.
        codec: how numbers become words.
        least: smallest number of nodes in a sum.
        begin: ``(node or None, key of the first model) -> node``.
        share: which part of the state to mix.
    """

    names: Sequence[str]
    scheme: Scheme
    codec: FixedPoint
    least: int
    begin: Any
    share: Share = "state"

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks of the supersteps."""
        return self.keys, self.seal, self.take

    @property
    def keys(self) -> Task:
        """Make keys for a round, and send them to the other nodes."""
        return Task("atoll.learn.topology:blind_keys", self._keys)

    @property
    def seal(self) -> Task:
        """Reply with the encrypted state."""
        return Task("atoll.learn.topology:blind_seal", self._seal)

    @property
    def take(self) -> Task:
        """Continue from the mean."""
        return Task("atoll.learn.topology:blind_take", self._take)

    def agreement(self, names: Sequence[str]) -> EncryptedAgreement:
        """Return the terms of a round's sum."""
        return EncryptedAgreement(tuple(names), self.scheme, self.least, 0, self.codec)

    async def mix(self, fed: Federation, nodes: Parties, everyone: Parties, number: int, init: int) -> Parties:
        """Run the supersteps; return the nodes that continue from the mean.

        Args:
            fed: the federation.
            nodes: the nodes of the round.
            everyone: all nodes, which take the mean.
            number: the round.
            init: key of the first model.

        Raises:
            QuorumError: fewer than ``least`` nodes have sent ciphertexts.
        """
        if len(nodes) < self.least:
            raise QuorumError(f"{len(nodes)} nodes, fewer than {self.least}", where="ServerBlind", remedy="invite more")
        agreed = self.agreement(nodes.names).message()
        made = await fed.exchange(nodes[:1], self.keys, {"to": list(everyone.names)}, at=(number, "keys"))
        told = {"agreed": agreed, "init": init}
        sent = await fed.exchange(nodes, self.seal, told, mail=made.mail, at=(number, "seal"), quorum=self.least)
        form, adder, kept = sent.values[0]["form"], None, []
        terms = EncryptedAgreement.of(agreed, real=False)
        layout = terms.layout(form)
        arrays = [each for lane in terms.lanes(layout) for each in lane.form]
        for name, reply in sent.by_name().items():
            if reply["form"] != form:
                raise DataError(
                    "a state of another form than the others'", where=name, remedy="use one model everywhere"
                )
            adder = adder or self.scheme.adder(reply["public"], arrays)
            adder.add(np.ascontiguousarray(reply["sealed"]).view(np.uint8))
            kept.append(name)
        summed = {"sealed": None if adder is None else adder.sealed(), "form": form, "n": len(kept)}
        taken = await fed.exchange(
            everyone, self.take, {**told, **summed}, mail=made.mail, at=(number, "take"), quorum=0
        )
        return taken.senders

    # ------------------------------------------------------------------ at the nodes

    def _keys(self, island: Island, message: Tree) -> Tree:
        public, private = self.scheme.make_keys(island.secret)
        for name in message["to"]:
            island.post(name, {"public": public, "private": private})
        return {}

    def _seal(self, island: Island, message: Tree) -> Tree:
        agreed = EncryptedAgreement.of(message["agreed"], real=island.sealing.real)
        pair, node = self._pair(island), self.begin(island.state, message)
        totals = {"node": Mean(shared(node, self.share), examples=float(len(island.data))).total()}
        layout = agreed.layout(form_of(totals))
        lanes = agreed.lanes(layout)
        arrays = [each for lane in lanes for each in lane.form]
        numbers = numbers_of(lanes, layout.encode(totals, island.name))
        sealed = agreed.scheme.encrypt(pair["public"], numbers, arrays, island.secret)
        island.state = {**node, "keys": pair}
        return {"sealed": sealed, "form": layout.form, "public": pair["public"]}

    def _take(self, island: Island, message: Tree) -> Tree:
        agreed = EncryptedAgreement.of(message["agreed"], real=island.sealing.real)
        node = dict(self.begin(island.state, message))
        pair = node.pop("keys", None) or self._pair(island)
        n = int(message["n"])
        if not self.least <= n <= len(agreed.names):
            raise PolicyError(f"a sum of {n} nodes", where="ServerBlind", remedy="look at the server")
        layout = agreed.layout(message["form"])
        lanes = agreed.lanes(layout)
        sums = agreed.scheme.decrypt(pair["private"], message["sealed"], [each for lane in lanes for each in lane.form])
        mean = layout.decode(words_of(lanes, sums, n), n).totals["node"].result()
        island.state = with_shared(node, mean, self.share)
        return {}

    @staticmethod
    def _pair(island: Island) -> Tree:
        """The keys in the keeper's letter."""
        letters = list(island.inbox.values())
        if len(letters) != 1 or set(letters[0]) != {"public", "private"}:
            raise PolicyError(
                "no keys for this round", where=island.name, remedy="look at the server: it left out a letter"
            )
        return letters[0]
