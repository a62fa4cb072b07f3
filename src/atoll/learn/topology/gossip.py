"""Decentralised training without a server: every node runs the algorithm itself, and neighbours mix their states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.core.capability import RELEASED_ONLY, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.requests.stage import Fitting, Stage, WithMemory

from ..capabilities import EVERYONE
from .base import Decentralised, refuse
from .graphs import Graph, Membership, Ring
from .mixing import Mixer, Share
from .nodes import Nodes

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["Gossip"]


@dataclass(frozen=True, kw_only=True)
class Gossip(Decentralised):
    """In each round, every node takes its local steps, then mixes ``mixing`` times with its neighbours, ``X <- W X``.

    It works for every algorithm with a server part that can run at a single client. A node starts from its own broadcast and folds its own reply. Then
    the floating-point leaves of the server's state are mixed (parameters, momentum, control variates: with SCAFFOLD, this is gradient
    tracking). Gossip refuses algorithms that need all clients in each round (``Algorithm.pooled``), such as GIANT, Mime or accelerated ADMM. Metropolis
    weights keep the mean over the nodes exactly, and every node counts equally: the objective is ``(1/N) sum_k F_k``, whatever the clients' sizes. On the
    complete graph, it is federated averaging with equal weights.

    The global model is the mean of the nodes; ``consensus`` in the history is ``max_i ||x_i - mean||``. With a selection rule, the invited nodes
    are awake in a round and mix on a graph among themselves.

    Liu et al. 2022 (local steps and several rounds of mixing); with ``compress``, CHOCO gossip (Koloskova, Stich, Jaggi 2019); with an
    algorithm of one step and ``mixing=Q`` in addition, DeLi-CoCo (Hashemi et al. 2022).

    Attributes:
        graph: the neighbours of each node.
        mixing: mixing steps per round.
        compress: a compressor; it needs a small enough ``gamma``.
        gamma: length of a compressed step, in (0, 1].
        share: mix the server's whole state, or only the parameters. A compressed mix is not safe for values that must stay positive (second moments).
        members: which nodes take part when; by default all, always.
    """

    graph: Graph = field(default_factory=Ring)
    mixing: int = 1
    compress: Stage | None = None
    gamma: float = 1.0
    share: Share = "state"
    members: Membership | None = None

    def __post_init__(self) -> None:
        if self.mixing < 1:
            raise ConfigError(f"mixing={self.mixing}", where="Gossip", remedy="use at least 1 step")
        if not 0.0 < self.gamma <= 1.0:
            raise ConfigError(f"gamma={self.gamma}", where="Gossip", remedy="use a number in (0, 1]")
        if self.gamma != 1.0 and self.compress is None:
            raise ConfigError(
                f"gamma={self.gamma} without a compressor", where="Gossip", remedy="give compress=, or 1.0"
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs; if messages are compressed, also the same neighbours in every round."""
        same = Need(
            EVERYONE,
            "keeps copies of neighbours, which must be the same in every round if messages are compressed",
            "compress=None",
        )
        return super().needs if self.compress is None else (*super().needs, same)

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and only released content: nodes send their server's state, folded from released replies."""
        return super().offers | {RELEASED_ONLY}

    def check(self, context: Context) -> None:
        """Refuse compression if public copies would become stale."""
        if self.compress is None:
            return
        if facet(self.compress, Fitting).fits or self.compress.on != "value":
            why = f"{type(self.compress).__name__} has parameters that follow sums, and neighbours see no sum"
            refuse(self, why, "topology", "use a compressor such as QSGD() or TopK()")
        if facet(self.compress, WithMemory).remembers:
            why = "remembers what it left out, which the public copies of CHOCO already do"
            refuse(self, f"{type(self.compress).__name__} {why}", "topology", "use the stage inside it")
        if self.graph.changes or self.members is not None:
            why = "every node keeps copies of its neighbours, which must be the same in every round"
            refuse(
                self,
                f"compressed gossip on a changing set of neighbours; {why}",
                "topology",
                "use a fixed graph and all clients",
            )

    def course(self, context: Context) -> Nodes:
        """Return rounds of local steps and mixing."""
        mixer = Mixer(self.graph, context.clients.names, self.mixing, self.share, self.compress, self.gamma)
        return Nodes(context, mixer, self.members)
