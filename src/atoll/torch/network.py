"""A model, its loss and its state as pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, DataError
from atoll.learn.local.own_loss import LossSignature, OwnLoss

from .loss_look import LossLook
from .losses import LossInputs, Objective, objective_of
from .models import copy_owned, keep_activations, params_of, shape_module, spectral_layers, spectral_units
from .own_state import OwnState, generator_states, seed_generators
from .shared_state import SharedState, reaches

if TYPE_CHECKING:
    from .blocks.pool import Pool
    from .tracing.keyed import Keyed

__all__ = ["ExampleWay", "FunctionalModule", "Held"]

# How a model's clipped sums are computed.


@dataclass(frozen=True)
class ExampleWay:
    """How to compute clipped sums.

    Attributes:
        axes: the axis of the examples of each layer's use, for `by_norms`; ``None`` to make every gradient.
        loops: make them one after another, since the model cannot be vectorised over its rows.
        reason: why not by norms.
    """

    axes: tuple[int, ...] | None
    loops: bool = False
    reason: str = ""


Tensor = torch.Tensor
Named = dict[str, Tensor]


def _require_python(module: nn.Module) -> None:
    """Refuse a model whose pass is not its own Python code with the parameters that it is given: nothing could be put in their place.

    Raises:
        CompositionError: it, or a layer, is compiled, scripted, traced or wrapped for several devices.
    """
    for name, layer in module.named_modules():
        whose = f"the layer {name!r}" if name else "the model"
        if isinstance(layer, torch.jit.ScriptModule):
            what = "scripted or traced by torch.jit"
            remedy = "give the Python module that it was made of, and call torch.jit.script or torch.jit.trace with result.model"
        elif "_orig_mod" in layer._modules:
            what = "compiled by torch.compile"
            remedy = "give the module that was compiled (its _orig_mod), which Training(compile=) compiles, and call torch.compile with result.model"
        elif isinstance(layer, nn.DataParallel | nn.parallel.DistributedDataParallel):
            what = f"wrapped in {type(layer).__name__}"
            remedy = "give the module inside (its attribute module): Atoll divides clients among processes, not rows among devices"
        else:
            continue
        raise CompositionError(f"{whose} is {what}, so Atoll cannot train it", where="Training.model", remedy=remedy)
    for name, value in module.named_parameters():
        if value._backward_hooks or getattr(value, "_post_accumulate_grad_hooks", None):
            raise CompositionError(
                f"the parameter {name!r} has a hook on its gradient, which no copy of the parameter keeps: clients would train without it",
                where="Training.model",
                remedy="register it in the loop of a CustomLoop, on the model that the loop is given, and remove it here",
            )


def _remedy_of_inputs(x: Tensor, error: Exception) -> str:
    if isinstance(error, TypeError) and "required positional argument" in str(error):
        return "a model gets one input, the column 'x': put all inputs side by side there, and part them in forward, as in a, b = x.split([3, 5], dim=1)"
    amounts = "" if x.is_floating_point() else "; amounts are floating-point numbers: x.astype(np.float32)"
    return f"reshape the column 'x', or give the model a first layer that fits{amounts}"


class Held(dict[str, Tensor]):
    """Fixed tensors of one client's training; `FunctionalModule.outputs` puts the buffers that ``forward`` re-assigns back into it.

    Attributes:
        strict: whether a pass may not assign trained parameters anew.
    """

    strict = True


class FunctionalModule:
    """A user's module as pure functions of its parameters; the module itself is copied and never changed.

    Args:
        module: any ``torch.nn.Module`` that maps a batch of inputs to a batch of outputs.
        loss: a name, an `Objective` or a callable; see `atoll.learn.local.own_loss.LossSignature`.
        device: where it runs.
        dtype: of parameters and floating-point inputs.
        measured: the loss for evaluation if the trained loss needs what exists only in training.
        others: further losses that a local step may ask for; see `atoll.learn.Algorithm.losses`.

    Attributes:
        names: the trainable parameters, in order.
        still: the others.
        size: numbers in them.
        given_types: the types of the given module's parameters.
        frozen: parameters with ``requires_grad=False`` and all buffers, by name.
        spectral: the vectors of spectral normalisations, which follow from their weights.
        ties: further name of a shared tensor -> its first one.
        looks_up: whether a traced step looks up rows of a table by indices, which may be wrong; see
            `atoll.torch.tracing.keyed`.
        own: what the copy in training mode keeps beside its parameters and buffers.
        measured_own: the same of the copy in evaluation mode.
        loss_own: the same of a loss that is an object.
        measured_changes: what the last measurement changed, so that clients in one batch would depend on each other.
        loss_changes: what of that a call changes, and global generators that a call draws from.
        loss_notices: what a look at the loss found, as sentences.
        loss_shared: what functions of the loss reach and a call changes, though it is nobody's own.
        looks_back: whether a backward pass reads weights from the model, as a hook may; then clients are trained one by one.
        ways: form of a row -> how clipped sums of single examples' gradients are computed; see `atoll.torch.examples.choose`.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Any,
        device: torch.device,
        dtype: torch.dtype,
        measured: str = "cross_entropy",
        others: Sequence[Any] = (),
    ) -> None:
        _require_python(module)
        strange = next((n for n, t in (*module.named_parameters(), *module.named_buffers()) if t.is_complex()), None)
        if strange is not None:
            raise DataError(
                f"{strange!r} of the model {type(module).__name__} has complex numbers",
                where="Training.model",
                remedy="keep it as real numbers, torch.view_as_real(tensor), and call torch.view_as_complex in forward",
            )
        self.training, training = _copy(module, device, dtype)
        rests = [name for name, layer in self.training.named_modules() if not layer.training]
        whole = not self.training.training
        self.training.train()  # of the model's own, which may keep layers in evaluation mode
        for name in () if whole else rests:  # as the user left them in a model that trains
            self.training.get_submodule(name).training = False
        self.evaluation, evaluation = _copy(module, device, dtype)
        self.evaluation.eval()
        self.device = device
        self.dtype = dtype
        self.title = type(module).__name__
        self.names = list(params_of(module))
        self.still = frozenset(name for name, p in module.named_parameters() if not p.requires_grad)
        if not self.names:
            raise DataError(
                f"the model {self.title} has no trainable parameters",
                where="Training.model",
                remedy="set requires_grad=True on the parameters to train",
            )
        self.given_types = sorted({_type_name(p.dtype) for p in module.parameters() if p.is_floating_point()})
        self.size = sum(p.numel() for p in module.parameters() if p.requires_grad)
        self.ties = _ties_of(self.training)
        self.spectral = frozenset(name for layer in spectral_layers(module) for name in (layer.u, layer.v))
        self.own, self.measured_own = OwnState(self.training, training), OwnState(self.evaluation, evaluation)
        self.frozen: Named = {
            **{n: p.detach() for n, p in self.training.named_parameters() if not p.requires_grad},
            **dict(self.training.named_buffers()),
        }
        self.looks_up = self.looks_back = False
        self.ways: dict[Any, ExampleWay] = {}
        self._given_loss = loss
        self.loss_changes: list[str] = []
        self.loss_notices: list[str] = []
        self.loss_shared: list[str] = []
        self.measured_changes: list[str] = []
        self.loss_own = OwnState(nn.Module(), ())
        self._loss_reads = reaches(loss, [*module.modules(), *module.parameters()])
        if not isinstance(loss, str | Objective | OwnLoss):
            loss, self.loss_own = OwnState.of_loss(loss)
        self._measured = measured
        self.loss: Objective = objective_of(loss)
        self._others: dict[Any, Objective] = {other: objective_of(other) for other in others}

    def outputs(
        self,
        params: Mapping[str, Tensor],
        frozen: Mapping[str, Tensor],
        x: Any,
        *,
        training: bool,
        module: nn.Module | None = None,
    ) -> Any:
        """Run the model: ``outputs = f(params; x)``; ``module`` is another copy of it.

        A pass in training mode writes buffers: in place into ``frozen``, and, if that is a `Held`, those that ``forward`` re-assigns too.
        """
        if module is None:  # not "or": a module may have a length of 0, or none
            module = self.training if training else self.evaluation
        given = {**frozen, **params}
        for alias, name in self.ties.items():
            if name in given:
                given[alias] = given[name]
        watched = training and isinstance(frozen, Held)  # a transformation of PyTorch refuses `data =` itself
        places = {name: (p.detach(), p.data_ptr()) for name, p in params.items()} if watched else {}
        asked = {name: given[name].requires_grad for name in (*self.names, *self.still) if name in given}
        with keep_activations():
            made = functional_call(module, given, (x,), tie_weights=False)
        if training and getattr(frozen, "strict", True):
            self._require_assigned(params, given, places)
            self._require_trained(given, asked)
        if training and isinstance(frozen, Held):
            for name, held in frozen.items():
                if given[name] is not params.get(name, held):  # a buffer that a loss gives for one pass is no write
                    frozen[name] = given[name].detach()
        return made

    def run_with(self, fn: Callable[[], Any], params: Mapping[str, Tensor], frozen: Mapping[str, Tensor]) -> Any:
        """Return what a function returns while the model in training mode holds these tensors: its hooks may read weights in a backward pass."""
        given = {f"module.{name}": value for name, value in {**frozen, **params}.items()}
        given |= {
            f"module.{alias}": given[f"module.{name}"] for alias, name in self.ties.items() if f"module.{name}" in given
        }
        return functional_call(_Runner(self.training), given, (fn,), tie_weights=False)

    def _require_assigned(
        self, params: Mapping[str, Tensor], given: Mapping[str, Tensor], places: Mapping[str, tuple[Tensor, int]]
    ) -> None:
        """Refuse a pass that makes a parameter anew: the update is that of the parameters that it was given.

        Memory alone may move, as recurrent layers do on a GPU.

        Raises:
            CompositionError: another tensor, or other memory with other values.
        """
        for name, p in params.items():
            if given.get(name, p) is p:
                first, place = places.get(name, (p, 0))
                if name not in places or p.data_ptr() == place or torch.equal(first, p.detach()):
                    continue
            raise CompositionError(
                f"a training pass of {self.title} assigns the parameter {name!r} anew, and training would lose what it assigns",
                where="Training.model",
                remedy="write it in place under torch.no_grad(), as in parameter.copy_(value), or train with CustomLoop",
            )

    def _require_trained(self, given: Mapping[str, Tensor], asked: Mapping[str, bool]) -> None:
        """Refuse a pass that freezes a parameter, or thaws one: every pass begins with those that the given model trains.

        Raises:
            CompositionError: names it.
        """
        for name, before in asked.items():
            if given[name].requires_grad != before and before != (name in self.still):
                raise CompositionError(
                    f"a training pass of {self.title} {'freezes' if before else 'thaws'} the parameter {name!r} by requires_grad",
                    where="Training.model",
                    remedy="let the model that you pass require a gradient for it, and take parameter.detach() in forward while it is not to train, or train with CustomLoop",
                )

    def restore(self) -> None:
        """Put what the model owns beside its parameters and buffers back to its first values: no client begins with what another left."""
        self.own.restore()
        self.restore_measured()

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Train one client from the first values, and leave them: attributes of classes outlive the model."""
        self.restore()
        try:
            yield
        finally:
            self.restore()

    def restore_measured(self) -> None:
        """Put back what a measurement may have changed, of the model and of the loss."""
        self.measured_own.restore()
        self.loss_own.restore()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure from the first values of all that is no parameter and no buffer, with global generators of one seed; note what a pass changes, and put it back."""
        self.restore_measured()
        try:
            with seed_generators(0):
                before = generator_states()
                yield
                drawn = [name for name, state in generator_states().items() if before[name] != state]
            self.measured_changes = [*self.measured_own.list_changes(), *self.loss_own.list_changes(), *drawn]
        finally:
            self.restore_measured()

    def tensors(self, arrays: Mapping[str, Any]) -> Named:
        """Return parameters and buffers as tensors of their own memory: floating-point numbers of the model's type, counters of their own.

        Vectors of spectral normalisations are made again where they belong to other weights; see `spectral_units`.
        """
        made = {name: torch.as_tensor(np.array(value)).to(self.device) for name, value in arrays.items()}
        made = {name: value.to(self.dtype) if value.is_floating_point() else value for name, value in made.items()}
        if self.spectral:
            made |= spectral_units(
                self.training, {**dict(self.training.named_parameters()), **self.frozen, **made}, made
            )
        return made

    @property
    def signature(self) -> LossSignature:
        """Return what all losses together need of the data."""
        return self.loss.signature.join_columns(*(other.signature for other in self._others.values()))

    @property
    def padded(self) -> bool:
        """Tell whether mini-batches may be padded."""
        return self.loss.padded and all(other.padded for other in self._others.values())

    def objective(self, loss: Any = None) -> Objective:
        """Return one of the losses: ``None`` for the first.

        Raises:
            CompositionError: it is none of them.
        """
        if loss is None or loss == self._given_loss:
            return self.loss
        if loss not in self._others:
            raise CompositionError(
                f"a local step asks for the loss {getattr(loss, '__name__', type(loss).__name__)}, which the algorithm does not declare",
                where="Algorithm.losses",
                remedy="return it from `losses`, after the one that steps descend",
            )
        return self._others[loss]

    @property
    def measured(self) -> Objective:
        """Return the loss for evaluation."""
        return self.loss if self.loss.measurable else objective_of(self._measured)

    def batch_loss(
        self,
        params: Mapping[str, Tensor],
        frozen: Mapping[str, Tensor],
        columns: Mapping[str, Tensor],
        weights: Tensor | None,
        broadcast: Tree,
        mode: Keyed,
        loss: Any = None,
    ) -> Tensor:
        """Return the loss of a mini-batch in training mode; with weights, over the real rows of a padded batch."""
        return self.objective(loss).of_batch(self._inputs(params, frozen, columns, weights, broadcast, mode))

    def reading(
        self,
        params: Mapping[str, Tensor],
        frozen: Mapping[str, Tensor],
        columns: Mapping[str, Tensor],
        weights: Tensor | None,
        broadcast: Tree,
        mode: Keyed,
        loss: Any,
    ) -> Any:
        """Return what one of the losses returns for a mini-batch, as it is."""
        return self.objective(loss).call_loss(self._inputs(params, frozen, columns, weights, broadcast, mode))

    def example_losses(
        self,
        params: Mapping[str, Tensor],
        frozen: Mapping[str, Tensor],
        columns: Mapping[str, Tensor],
        broadcast: Tree,
        mode: Keyed,
    ) -> Tensor:
        """Return the trained loss of each example, ``(rows,)``: of one alone in a mini-batch; see `Objective.of_examples`."""
        return self.loss.of_examples(self._inputs(params, frozen, columns, None, broadcast, mode))

    def row_losses(self, outputs: Tensor, columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the evaluated loss of each row, and the share of its labels that exist; see `Objective.of_rows`."""
        return self.measured.of_rows(LossInputs(lambda x: outputs, columns, None, None, None, self.dtype))

    def _inputs(
        self,
        params: Mapping[str, Tensor],
        frozen: Mapping[str, Tensor],
        columns: Mapping[str, Tensor],
        weights: Tensor | None,
        broadcast: Tree,
        mode: Keyed,
    ) -> LossInputs:
        def model(x: Tensor, given: Mapping[str, Tensor] | None = None, *, training: bool = True) -> Tensor:
            made: Tensor = self.outputs(params if given is None else {**params, **given}, frozen, x, training=training)
            return made

        return LossInputs(model, columns, weights, broadcast, mode, self.dtype)

    def settle(self, pool: Pool, where: str, broadcast: Tree = None) -> tuple[int, ...]:
        """Check the model's output and the loss once: choose the form of the hinge loss, refuse labels that do not fit.

        Args:
            pool: rows.
            where: the place that errors name.
            broadcast: what the server sent, if known: a loss that asks for it is checked then.

        Returns:
            Shape of the output for a row or two.

        Raises:
            DataError: the model cannot take the inputs, or its output does not fit the labels.
        """
        shape = self.output_shape(pool.x[:2], where)
        if not self.loss.form:
            self._look(pool, broadcast)
        elif self._given_loss == "hinge":
            self.loss = objective_of(self._given_loss, shape[1] if len(shape) > 1 else 1)
        return shape

    def _look(self, pool: Pool, broadcast: Tree) -> None:
        """Call the loss on a few rows to see what it returns; training reports its exceptions."""
        asked = set(self.loss.signature.names)
        if broadcast is None and asked & {"broadcast", "round"}:
            return
        params = {n: p.detach().requires_grad_() for n, p in self.training.named_parameters() if p.requires_grad}

        def inputs(columns: Mapping[str, Tensor], mode: Keyed) -> LossInputs:
            frozen = {n: b.clone() for n, b in self.frozen.items()}
            return self._inputs(params, frozen, columns, None, broadcast, mode)

        shared, changed = SharedState([self.loss.fn], self.loss_own), set[str]()

        def restore() -> None:
            self.restore()
            changed.update(shared.list_changes())
            shared.restore()

        seen = LossLook(self.loss, inputs, pool.columns, restore, self.loss_own.list_changes, self._loss_reads).look()
        if seen is not None:
            self.loss, self.loss_changes, self.loss_notices = seen.loss, seen.changes, seen.notices
        if changed:
            self.loss_shared = sorted(changed)
            self.loss_notices.append(
                f"The loss changes what clients, rounds and measurements share, so that a result can depend on their order: {', '.join(self.loss_shared)}. "
                "Keep it in an attribute of an object: every client begins with its first value."
            )

    def output_shape(self, x: Tensor, where: str) -> tuple[int, ...]:
        """Return the shape of the output for the given rows."""
        params = dict(self.evaluation.named_parameters())
        try:
            with torch.no_grad(), self.measuring():
                made = self.outputs(params, dict(self.evaluation.named_buffers()), x, training=False)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if len(self.given_types) > 1 and "dtype" in str(error):
                raise DataError(
                    f"the model {self.title} has parameters of {' and '.join(self.given_types)}, and all are trained in {_type_name(self.dtype)}: "
                    f"{str(error).splitlines()[0]}",
                    where=where,
                    remedy="cast in forward to the type of the layer that follows, as in x.to(self.layer.weight.dtype), or give all parameters one type: model.double()",
                ) from error
            raise DataError(
                f"the model {self.title} cannot take inputs of shape {tuple(x.shape)} and type {x.dtype}: "
                f"{str(error).splitlines()[0]}",
                where=where,
                remedy=_remedy_of_inputs(x, error),
            ) from error
        if not isinstance(made, torch.Tensor):
            raise DataError(
                f"the model {self.title} returns {type(made).__name__}, not a tensor",
                where=where,
                remedy="wrap the model so that it returns the tensor that the loss takes",
            )
        return tuple(made.shape)

    def drops(self) -> bool:
        """Tell whether a layer draws masks in training."""
        layers = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)
        return any(
            isinstance(m, layers) and getattr(m, "p", getattr(m, "dropout", 0.0)) for m in self.training.modules()
        )

    def mixes_rows(self) -> str:
        """Return the layer that takes statistics over the rows of a mini-batch, or ``""``."""
        for name, layer in self.training.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
                return f"{type(layer).__name__} {name!r}"
        return ""


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Runner(nn.Module):
    """Runs a function in place of a module that it holds."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, fn: Callable[[], Any]) -> Any:
        return fn()


def _ties_of(module: nn.Module) -> dict[str, str]:
    """Return the further names of tensors that several modules hold: name -> the first name. A module under two names holds each tensor once."""
    first, ties = dict[int, str](), dict[str, str]()
    for prefix, layer in module.named_modules():
        for own, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            name = f"{prefix}.{own}" if prefix else own
            if tensor is not None and first.setdefault(id(tensor), name) != name:
                ties[name] = first[id(tensor)]
    return ties


def _copy(module: nn.Module, device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, list[Any]]:
    try:
        made, owned = copy_owned(shape_module(module, None))
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"the model {type(module).__name__} cannot be copied: {error}",
            remedy="give a model whose attributes can be deep-copied",
        ) from error
    made.zero_grad(set_to_none=True)
    return made.to(device=device, dtype=dtype), owned
