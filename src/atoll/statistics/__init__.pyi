from .histogram import Drift as Drift
from .job import Statistics as Statistics
from .moments import CentralMoments as CentralMoments
from .sketch import Sketch as Sketch
from .summary import BinCounts as BinCounts
from .summary import ColumnSummary as ColumnSummary
from .summary import RowsSummary as RowsSummary
from .summary import Summary as Summary
