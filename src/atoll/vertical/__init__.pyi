from .job import Vertical as Vertical
from .job import VerticalResult as VerticalResult
from .trees.secure_boost import SecureBoost as SecureBoost
