"""The first look at a loss of the user's own: what it returns, whether it pairs rows that have nothing to do with each other, and what it would train besides."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from atoll.core.errors import AtollError, CompositionError, DataError
from atoll.learn.local.own_loss import LABELLED

from .losses import LossInputs, Objective, form_of, means_of_rows
from .own_state import generator_states, seed_generators
from .tracing.keyed import Bounded

__all__ = ["LossLook", "LossSeen"]

Tensor = torch.Tensor
_SIZES = (3, 5)  # of two numbers of rows, one is no number of classes or columns
_MORE = 32  # rows for a loss that refuses a few
_FEW = 1000  # rows among which some with different targets are looked for
_ONE_SHAPE = (
    "give both one shape, as in output.squeeze(1), or use loss='mse', 'l1' or 'bce', which do; if every output is to meet every target, write both axes: "
    "output.squeeze(1)[:, None] - target[None, :]"
)
_CURRENT = "write loss(model, x, target), where model(x) is the current model, and let forward return (output, what the loss needs) while self.training"
_SHAPES = re.compile("arget size|must match|broadcast|same size|incorrect size|size mismatch|shape")
_TYPES = re.compile(
    "expected (target )?dtype|dtype \\w+ but expected|expected scalar type|result type \\w+ can't be cast"
)
_SMALL = 1e-4  # a change of a loss that rounding may make, as a share of it
_NEAR = 1e-3  # a change by the order of targets that is none, as a share of a change by their values


@dataclass
class LossSeen:
    """What a look at a loss found.

    Attributes:
        loss: with its form.
        changes: what a call changes, or draws from.
        notices: sentences for the result.
    """

    loss: Objective
    changes: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


class LossLook:
    """Calls a loss on a few rows.

    Args:
        loss: the loss.
        inputs: gives the inputs of a mini-batch, for its columns and the source of random numbers.
        columns: of some rows.
        restore: puts what the model and the loss own back to its first values.
        list_changes: names what of that the last call changed.
        reads_model: whether the loss holds the model that was given, of which training changes copies.
    """

    def __init__(
        self,
        loss: Objective,
        inputs: Callable[[Mapping[str, Tensor], Bounded], LossInputs],
        columns: Mapping[str, Tensor],
        restore: Callable[[], None],
        list_changes: Callable[[], list[str]],
        reads_model: bool = False,
    ) -> None:
        self.loss = loss
        self._inputs = inputs
        self._columns = columns
        self._restore = restore
        self._list_changes = list_changes
        self._reads_model = reads_model
        self._changes = list[str]()
        self._of_model: Exception | None = None
        self._outputs: Any = None  # of `_choose_rows`, which many calls take

    def look(self) -> LossSeen | None:
        """Return what the loss does; ``None`` if it raised on all that was tried, which training reports.

        Raises:
            DataError: it returns neither a number nor a loss for each row, pairs every row with every other, or cannot take these shapes.
            CompositionError: it has a gradient by parameters of the given model, where training would leave them.
        """
        tried = list[RowPairs]()
        seen = LossSeen(self.loss)
        for rows in (*_SIZES, _MORE):
            pairs = RowPairs(rows)
            try:
                values = self._call(self._take(rows), pairs)
            except AtollError:
                raise
            except Exception as error:
                self._require_shapes(pairs, error, last=rows == _MORE)
                continue
            form = form_of(self.loss, values, rows)
            seen = LossSeen(replace(self.loss, form=form, entries=values.dim() > 1), seen.changes or self._changes)
            tried.append(pairs)
            if len(tried) == len(_SIZES):
                break
        if not tried:
            return None
        self._refuse_pairs([pairs.found for pairs in tried])
        if self.loss.signature.takes_target and self._ignores_order():
            self._refuse_pairs([pairs.crossed or pairs.apart for pairs in tried])
            seen.notices.append(
                f"The loss {self.loss.name!r} is the same whichever row a target belongs to: from it a model learns how targets are distributed, and no row's own."
            )
        names = self._find_untrained()
        if self._reads_model:
            seen.notices.append(self._name_model(moves=bool(names)))
        elif names:
            seen.notices.append(
                f"The loss {self.loss.name!r} uses trainable parameters that are not the model's, and training leaves them as they are: {', '.join(names)}. "
                "To train them, make them parameters of the model, whose forward uses them; requires_grad_(False) says that they stay."
            )
        return seen

    def _name_model(self, *, moves: bool) -> str:
        """Say that the loss holds the given model.

        Raises:
            CompositionError: it has a gradient by its parameters.
        """
        what = f"the loss {self.loss.name!r} reads the model object that was given, and training changes copies of it"
        if moves:
            raise CompositionError(
                f"{what}: the gradient by the object's parameters would be lost",
                where="Training.loss",
                remedy=_CURRENT,
            )
        return f"{what[0].upper()}{what[1:]}: the loss sees its first values. To see the current ones, {_CURRENT}."

    def _refuse_pairs(self, found: Sequence[Met | None]) -> None:
        """Refuse a pairing that calls on all numbers of rows show.

        Raises:
            DataError: names the call, and what met.
        """
        if found[0] is None or None in found:
            return
        raise DataError(
            f"the loss {self.loss.name!r} gives {found[0].call} {found[0].describe()}, and PyTorch pairs every row with every other",
            where="Training.loss",
            remedy=_ONE_SHAPE,
        )

    def _require_shapes(self, pairs: RowPairs, error: Exception, *, last: bool) -> None:
        """Refuse a loss that raises over shapes which are no row's and its target's: those of a mini-batch would raise, too, or fit by chance.

        Raises:
            DataError: it raises for outputs and targets of such shapes, or over shapes on any number of rows.
        """
        if error is self._of_model:
            return
        if last and _TYPES.search(str(error)):
            raise DataError(
                f"the loss {self.loss.name!r} cannot take targets of this type: {str(error).splitlines()[0]}",
                where="Training.loss",
                remedy="give a function that turns them into what it takes, as in lambda output, target: F.binary_cross_entropy(output, target.float()), or use loss='bce' (log-odds) or 'cross_entropy'",
            ) from error
        if not _SHAPES.search(str(error)):
            return
        if pairs.apart is not None:
            raise DataError(
                f"the loss {self.loss.name!r} refuses {pairs.apart.describe()}",
                where="Training.loss",
                remedy=_ONE_SHAPE,
            ) from error
        if last:
            raise DataError(
                f"the loss {self.loss.name!r} raises {type(error).__name__} on {pairs.rows} rows: {str(error).splitlines()[0]}",
                where="Training.loss",
                remedy="take outputs and targets whose first axis is the rows, and give both one shape, or targets (n,) for outputs (n, classes)",
            ) from error

    def _ignores_order(self) -> bool:
        """Tell whether targets that change places among the rows change nothing, while other targets do.

        Outputs are tried around the targets, around the model's own, a little smaller, and of other sizes: a loss can be linear in a place, or undefined.
        """
        columns = self._choose_rows()
        if columns is None:
            return False
        self._outputs = None
        y, dtype = columns["y"], columns["x"].dtype if columns["x"].is_floating_point() else torch.float32
        generator = torch.Generator().manual_seed(0)
        real = y.is_floating_point()
        centre, spread = (float(y.mean()), float(y.std()) or 1.0) if real else (0.0, 1.0)

        def draw(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator, dtype=dtype).to(like)

        moves: list[Callable[[Tensor], Tensor]] = [
            *[lambda made: centre + spread * draw(made)] * 3,
            *[lambda made: made + draw(made)] * 3,
            *[lambda made: made * (1 - 0.3 * torch.sigmoid(draw(made)))] * 2,
            *[lambda made, size=size: size * draw(made) for size in (10.0, 100.0, 1e3, 1e4) for _ in range(2)],
        ]
        valid = 0
        for number, move in enumerate(moves):

            def read(order: Tensor, move: Callable[[Tensor], Tensor] = move, number: int = number) -> float:
                generator.manual_seed(number)
                values = self._call({**columns, "y": y[order]}, move=move)
                return float(means_of_rows(values).mean() if values.dim() else values)

            rows = torch.arange(len(y), device=y.device)
            orders = rows, rows.roll(1), rows.roll(2), rows.flip(0), torch.zeros_like(rows)
            first, *turned, same = (_read_or_nan(read, order) for order in orders)
            by_order = max(abs(value - first) for value in turned)
            by_value = max(abs(same - first), by_order)
            if not math.isfinite(by_order + by_value) or by_value <= _SMALL * abs(first):
                continue
            if by_order > _NEAR * by_value:
                return False
            valid += 1
        return valid >= 3

    def _choose_rows(self) -> dict[str, Tensor] | None:
        """Return rows of which some have different targets; ``None`` if there are none, or labels are missing."""
        if LABELLED in self._columns or len(self._columns["y"]) < 3:
            return None
        y = self._columns["y"][:_FEW]
        _, first = np.unique(y.cpu().numpy().reshape(len(y), -1), axis=0, return_index=True)
        if len(first) < 2:
            return None
        others = np.setdiff1d(np.arange(len(y)), first)
        chosen = torch.as_tensor(np.concatenate([first, others])[:5], device=y.device)
        return {name: column[chosen] for name, column in self._columns.items()}

    def _find_untrained(self) -> list[str]:
        """Return the trainable parameters that the loss reaches, and that are not the model's: those that two calls find."""
        found, columns, self._outputs = list[dict[int, nn.Parameter]](), self._take(_SIZES[1]), None
        for _ in range(2):
            try:
                values = self._call(columns, grad=True)
            except Exception:  # training reports it
                return []
            found.append({id(leaf): leaf for leaf in _leaves_of(values) if isinstance(leaf, nn.Parameter)})
        if not values.requires_grad:
            self._require_gradient()
        held = [leaf for place, leaf in found[0].items() if place in found[1]]
        fn = self.loss.fn
        owner = getattr(fn, "__self__", fn)
        named = {id(p): name for name, p in owner.named_parameters()} if isinstance(owner, nn.Module) else {}
        return [named.get(id(leaf), f"one of shape {tuple(leaf.shape)}") for leaf in held]

    def _require_gradient(self) -> None:
        """Refuse a loss that has no gradient on more rows either: training would raise, client by client.

        Raises:
            DataError: names the loss.
        """
        self._outputs = None
        try:
            moves = self._call(self._take(_MORE), grad=True).requires_grad
        except Exception:  # training reports it
            return
        if not moves:
            raise DataError(
                f"the loss {self.loss.name!r} has no gradient by the model's parameters",
                where="Training.loss",
                remedy="compute it from the model's outputs with functions that have one: neither in the loss nor in forward detach(), .item(), NumPy, argmax or torch.no_grad()",
            )

    def _take(self, rows: int) -> dict[str, Tensor]:
        x = self._columns["x"]
        chosen = torch.arange(rows, device=x.device) % len(x)
        return {name: column[chosen] for name, column in self._columns.items()}

    def _call(
        self,
        columns: Mapping[str, Tensor],
        pairs: RowPairs | None = None,
        move: Callable[[Tensor], Tensor] | None = None,
        grad: bool = False,
    ) -> Any:
        """Call the loss once from its first state; ``move`` changes the model's outputs."""
        mode = Bounded(torch.zeros(2, dtype=torch.int64, device=columns["x"].device), strict=False)
        inputs = self._inputs(columns, mode)
        model = inputs.model

        def watched(*given: Any, **options: Any) -> Any:
            if pairs is None:
                made = self._run_once(model, *given, **options)
            else:
                with pairs.pause():
                    made = self._run(model, *given, **options)
                pairs.mark(made, "outputs")
            return move(made) if move is not None and isinstance(made, Tensor) else made

        if pairs is not None:
            for name, column in columns.items():
                if name != "x":
                    pairs.mark(column, "columns")
        try:
            self._restore()
            with torch.set_grad_enabled(grad), seed_generators(0), mode:
                before = generator_states()
                with nullcontext() if pairs is None else pairs:
                    values = self.loss.call_loss(replace(inputs, model=watched))
                drawn = [name for name, state in generator_states().items() if before[name] != state]
            self._changes = [*self._list_changes(), *(name for name in drawn if name != "torch")]
        finally:
            self._restore()
        return values

    def _run(self, model: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Run the model, and take note of what it raises itself."""
        try:
            return model(*given, **options)
        except Exception as error:
            self._of_model = error
            raise

    def _run_once(self, model: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Run the model on some rows, or return what it gave for them, if the loss does not run it itself."""
        if self._outputs is None or "output" not in self.loss.signature.places:
            self._outputs = self._run(model, *given, **options)
        return self._outputs


def _read_or_nan(read: Callable[[Tensor], float], order: Tensor) -> float:
    """Return a value, NaN outside the loss's domain, where it may raise."""
    try:
        return read(order)
    except Exception:
        return math.nan


def _leaves_of(values: Any) -> list[Tensor]:
    """Return the tensors from which a result was computed, and that gradients of it reach."""
    found, seen = list[Tensor](), set[Any]()
    waiting = [values.grad_fn] if isinstance(values, Tensor) else []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting += [other for other, _ in node.next_functions]
    return found


class RowPairs(TorchFunctionMode):
    """Watches a loss on rows of which each has its own output and target, and finds a pairing of every row with every other that nobody asked for.

    Outputs of shape ``(n, 1)`` and targets of shape ``(n,)`` give ``(n, n)`` by PyTorch's rules, and their mean is no error of any row. The same holds of an
    error ``(n, 1)`` and a weight ``(n,)``. A tensor comes from outputs, from columns (targets and others), or from both. What pairs on purpose writes its axes,
    as in ``o - o.T``, ``t[:, None] == t`` or ``error[:, None] - error``, and is left alone.

    Attributes:
        found: the call, and the sources and shapes that met; ``None`` if all is well.
        apart: the last outputs and targets of such shapes that met in any call, refused ones too.
        crossed: the last call in which rows of one source met those of another along two axes, and nobody wrote both axes.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.found: Met | None = None
        self.apart: Met | None = None
        self.crossed: Met | None = None
        self._known: dict[int, tuple[Tensor, str, bool]] = {}
        self._silent = False

    def mark(self, value: Any, source: str, written: bool = False) -> None:
        """Take note of where a tensor comes from, and whether the loss wrote one of its axes."""
        if isinstance(value, Tensor):
            self._known[id(value)] = (value, source, written)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Look at nothing: what a model does with its rows is its own."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call, and look at the tensors that meet in it."""
        del types
        if self._silent:
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        met = [
            self._known[id(value)]
            for value in (*args, *(kwargs or {}).values())
            if isinstance(value, Tensor) and id(value) in self._known
        ]
        pairs = () if name in _MATRICES else tuple(itertools.combinations(met, 2))
        there = next((made for pair in pairs if (made := _meet(name, *pair)) is not None), None)
        self.apart = there or self.apart
        crossed = (made for pair in pairs if (made := _cross(name, self.rows, *pair)) is not None)
        self.crossed = next(crossed, None) or self.crossed
        made = func(*args, **(kwargs or {}))
        results = made if isinstance(made, tuple | list) else (made,)
        if self.found is None and there is not None:
            sizes = [result.numel() for result in results if isinstance(result, Tensor)]
            if name in _MEANS or any(size > max(map(math.prod, there.shapes)) for size in sizes):
                self.found = there
        sources = {source for _, source, _ in met}
        if sources:
            shown = met[:1] if name in _INDEXED else met  # an index gives its values no axis
            written = any(axes for _, _, axes in shown) or _writes_axis(name, args, made)
            for value in results:
                self.mark(value, next(iter(sources)) if len(sources) == 1 else "both", written)
        return made


@dataclass(frozen=True)
class Met:
    """Two tensors that met in a call.

    Attributes:
        call: the function's name.
        sources: ``outputs``, ``columns`` or ``both``, of each.
        shapes: of each.
    """

    call: str
    sources: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]

    def describe(self) -> str:
        """Return what they are, with ``n`` for the rows."""
        words = {"outputs": "outputs", "columns": "targets", "both": "errors"}
        one, other = (
            f"{words[source]} of shape ({', '.join(['n' if size == self.rows else str(size) for size in shape])}{',' if len(shape) == 1 else ''})"
            for source, shape in zip(self.sources, self.shapes, strict=True)
        )
        return f"{one} and {other}"

    @property
    def rows(self) -> int:
        """The number of rows."""
        return max(shape[0] for shape in self.shapes)


