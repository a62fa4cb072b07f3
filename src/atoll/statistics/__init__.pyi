from .aggregates.drift import Drift as Drift
from .aggregates.moments import CentralMoments as CentralMoments
from .aggregates.sketch import Sketch as Sketch
from .job import Statistics as Statistics
from .summary import BinCounts as BinCounts
from .summary import ColumnSummary as ColumnSummary
from .summary import RowsSummary as RowsSummary
from .summary import Summary as Summary
