"""Learning without full labels: rows at clients, labels few, elsewhere or wrong.

Four nouns. A *view* is what an augmentation makes of a row and a key (`atoll.labels.views`). An *objective* is a loss of one example, from outputs on its
views (`atoll.labels.objectives`). A *stream* is a named part of the model with a rule for how it learns and travels (`atoll.labels.streams`). A *method* is
objectives, streams and a fold around any algorithm: ``Training(model=net, algorithm=FixMatch(tau=0.95))``, or ``FixMatch(base=FedProx(mu=0.1))``.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, needs={"torch": "torch"})
