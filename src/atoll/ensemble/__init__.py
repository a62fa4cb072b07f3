"""Ensembles of small federated models: each user trains one, the server joins all.

Four nouns. *Clusters* are a rule that gives each user a leaf, by declared public columns alone. A *leaf* is the training of one cluster's model; those of one
architecture are one block. A *way to join* makes one answer of the leaves' answers: a mean, a network, a gate that sees the cluster. *Opt-in rows* are labels
that some users gave to the server, on which ways to join are learned.

Public columns give clusters; clients are told their leaf and train it; the server joins the leaves on opt-in rows; rows of tables are answered by all leaves.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, needs={"torch": "torch"})
