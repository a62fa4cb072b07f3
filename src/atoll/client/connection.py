"""What a script holds: its connection to a federation, and the tasks that come."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import socket
import struct
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.tree import Tree, items
from atoll.core.errors import AtollError, DataError, MessageError, TaskError, nearest

__all__ = [
    "Alone",
    "Connection",
    "FrameSocket",
    "LocalTask",
    "ScriptTask",
    "Untouched",
    "VARIABLE",
    "as_form",
    "connect",
    "load_into",
    "parameters_of",
    "seed_all",
    "state_of",
]


# ------------------------------------------------------------------ parameters in the form of a script's library, and back
#
# Parameters in the form of a script's library, and back: PyTorch modules and state dicts, estimators of scikit-learn, dicts of arrays.


class Untouched(dict[str, Any]):
    """The model of a task outside a federation when `connect` was given none: the script's model stays as it is."""

    def __missing__(self, name: str) -> Any:
        raise DataError(
            f"there is no parameter {name!r} outside a federation",
            where="task.model",
            remedy="give the script's model to atoll.client.connect(model): then it is the model of the one local round",
        )


def as_form(params: Tree, form: str, fixed: Tree, aliases: Mapping[str, str]) -> Any:
    """Return received parameters as the script's library takes them.

    Args:
        params: arrays by name.
        form: ``torch`` for a state dict of tensors, otherwise arrays.
        fixed: entries of the state dict that do not travel, such as counters.
        aliases: further names of tied parameters -> the name that travels.
    """
    if form != "torch":
        return params
    import torch

    named = {**params, **fixed}
    made = {name: torch.from_numpy(np.require(value, requirements=["A", "W"])) for name, value in named.items()}
    return {**made, **{alias: made[name] for alias, name in aliases.items()}}


def state_of(model: Any) -> Any:
    """Return the parameters of a script's model, for a round outside a federation."""
    if callable(getattr(model, "state_dict", None)):
        return {name: value.detach().clone() for name, value in model.state_dict().items()}
    if isinstance(model, Mapping):
        return model
    found = {name.removesuffix("_"): np.array(value, ndmin=1) for name, value in _list_fitted(model)}
    return Untouched(found)


def _list_fitted(model: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(model).items() if name in ("coef_", "intercept_")]


def load_into(model: Any, received: Any) -> None:
    """Set a script's model to received parameters, in place.

    Raises:
        DataError: the model has no such parameters.
    """
    if isinstance(received, Untouched):
        return
    if callable(getattr(model, "load_state_dict", None)):
        unexpected = model.load_state_dict(received, strict=False).unexpected_keys
        if unexpected:
            raise _lacks(unexpected[0], model.state_dict())
    elif isinstance(model, dict):
        model.update({name: np.array(value) for name, value in received.items()})
    else:
        for name, value in received.items():
            # A fitted estimator has shapes of its own: intercept_ of a regression is a number.
            before = getattr(model, f"{name}_", None)
            array = np.array(value) if before is None else np.array(value).reshape(np.shape(before))
            setattr(model, f"{name}_", array[()] if before is not None else array)


def parameters_of(model: Any, like: Tree) -> Tree:
    """Return the parameters that a reply sends: those that the task came with.

    Args:
        model: a PyTorch module (PEFT's and Lightning's too), a state dict, a fitted estimator, or a dict of arrays.
        like: the received parameters, whose names and shapes count.

    Raises:
        DataError: the model lacks a parameter, or has it in another shape.
    """
    if callable(getattr(model, "state_dict", None)):
        model = model.state_dict()
    elif not isinstance(model, Mapping):
        model = _Attributes(model)
    return _pick_weights(model, like, "")


class _Attributes(Mapping[str, Any]):
    """The fitted attributes of an estimator by name, without the underscore at the end."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getitem__(self, name: str) -> Any:
        try:
            return np.asarray(getattr(self._model, f"{name}_"))
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Any:
        return (name.removesuffix("_") for name in vars(self._model) if name.endswith("_"))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _pick_weights(model: Mapping[str, Any], like: Tree, above: str) -> Tree:
    made: dict[str, Any] = {}
    for name, wanted in like.items():
        path = f"{above}{name}"
        if name not in model:
            raise _lacks(path, model)
        value = model[name]
        made[name] = (
            _pick_weights(value, wanted, f"{path}.") if isinstance(wanted, Mapping) else _array(value, wanted, path)
        )
    return made


def _array(value: Any, wanted: Any, path: str) -> Any:
    """Return a value as an array of the received kind."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = (
            value.detach().to("cpu").float().numpy() if value.dtype == torch.bfloat16 else value.detach().cpu().numpy()
        )
    array, shape = np.asarray(value), np.shape(wanted)
    if array.shape != shape and array.size == np.size(wanted) and array.ndim <= 1 and len(shape) <= 1:
        array = array.reshape(shape)  # intercept_ of a regression is a number
    if array.shape != shape:
        raise DataError(
            f"parameter {path!r} has shape {array.shape}, but it came with shape {shape}",
            where="task.reply",
            remedy="reply with the parameters that the task came with, trained; every client needs a model of one shape",
        )
    return np.ascontiguousarray(array, dtype=np.asarray(wanted).dtype).reshape(
        shape
    )  # which makes an axis of a single number


