from .learn.aggregation.base import Aggregation as Aggregation
from .learn.aggregation.base import EqualWeights as EqualWeights
from .learn.aggregation.base import KeepGlobal as KeepGlobal
from .learn.aggregation.base import Renormalised as Renormalised
from .learn.aggregation.base import Rescaled as Rescaled
from .learn.aggregation.inverse import InverseProbability as InverseProbability
from .learn.aggregation.keep_local import KeepLocal as KeepLocal
from .learn.aggregation.valued import Valued as Valued
