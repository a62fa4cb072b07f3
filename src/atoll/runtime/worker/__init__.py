"""What a job's process does: the program at the server, the tasks at a site; a site's data, and what a server must know of it."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
