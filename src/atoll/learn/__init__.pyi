from .aggregation.base import Aggregation as Aggregation
from .algorithm import Algorithm as Algorithm
from .algorithm import LocalWork as LocalWork
from .algorithm import RoundInfo as RoundInfo
from .prepared import Trained as Trained
from .round.evaluation import Evaluation as Evaluation
from .selection.base import Selection as Selection
from .training import Training as Training
