from .registry import QueryRule as QueryRule
from .registry import Rewriting as Rewriting
from .registry import RuleCall as RuleCall
from .registry import RuleSource as RuleSource
from .registry import known_rules as known_rules
from .registry import rule as rule
from .skyline import write_skyline as write_skyline
from .subgraph import write_subgraph as write_subgraph
