from .job import Vertical as Vertical
from .job import VerticalResult as VerticalResult
from .job import train_pooled as train_pooled
from .linear.vertical_linear import VerticalLinear as VerticalLinear
from .model import VerticalModel as VerticalModel
from .prediction import VerticalPrediction as VerticalPrediction
from .split.split_net import SplitNet as SplitNet
from .trees.secure_boost import SecureBoost as SecureBoost
