"""Flower apps unchanged: a ``ServerApp`` and a ``ClientApp`` on Atoll's engines and between its sites. Needs the extra ``flower``.

The ``ServerApp`` runs in a thread of the program, and its grid asks the federation. The ``ClientApp`` runs in a task at each client. Messages
cross as arrays and plain values. Results are Flower's own: its strategies add up, and Atoll only carries.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .app import FlowerApp
    from .program import flower_program
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(__name__, {"app": ("FlowerApp",), "program": ("flower_program",)})

__all__ = ["FlowerApp", "flower_program"]