def _lacks(name: str, has: Mapping[str, Any]) -> DataError:
    known = [str(key) for key, _ in items(dict(has))] if isinstance(has, dict) else list(has)
    return DataError(
        f"the model has no parameter {name!r}.{nearest(name, known)}",
        where="task.reply",
        remedy="reply with the model whose parameters the task came with",
    )


# ------------------------------------------------------------------ what a script holds: its connection to a federation, and the tasks that come


_PYTHON = "random"
"""The module of Python's global generator, which Atoll itself never draws from."""


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and, if it is loaded, PyTorch: a script is no part of Atoll, and draws from these.

    Args:
        seed: 63 bits.
    """
    importlib.import_module(_PYTHON).seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


# ```
# Atoll   {"op": "hello", "name", "settings", "form", "fixed", "aliases", "release"}
# script  {"op": "here"}
# Atoll   {"op": "task", "id", "round", "kind", "model", "settings", "seed"}
# script  {"op": "data"}                                       at any time while it has a task
# Atoll   {"op": "data", "columns", "task", "classes", "labels"}, or {"op": "data", "lacks": why}
# script  {"op": "reply", "id", "model", "examples", "metrics"}
# script  {"op": "failed", "error", "place"}                   instead of a reply
# Atoll   {"op": "end"}
# ```


VARIABLE = "ATOLL_CLIENT_SOCKET"
"""The environment variable with the number of the script's end of the sockets."""

_LENGTH = struct.Struct("<Q")
_SMALL = 1 << 18
_BUFFER = 4 << 20


class FrameSocket:
    """One end of the conversation.

    Args:
        sock: a connected socket; this owns it.
        most: bytes of the longest message that this end takes.
    """

    def __init__(self, sock: socket.socket, most: int = M.DEFAULT_LIMITS.max_bytes) -> None:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # as much as the system allows: fewer turns a model
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
        self.socket = sock
        self.most = most

    def send(self, tree: Tree) -> None:
        """Send a message.

        Raises:
            MessageError: it is not a message tree.
            OSError: the other end is gone.
        """
        size = M.nbytes(tree)
        self.socket.settimeout(None)
        if size < _SMALL:
            self.socket.sendall(_LENGTH.pack(size) + M.encode(tree))
            return
        self.socket.sendall(_LENGTH.pack(size))
        for chunk in M.encode_chunks(tree, 1 << 20):
            self.socket.sendall(chunk)

    def recv(self, within: float | None = None) -> Any:
        """Return the next message.

        Args:
            within: seconds that a piece of it may take.

        Raises:
            MessageError: it is not a message, or too long.
            EOFError: the other end is gone.
            OSError: the other end is gone, or nothing came in time.
        """
        self.socket.settimeout(within)
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if size > self.most:
            raise MessageError(
                f"a message of {size} bytes, and {self.most} are allowed",
                where="the conversation with a script",
                remedy="reply with the model's own parameters, and with numbers as metrics",
            )
        return M.decode(self._exactly(size))

    def _exactly(self, size: int) -> memoryview:
        view, done = np.empty(size, np.uint8).data, 0  # not zeroed first
        while done < size:
            count = self.socket.recv_into(view[done:], size - done)
            if count == 0:
                raise EOFError
            done += count
        return view

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


