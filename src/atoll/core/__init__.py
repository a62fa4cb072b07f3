"""The waist: parties, islands, tasks, federations, messages, time. NumPy only; no learning, no network.

The names below are for rooms and users; a part is loaded when its name is first used. Other names belong to the waist itself, and
their modules are imported by name: trees are ``atoll.core.algebra.tree``, messages ``atoll.core.message``.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
