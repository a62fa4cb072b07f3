"""One model over columns that lie at several parties, for rows that they share.

Four nouns. A `PartyTable` is one party's columns, with keys. An **alignment** (`atoll.secure.psi`) finds the rows that all share and puts them in one order. A **model** (`VerticalModel`, such as `SecureBoost`)
has a role for the guest, who has the labels, and one for each host, and keeps a **part** at each party. `Vertical` is the job: table -> alignment -> the model's
session, a step a round -> parts. To predict, each host answers for all of its part, in one round trip, and the guest puts the answers together.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
