from .excess import ExcessNoise as ExcessNoise
from .laws import DiscreteGaussianNoise as DiscreteGaussianNoise
from .laws import SkellamMixtureNoise as SkellamMixtureNoise
from .laws import SkellamNoise as SkellamNoise
from .rounding import rounded_bound as rounded_bound
from .stage import LatticeNoise as LatticeNoise
