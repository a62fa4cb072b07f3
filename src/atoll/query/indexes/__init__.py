"""Local indexes: which rows of its own table a site looks at, for a range of a column or what is near to a point. See `registry`, which says what an index must do.

An index of Atoll is one file here with one class, and one line in the stub.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
