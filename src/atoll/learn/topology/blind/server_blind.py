"""The topology of a server that adds up what it cannot read, and its rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.capability import RELEASED_ONLY, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.requests.task import Task
from atoll.secure.encrypted import scheme_named
from atoll.secure.words import FixedPoint

from ...capabilities import AFFINE_FOLD, BY_EXAMPLES
from ...server.state import global_model
from ..base import refuse
from ..decentralised import Decentralised
from ..graphs import Complete
from ..mixer import Mixer
from ..nodes import Nodes
from .mixer import BlindMixer

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties

    from ...context import Context

__all__ = ["MODEL", "ServerBlind"]

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
        self.blind = BlindMixer(context.clients.names, scheme, topology.codec, topology.least, self._begun)

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
        measured = evaluation.clients != 0 or evaluation.cross_site
        if fed.live and (measured or (evaluation.server and self.context.test is not None)):
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

    async def mixed(self, fed: Federation, nodes: Parties, state: Tree, number: int) -> tuple[Parties, int]:
        """Mix through the server."""
        done = await self.blind.mix(fed, nodes, self.there(fed, number), number, state["init"])
        return done, 0