class LocalTask:
    """The one task of a script that runs alone; it has what a `ScriptTask` has."""

    round = 1
    kind = "train"
    seed = 0

    def __init__(self, model: Any) -> None:
        self.model = Untouched() if model is None else state_of(model)
        self.settings: dict[str, Any] = {}
        self.answered = False

    def load(self, model: Any) -> None:
        """Leave the model as it is: the round begins with the script's own."""

    def reply(
        self, model: Any = None, *, examples: float | None = None, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Say what the round gave."""
        del model
        _require_count(examples)
        self.answered = True
        rows = "" if examples is None else f", {examples:g} examples"
        told = "".join(f", {name} {float(value):.6g}" for name, value in (metrics or {}).items())
        sys.stdout.write(f"outside a federation: one local round{rows}{told}\n")


class Alone:
    """A federation of one round with nobody else.

    Args:
        model: the script's model, if it gave one.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def rounds(self) -> Iterator[LocalTask]:
        """Yield the one task."""
        with _loading_nothing():
            yield LocalTask(self._model)


@contextlib.contextmanager
def _loading_nothing() -> Iterator[None]:
    """Let ``module.load_state_dict(task.model)`` leave the module as it is when `connect` was given no model."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    kept = torch.nn.Module.load_state_dict

    @functools.wraps(kept)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return kept(self, self.state_dict() if isinstance(state_dict, Untouched) else state_dict, *args, **kwargs)

    torch.nn.Module.load_state_dict = load_state_dict
    try:
        yield
    finally:
        torch.nn.Module.load_state_dict = kept


def connect(model: Any = None) -> Connection:
    """Connect a script to the federation that has started it; outside one, to nothing.

    Args:
        model: the script's model. A federation does not need it: a task comes with the model. Outside one, it is the model of the
            one local round, so ``task.model`` is what the script began with.

    Returns:
        A context manager.
    """
    number = os.environ.pop(VARIABLE, None)
    if number is None:
        return Connection(None, model)
    sock = socket.socket(fileno=int(number))
    sock.set_inheritable(False)  # programs that the script starts must not keep the conversation open
    _die_with_parent()
    return Connection(FrameSocket(sock), model)


class Connection:
    """A script's connection to a federation.

    Attributes:
        alone: whether there is none: the script was started by hand.
        name: the client's name; ``""`` alone.
        settings: the job's settings for the script, plain values; empty alone.
    """

    def __init__(self, frames: FrameSocket | None, model: Any = None) -> None:
        self.alone = frames is None
        self.name = ""
        self.settings: dict[str, Any] = {}
        self._frames = frames
        self._model = model
        self._early: deque[Any] = deque()
        self._data: Any = None
        self._open: ScriptTask | None = None
        self._hello: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self._frames is not None:
            self._hello = self._next("hello")
            self.name, self.settings = self._hello["name"], self._hello["settings"]
            self._frames.send({"op": "here"})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._frames is None:
            return
        with contextlib.suppress(OSError):
            if error is not None:
                self._frames.send({"op": "failed", **_describe_error(error)})
            self._frames.close()

    @property
    def data(self) -> Any:
        """The client's rows as a site gives them to a job: an `atoll.data.Dataset` with ``x``, ``y`` and ``len``. They cross once.

        Raises:
            DataError: the script runs alone, or the site's data have no columns.
        """
        if self._data is None:
            if self._frames is None:
                raise DataError(
                    "there are no client's rows outside a federation",
                    where="fed.data",
                    remedy="load rows of your own if fed.alone",
                )
            self._frames.send({"op": "data"})
            told = self._next("data")
            if "lacks" in told:
                raise DataError(told["lacks"], where="fed.data", remedy="let the script load its own rows")
            from atoll.data import Dataset

            about = {key: told[key] for key in ("task", "classes", "labels")}
            self._data = Dataset(told["columns"], name=self.name, **about)
        return self._data

    def rounds(self) -> Iterator[ScriptTask | LocalTask]:
        """Yield a task for each time that the federation asks this client; it ends when the job does.

        Python's, NumPy's and PyTorch's global generators are seeded before each, by the run's seed, client and round.

        Raises:
            TaskError: the task before was not answered.
        """
        if self._frames is None:
            yield from Alone(self._model).rounds()
            return
        while True:
            try:
                frame = self._next("task", "end")
            except EOFError:
                return
            if frame["op"] == "end":
                return
            task = self._open = ScriptTask(self._frames, frame, self._hello)
            seed_all(int(frame["seed"]))
            yield task
            if not task.answered:
                raise TaskError(
                    f"round {task.round} was not answered",
                    where=f"the script at {self.name}",
                    remedy="call task.reply(model, examples=n) once in each turn of the loop",
                )
            if self._hello["release"]:
                _release()

    def _next(self, *ops: str) -> Any:
        """Return the next message of one of these kinds; others wait."""
        for number, frame in enumerate(self._early):
            if frame["op"] in ops:
                del self._early[number]
                return frame
        while True:
            frame = self._frames.recv() if self._frames is not None else {"op": "end"}
            if frame["op"] in ops:
                return frame
            self._early.append(frame)


class ScriptTask:
    """One request to a script.

    Attributes:
        round: the number of the round, from 1.
        kind: ``train``, or ``evaluate``: then only metrics count.
        model: the global model: a state dict of tensors for PyTorch, otherwise arrays by name.
        settings: the job's settings for the script, and ``lr`` and ``epochs`` of its algorithm.
        seed: a whole number that is this client's and round's own.
        answered: whether `reply` was called.
    """

    def __init__(self, frames: FrameSocket, frame: Mapping[str, Any], hello: Mapping[str, Any]) -> None:
        self.round: int = frame["round"]
        self.kind: str = frame["kind"]
        self.settings: dict[str, Any] = frame["settings"]
        self.seed: int = frame["seed"]
        self.answered = False
        self.model: Any = as_form(frame["model"], hello["form"], hello["fixed"], hello["aliases"])
        self._like, self._id, self._frames = frame["model"], frame["id"], frames

    def load(self, model: Any) -> None:
        """Set a model to the task's: a PyTorch module (of adapters, the adapters alone), an estimator of scikit-learn, or a dict of arrays."""
        load_into(model, self.model)

    def reply(
        self, model: Any = None, *, examples: float | None = None, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Answer the task, once.

        Args:
            model: the trained model, in any form that `load` takes, or its parameters by name. A task to evaluate needs none.
            examples: rows that it was trained or measured on: its weight. By default all of the client's.
            metrics: numbers by name: means over these rows.

        Raises:
            TaskError: the task was answered before.
            DataError: a parameter is missing or has another shape, or a value is not a number.
        """
        if self.answered:
            raise TaskError(
                f"round {self.round} was answered twice",
                where="task.reply",
                remedy="call task.reply once in each turn of the loop",
            )
        if self.kind == "train" and model is None:
            raise DataError(
                f"no model in the reply to round {self.round}",
                where="task.reply",
                remedy="task.reply(model, examples=n)",
            )
        params = parameters_of(model, self._like) if self.kind == "train" else {}
        weight = None if examples is None else _number("examples", examples)
        _require_count(weight)
        told = {str(name): _number(f"metric {name!r}", value) for name, value in (metrics or {}).items()}
        self._frames.send({"op": "reply", "id": self._id, "model": params, "examples": weight, "metrics": told})
        self.answered = True


MOST_EXAMPLES = 2.0**53
"""The largest number of rows: counts above it are not exact in double precision, and no data set has as many."""


def _require_count(examples: float | None) -> None:
    """Refuse a number of rows that cannot be one.

    Raises:
        DataError: it is negative, NaN, infinite or above 2^53.
    """
    if examples is not None and not 0 <= examples <= MOST_EXAMPLES:
        raise DataError(
            f"examples={examples!r}",
            where="task.reply",
            remedy="count the rows that the model was trained on: a number from 0 to 2^53, its weight in the mean",
        )


def name_wrong_count(content: Iterable[Any], count: str) -> str:
    """Return why the count in a foreign reply is no weight, and nothing if it is one: other frameworks weigh by it without a look.

    Args:
        content: its records as a message tree, see `atoll.bridges.flower_grid.packed`.
        count: the metric that is the count.
    """
    for name, kind, rows in content:
        for key, value in rows if kind == "metrics" else ():
            if key == count and not (isinstance(value, int | float) and 0 <= value <= MOST_EXAMPLES):
                return (
                    f"{name}[{key!r}] = {value!r}: count the rows that the model was trained on, a number of 0 or more"
                )
    return ""


def _number(what: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{what} is a {type(value).__name__}", where="task.reply", remedy="give one number, such as loss.item()"
        ) from error
    return found


def _release() -> None:
    """Let go of memory of accelerators that nothing uses."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _describe_error(error: BaseException) -> dict[str, str]:
    """Return an error's text and the script's own line of it."""
    text = str(error) if isinstance(error, AtollError) else f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        text = f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    main = os.path.abspath(sys.argv[0])  # noqa: PTH100
    lines = [entry for entry in traceback.extract_tb(error.__traceback__) if os.path.abspath(entry.filename) == main]  # noqa: PTH100
    place = f"{os.path.basename(main)}, line {lines[-1].lineno}" if lines else os.path.basename(main)  # noqa: PTH119
    return {"error": text[:4000], "place": place}


def _die_with_parent() -> None:
    """Ask the system to kill this process when the one that has started it ends; Linux only. Elsewhere it ends at its next message."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
