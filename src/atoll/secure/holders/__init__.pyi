from .attestation import Attestation as Attestation
from .attestation import SimulatedAttestation as SimulatedAttestation
from .reducers import Enclave as Enclave
from .reducers import TwoServers as TwoServers
