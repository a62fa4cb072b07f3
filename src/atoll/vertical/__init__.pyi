from .alignment import Aligned as Aligned
from .alignment import Alignment as Alignment
from .job import Vertical as Vertical
from .job import VerticalResult as VerticalResult
from .trees.secure_boost import SecureBoost as SecureBoost
