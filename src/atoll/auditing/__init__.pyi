from .run import Canaries as Canaries
from .run import Planted as Planted
from .run import audit as audit
from .run import claimed_epsilon as claimed_epsilon
