from .rearrangement import Rearrangement as Rearrangement
from .sorting import SortKey as SortKey
from .sorting import find_order as find_order
from .sorting import find_partition as find_partition
from .sorting import sort_by_network as sort_by_network
