from .hufu import Hufu as Hufu
from .saqe import Saqe as Saqe
from .shrinkwrap import Shrinkwrap as Shrinkwrap
from .smcql import Smcql as Smcql
from .strategy import QueryAnswer as QueryAnswer
from .strategy import Strategy as Strategy
from .strategy import choose_strategy as choose_strategy
from .sums import MaskedSums as MaskedSums
