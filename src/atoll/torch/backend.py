"""The machine under PyTorch: devices and threads."""

from __future__ import annotations

import torch

from atoll.core.errors import ConfigError, nearest

__all__ = ["device_of", "prepare_worker"]

_DEVICES = ("cpu", "cuda", "mps", "auto")


def device_of(name: str) -> torch.device:
    """Return the device of a name.

    Args:
        name: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"`` or ``"auto"`` (the first available of cuda, mps and cpu).

    Raises:
        ConfigError: the device is unknown, or not available.
    """
    kind, _, number = name.partition(":")
    if kind not in _DEVICES or (number and not number.isdigit()):
        raise ConfigError(
            f"device={name!r} is not known.{nearest(kind, _DEVICES)}",
            where="Training.device",
            remedy="use 'cpu', 'cuda', 'cuda:1', 'mps' or 'auto'",
        )
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind == "auto":
        return torch.device(next(d for d in ("cuda", "mps", "cpu") if present[d]))
    if not present[kind]:
        raise ConfigError(
            f"device={name!r} is not available to PyTorch {torch.__version__} on this machine",
            where="Training.device",
            remedy="use device='cpu' or 'auto', or install a PyTorch build and a driver for it",
        )
    if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={name!r}: this machine has {torch.cuda.device_count()} CUDA device(s)",
            remedy="use a smaller number",
        )
    return torch.device(name)


def require_usable(device: torch.device) -> None:
    """Refuse a CUDA device in a process that was forked after the device was in use.

    Raises:
        ConfigError: CUDA cannot be used here.
    """
    if device.type == "cuda" and torch.cuda._is_in_bad_fork():
        raise ConfigError(
            f"device={str(device)!r} in a worker process: CUDA cannot be shared by forked processes",
            remedy="use engine='batched' or 'inline', which train on the device in one process",
        )


def prepare_worker(threads: int = 1) -> None:
    """Set up a worker process: one thread each, since the workers already share the cores.

    Call it first thing in every forked or spawned worker. PyTorch's thread pool does not survive a fork; with one
    thread it is never entered.
    """
    torch.set_num_threads(threads)
