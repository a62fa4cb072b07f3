"""Topologies: which parties exchange messages in a training, for any algorithm."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Star, Topology
    from .clustered import CFL
    from .cooperative import Cooperative
    from .cyclic import Cyclic
    from .def_kt import DefKT
    from .gossip import Gossip
    from .graphs import (
        Complete,
        EdgeList,
        ErdosRenyi,
        Expander,
        Geometric,
        Graph,
        Membership,
        Ring,
        StarGraph,
        TimeVarying,
        Torus,
    )
    from .hierarchical import ClusteredGossip, Hierarchical
    from .mixing import check_matrix, components, contraction, metropolis
    from .random_walk import RandomWalk
    from .server_blind import ServerBlind
    from .swarm import Swarm
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "base": (
                "Star",
                "Topology",
            ),
            "clustered": ("CFL",),
            "cooperative": ("Cooperative",),
            "cyclic": ("Cyclic",),
            "def_kt": ("DefKT",),
            "gossip": ("Gossip",),
            "graphs": (
                "Complete",
                "EdgeList",
                "ErdosRenyi",
                "Expander",
                "Geometric",
                "Graph",
                "Membership",
                "Ring",
                "StarGraph",
                "TimeVarying",
                "Torus",
            ),
            "hierarchical": (
                "ClusteredGossip",
                "Hierarchical",
            ),
            "mixing": (
                "check_matrix",
                "components",
                "contraction",
                "metropolis",
            ),
            "random_walk": ("RandomWalk",),
            "server_blind": ("ServerBlind",),
            "swarm": ("Swarm",),
        },
    )

__all__ = [
    "CFL",
    "ClusteredGossip",
    "Complete",
    "Cooperative",
    "Cyclic",
    "DefKT",
    "EdgeList",
    "ErdosRenyi",
    "Expander",
    "Geometric",
    "Gossip",
    "Graph",
    "Hierarchical",
    "Membership",
    "RandomWalk",
    "Ring",
    "ServerBlind",
    "Star",
    "StarGraph",
    "Swarm",
    "TimeVarying",
    "Topology",
    "Torus",
    "check_matrix",
    "components",
    "contraction",
    "metropolis",
]
