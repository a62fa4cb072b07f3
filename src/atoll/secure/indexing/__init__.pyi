from .counts import CountNoise as CountNoise
from .reducer import SecureIndexing as SecureIndexing
