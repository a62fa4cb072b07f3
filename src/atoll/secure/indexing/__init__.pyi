from .noise import CountNoise as CountNoise
from .reducer import SecureIndexing as SecureIndexing
