"""``python -m atoll.runtime.work SOCKET ORDER``: see `atoll.runtime.work.process`."""

from .process import start

start()
