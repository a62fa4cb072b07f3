from .features import RandomFeatures as RandomFeatures
from .greedy import ChosenPoints as ChosenPoints
from .greedy import choose_points as choose_points
from .greedy import discrepancy as discrepancy
from .mwem import Mwem as Mwem
from .program import DataSummary as DataSummary
from .program import Points as Points
