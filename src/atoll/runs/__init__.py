"""Runs: a configuration, and the folder that keeps what it did."""

from .config import DataConfig, RunConfig, json_schema, load_config, parse_config, parse_data, to_job
from .execute import execute
from .folder import RunFolder, new_folder, runs_in
from .keeping import Kept, keeping
from .model import read_model, write_model
from .registry import KINDS, Registry, register, registry
from .results import result_of
from .stopping import INTERRUPTED, Stopping

__all__ = [
    "INTERRUPTED",
    "KINDS",
    "DataConfig",
    "Kept",
    "Registry",
    "RunConfig",
    "RunFolder",
    "Stopping",
    "execute",
    "json_schema",
    "keeping",
    "load_config",
    "new_folder",
    "parse_config",
    "parse_data",
    "read_model",
    "register",
    "registry",
    "result_of",
    "runs_in",
    "to_job",
    "write_model",
]
