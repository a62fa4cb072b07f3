"""The models of `atoll.truth`: how the truth follows from what workers say, and how reliable each is.

`TruthModel` is their contract. `MajorityVote`, `WeightedSum`, `Logistic`, `OneCoin` and `TDH` read classes and claims, `DawidSkene`, `GLAD` and `MACE` classes, `CRH`, `MeanReport` and `MedianReport` numbers.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
