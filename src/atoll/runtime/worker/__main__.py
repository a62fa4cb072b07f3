"""``python -m atoll.runtime.worker SOCKET ORDER``: see `atoll.runtime.worker.process`."""

from atoll.runtime.heap import loading

with loading():
    from .process import start

start()
