"""The old address of `atoll.study`."""

from .core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(
    __name__,
    moved={"SweepResult": "atoll.study:StudyResult", "sweep": "atoll.study", "sweep_config": "atoll.study"},
)
