"""Runs: a configuration, and the folder that keeps the run's files."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import DataConfig, RunConfig, json_schema, load_config, parse_config, parse_data, to_job
    from .execution import execute, result_of
    from .folder import RunFolder, new_folder, runs_in
    from .kept import Kept, keeping, read_model, write_model
    from .policy import parse_demand, parse_policy
    from .registries import Registry, register, registry
    from .stopping import INTERRUPTED, Stopping
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "config": ("DataConfig", "RunConfig", "json_schema", "load_config", "parse_config", "parse_data", "to_job"),
            "execution": ("execute", "result_of"),
            "folder": ("RunFolder", "new_folder", "runs_in"),
            "kept": ("Kept", "keeping", "read_model", "write_model"),
            "policy": ("parse_demand", "parse_policy"),
            "registries": ("Registry", "register", "registry"),
            "stopping": ("INTERRUPTED", "Stopping"),
        },
    )

__all__ = [
    "INTERRUPTED",
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
    "parse_demand",
    "parse_policy",
    "read_model",
    "register",
    "registry",
    "result_of",
    "runs_in",
    "to_job",
    "write_model",
]
