"""``python -m atoll.runtime.worker SOCKET ORDER``: see `atoll.runtime.worker.process`."""

from atoll.heap import loading

with loading():
    from .process import start

start()
