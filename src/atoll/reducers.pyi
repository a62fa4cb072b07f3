from atoll.secure.bounded import BoundedSum as BoundedSum
from atoll.secure.multi_round import MultiRound as MultiRound
from atoll.secure.seed_holders import Enclave as Enclave
from atoll.secure.seed_holders import TwoServers as TwoServers

from .secure.encrypted import Encrypted as Encrypted
from .secure.indexing import SecureIndexing as SecureIndexing
from .secure.masking import OneShot as OneShot
from .secure.masking import SecureAggregation as SecureAggregation
from .secure.tree import SecureTree as SecureTree