_Marked = tuple[Tensor, str, bool]


def _meet(call: str, one: _Marked, other: _Marked) -> Met | None:
    """Return what met if one tensor has a further axis of one entry after the rows; errors that meet errors count unless that axis was written."""
    few, more = sorted((one, other), key=lambda each: each[0].dim())
    if not few[0].dim() or few[0].shape[0] < 2 or more[0].shape != (few[0].shape[0], 1, *few[0].shape[1:]):
        return None
    if few[1] == more[1] and (few[1] != "both" or more[2]):
        return None
    return _order(call, one, other)


def _cross(call: str, rows: int, one: _Marked, other: _Marked) -> Met | None:
    """Return what met if the rows of the two stand along different axes of what they give, and nobody wrote the axes of the one that stands further left."""
    if one[1] == other[1] or not one[0].dim() or not other[0].dim():
        return None
    try:
        axes = len(torch.broadcast_shapes(one[0].shape, other[0].shape))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
    places = [[axes - v.dim() + i for i, size in enumerate(v.shape) if size == rows] for v in (one[0], other[0])]
    if places[0] == places[1] or not all(places):
        return None
    further = one if (places[0][0], len(places[0])) < (places[1][0], len(places[1])) else other
    return None if further[2] else _order(call, one, other)


def _order(call: str, one: _Marked, other: _Marked) -> Met:
    order = ("outputs", "both", "columns")
    first, second = sorted((one, other), key=lambda each: order.index(each[1]))
    return Met(call, (first[1], second[1]), (tuple(first[0].shape), tuple(second[0].shape)))


def _writes_axis(name: str, args: Any, made: Any) -> bool:
    """Tell whether a call makes, or moves, an axis that its caller wrote."""
    if name == "__getitem__":
        return any(part is None for part in (args[1] if isinstance(args[1], tuple) else (args[1],)))
    turned = name == "__get__" and isinstance(made, Tensor) and made.shape != args[0].shape  # x.T, x.mT
    return turned or name in _AXES


_AXES = ("unsqueeze", "transpose", "permute", "t", "swapaxes", "swapdims", "movedim", "moveaxis", "adjoint")
_INDEXED = ("__getitem__", "gather", "index_select", "take_along_dim", "masked_select")
_MATRICES = (
    "matmul",
    "__matmul__",
    "__rmatmul__",
    "mm",
    "mv",
    "bmm",
    "outer",
    "einsum",
    "cdist",
    "cat",
    "stack",
    "view_as",
    "reshape_as",
    "type_as",
    *_INDEXED,
)
"""What takes two shapes as they are, or writes pairs by its very name."""


_MEANS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss", "gaussian_nll_loss", "soft_margin_loss")  # fmt: skip
"""PyTorch's losses that pair rows by broadcasting, and may return one number."""
