"""The topology of a server that adds up what it cannot read, and its rounds.

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.capability import RELEASED_ONLY, Capability, Need
from atoll.core.errors import ConfigError, DataError, PolicyError, QuorumError
from atoll.core.requests.task import Task
from atoll.secure.encrypted import scheme_named
from atoll.secure.encrypted.agreement import EncryptedAgreement, numbers_of, words_of
from atoll.secure.words import FixedPoint, form_of

from ..capabilities import AFFINE_FOLD, BY_EXAMPLES
from ..round.state import global_model
from .base import Decentralised, refuse
from .graphs import Complete
from .mixing import Mixer, Share, pick_shared, with_shared
from .nodes import Nodes

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.secure.encrypted import Scheme

    from ..context import Context

__all__ = ["ServerBlind"]


@dataclass(frozen=True, eq=False)
class BlindMixer:
    """Mixes ``island.state`` of all nodes; see `atoll.learn.topology.mixing.Mixer` for the one that sends letters to neighbours.

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
        totals = {"node": Mean(pick_shared(node, self.share), examples=float(len(island.data))).total()}
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


# ---------------------------------------------------------------- the topology of a server


MODEL = "model"
"""The name of the result that stays at each site."""


@dataclass(frozen=True, kw_only=True)
class ServerBlind(Decentralised):
    """Federated averaging through a server that sees neither models nor updates nor metrics: only the sites have the key.

    In each round every site of the cohort runs the algorithm on its own, folds its own reply, and encrypts the state that it would have as a server, times
    its rows. The server adds ciphertexts. All sites open the sum and divide. For an algorithm whose fold is *affine*,

        ``fold(S, sum_k w_k u_k / sum_k w_k) = sum_k w_k fold(S, u_k) / sum_k w_k``,

    this is the training with a server that sees everything, to the rounding of the codec: FedAvg, FedProx, FedAvgM, SCAFFOLD with everyone. Atoll tries the
    fold out, and refuses other algorithms (second moments, signs, medians).

    The first site of a round makes keys for it, and sends both to the other sites in sealed letters. A site that is lost when the mean is handed out keeps its
    last state until the next round; with none lost then, all sites always have the same state.

    Between organisations the server ends without a model: each site has it as the named result ``model``. A simulation's observer sees it, so that you can
    evaluate it.

    Attributes:
        scheme: ``"bfv"``, ``"ckks"``, ``"paillier"`` or ``"batchcrypt"``, or a scheme with settings.
        codec: how numbers become words; by default 64 bits with a unit of ``2^-24``.
        least: smallest number of sites in a sum.

    Raises:
        ConfigError: a setting makes no sense.
    """

    scheme: Any = "bfv"
    codec: FixedPoint = field(default_factory=FixedPoint)
    least: int = 2

    def __post_init__(self) -> None:
        scheme_named(self.scheme)
        if self.least < 2:
            raise ConfigError(
                f"least={self.least}", where="ServerBlind", remedy="use 2 or more: a sum of one is its state"
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, an affine fold, and means weighted by rows."""
        return (
            *super().needs,
            Need(AFFINE_FOLD, "averages states that sites have folded", "Star()"),
            Need(BY_EXAMPLES, "weights states by rows", "Star()"),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and only released content: sites send their server's state, folded from released replies."""
        return super().offers | {RELEASED_ONLY}

    def check(self, context: Context) -> None:
        """Refuse cohorts that are too small, and partial ones if the fold looks at their share of the population."""
        scheme_named(self.scheme).require()
        if context.cohort < self.least:
            refuse(self, f"rounds of {context.cohort} sites, fewer than {self.least}", "selection", "invite more")

    def course(self, context: Context) -> BlindRounds:
        """Return rounds of local steps, encrypted sums and a common mean."""
        return BlindRounds(context, self)


class BlindRounds(Nodes):
    """The rounds: those of nodes, mixed through the server."""

    def __init__(self, context: Context, topology: ServerBlind) -> None:
        super().__init__(context, Mixer(Complete(), context.clients.names))
        self.topology = topology
        scheme = scheme_named(topology.scheme)
        self.blind = BlindMixer(context.clients.names, scheme, topology.codec, topology.least, self._begin_node)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks of the sites."""
        return (self.local, self.peek, self.distance, self.keep, *self.blind.tasks)

    @property
    def keep(self) -> Task:
        """Leave the model at the site."""
        return Task("atoll.learn.topology:blind_keep", self._keep)

    async def _local(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        """The round of a site; its metrics stay with it."""
        await super()._local(island, message)
        return {"updated": Mean(np.float64(1.0), role="side")}

    def _keep(self, island: Island, message: Tree) -> Tree:
        island.leave(MODEL, global_model(self.at_node(island, message)))
        return {}

    def initial(self, fed: Federation) -> Tree:
        """Start as nodes do.

        Raises:
            CompositionError: something between organisations would measure the model at the server, or send it to the clients.
        """
        evaluation = self.context.evaluation
        if fed.live and (evaluation.measures_sites or (evaluation.server and self.context.test is not None)):
            refuse(
                self.topology,
                "the server has no model to evaluate, nor to send to clients",
                "evaluation",
                f"use Evaluation(server=False, clients=0, cross_site=False), and evaluate the result {MODEL!r} at each site",
            )
        return super().initial(fed)

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Between organisations, leave the model at the sites, and return none. In a simulation, an observer sees it."""
        if not watch.live:
            return await super().model(watch, state, number)
        await watch.ask_all(
            self.there(watch, number), self.keep, {"init": state["init"]}, at=(number, "keep"), quorum=0
        )
        return {}, {}

    async def mix_nodes(self, fed: Federation, nodes: Parties, state: Tree, number: int) -> tuple[Parties, int]:
        """Mix through the server."""
        done = await self.blind.mix(fed, nodes, self.there(fed, number), number, state["init"])
        return done, 0
