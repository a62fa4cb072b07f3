"""``python -m atoll.runtime.work SOCKET ORDER``: see `atoll.runtime.work.process`."""

from atoll.runtime.heap import loading

with loading():
    from .process import start

start()
