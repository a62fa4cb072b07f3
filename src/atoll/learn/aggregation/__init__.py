"""Aggregation operators: how the replies of a cohort represent the whole population.

With ``w(t-1)`` the model at the start of the round, ``S`` the clients that replied, ``U`` the population and ``n_k`` examples at client k
(W. Wu, "Towards Efficient Horizontal Federated Learning", 2021, section 2.3):

==================  ===========================================================  ==================
operator            next model                                                   source
==================  ===========================================================  ==================
``Renormalised``    ``sum_{k in S} n_k / (sum_{j in S} n_j) w_k``                Eq. 2.47
``EqualWeights``    ``sum_{k in S} 1/|S| w_k``                                   Eq. 2.47
``Rescaled``        ``sum_{k in S} (n_k/n) |U|/|S| w_k``                         Eq. 2.47
``KeepGlobal``      ``sum_{k in S} (n_k/n) w_k + sum_{k not in S} (n_k/n) w(t-1)``  Eq. 2.46
``KeepLocal``       ``sum_{k in U} (n_k/n) (k's newest model)``                  Eq. 2.45
==================  ===========================================================  ==================

``InverseProbability``, unbiased under any selection with known probabilities, is not from this source. Neither is ``Valued``: ``Renormalised`` plus the value of each client's contribution.

An operator acts on whatever replies an algorithm averages, so that it composes with every algorithm.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
