"""`atoll.bridges.flower` under its old address, which jobs that were written before still name."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.bridges.flower import FlowerApp, flower_program
else:
    import importlib

    def __getattr__(name: str) -> object:
        return getattr(importlib.import_module("atoll.bridges.flower"), name)


__all__ = ["FlowerApp", "flower_program"]
