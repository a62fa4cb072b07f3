from .canaries import Canaries as Canaries
from .canaries import Planted as Planted
from .cost import CostPoint as CostPoint
from .cost import PrivacyCost as PrivacyCost
from .cost import privacy_cost as privacy_cost
from .run import audit as audit
from .run import claimed_epsilon as claimed_epsilon
