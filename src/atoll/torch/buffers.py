"""A model's buffers in training: which of them a step writes, and how each of these travels.

What a step writes is found by a step: a forward pass in training mode and its backward pass, on a copy of the model. A buffer counts as written if its
tensor is changed in place, if ``forward`` re-assigns it, or if its values differ. How it travels follows from its kind, or from the model's own word:

==============  =====================================================  ==================================================
rule            default for                                            what happens
==============  =====================================================  ==================================================
``averaged``    floating-point statistics                              the mean over clients, weighted by their examples
``counted``     whole numbers and flags                                the server's own count; see `atoll.learn.round.state`
``local``       everything, with ``Training(buffers="local")``         stays in the client's private state
``anew``        a buffer whose shape or type a step changes            begins as the model has it, whenever a client is asked
==============  =====================================================  ==================================================

A model says otherwise in ``buffer_rules``, a dict of its class or instance: the name of a buffer of this module -> a rule. Such a buffer counts as written
even if no step was seen to write it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from atoll.core.errors import CompositionError, ConfigError, nearest

from .models import array_of, copy_owned
from .network import FunctionalModule, Held
from .own_state import OwnState, generator_states, seed_generators
from .shared_state import SharedState
from .tracing.keyed import Bounded

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree


__all__ = [
    "BufferRules",
    "Holding",
    "Withheld",
    "Written",
    "find_parameter_writes",
    "fixed_tensors",
    "require_known",
    "require_unwritten",
]

Tensor = torch.Tensor
_TABLE = 1024  # entries from which whole numbers are a table or a mask, and no counters
RULES = ("averaged", "counted", "local", "anew")


@dataclass(frozen=True)
class Written:
    """What training writes beside the trained parameters.

    Attributes:
        sent: name -> ``averaged`` or ``counted``.
        local: those of the client's private state.
        anew: those that begin as the model has them.
        loose: names of attributes that are no buffers; they begin anew, too, see `atoll.torch.own_state`.
        draws: global generators other than PyTorch's that a step draws from.
        shared: what functions of the model reach and a step changes, though it is nobody's own.
    """

    sent: Mapping[str, str]
    local: tuple[str, ...] = ()
    anew: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All buffers."""
        return (*self.sent, *self.local, *self.anew)

    @property
    def why(self) -> str:
        """Why clients cannot share a batch of the model, or ``""``."""
        if self.names:
            return f"a training pass changes the buffer {self.names[0]!r}"
        for kind, changed in (("attribute", self.loose), ("variable", self.shared)):
            if changed:
                return f"a training pass changes the {kind} {changed[0]!r}"
        return f"a training pass draws from {self.draws[0]}" if self.draws else ""


class BufferRules:
    """How the buffers of one model travel, found once and then the same for all clients.

    Args:
        mode: ``averaged`` or ``local``; see `LocalTraining`.
    """

    def __init__(self, mode: str = "averaged") -> None:
        self.mode = mode
        self.found: Written | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BufferRules) and self.mode == other.mode

    def __hash__(self) -> int:
        return hash(self.mode)

    def find_rules(self, network: FunctionalModule) -> Written:
        """Return what was found, or what the model's layers and its own word tell before a step was seen."""
        return self.found or self._make_rules(network, _Seen(structural_writes(network.training)))

    def look(self, network: FunctionalModule, x: Tensor) -> Written:
        """Return what a step writes, found on two of these rows, or on made-up rows of their form if there are none.

        Raises:
            CompositionError: a buffer of the model's state dict begins with, or changes, its shape or type in the step.
            Exception: what the model raises on these rows.
        """
        if self.found is None:
            seen = _watch_step(network, x)
            if seen is None:
                return self.find_rules(network)
            self.found = self._make_rules(network, seen)
        return self.found

    def all_of(self, network: FunctionalModule, x: Tensor | None = None) -> Written:
        """Return what a loop of the user's own may write: every buffer of the state dict, except numbers that are not finite and tables of whole numbers.

        What else a step on these rows writes counts, too, if the model takes them as they are.
        """
        if self.found is None:
            kept = set(network.training.state_dict(keep_vars=True))
            names = [name for name, value in network.training.named_buffers() if name in kept and _moves(value)]
            seen = None
            with contextlib.suppress(Exception):
                seen = None if x is None else _watch_step(network, x.to(network.device), strict=False)
            seen = seen or _Seen([])
            names += [name for name in seen.names if name not in names and name not in seen.reshaped]
            self.found = self._make_rules(network, _Seen(names, loose=seen.loose, shared=seen.shared))
        return self.found

    def note_loose(self, names: Iterable[str]) -> None:
        """Take note of further attributes that training changes."""
        if self.found is not None:
            self.found = replace(self.found, loose=tuple(dict.fromkeys([*self.found.loose, *names])))

    def notes(self, network: FunctionalModule) -> list[str]:
        """Return how each buffer that training writes travels, as sentences."""
        plan = self.find_rules(network)
        told = {
            "averaged over the clients": [name for name, rule in plan.sent.items() if rule == "averaged"],
            "counted by the server": [name for name, rule in plan.sent.items() if rule == "counted"],
            "made again from their weights at the server": [n for n in plan.names if n in network.spectral],
            "kept at each client, so that the server measures nothing, and the model predicts with a client's own alone": plan.local,
            "set back to the model's own whenever a client is asked": plan.anew,
        }
        made = "made again from their weights at the server"
        told = {w: [n for n in names if w == made or n not in network.spectral] for w, names in told.items()}
        found = [f"Buffers {what}: {', '.join(names)}." for what, names in told.items() if names]
        known = {*structural_writes(network.training), *network.spectral}
        means = [name for name, rule in plan.sent.items() if rule == "averaged" and name not in known]
        if means:
            found.append(
                f"{', '.join(means)}: of what each client's steps leave, the mean by examples. Of unit vectors, matrices that whiten, maxima or counts it is none: "
                "such a buffer needs a rule of its own in buffer_rules."
            )
        if plan.loose:
            found.append(
                f"Training changes attributes that are no buffers, and every client begins with their first values, as the returned model does: "
                f"{', '.join(plan.loose)}. Use register_buffer for what must last."
            )
        if plan.shared:
            found.append(
                f"Training changes what clients, rounds and measurements share, so that a result can depend on their order: {', '.join(plan.shared)}. "
                "Use register_buffer for what must last, and attributes of the model for what must not."
            )
        lost = [name for name in network.loss_changes if name not in generator_states()]
        if lost:
            found.append(
                f"The loss changes {', '.join(lost)}, and every client and every measurement begins with its first value."
            )
        return [*found, *network.loss_notices]

    def _make_rules(self, network: FunctionalModule, seen: _Seen) -> Written:
        told = _told_rules(network.training)
        sent, local, anew = dict[str, str](), list[str](), list[str]()
        for name, value in fixed_tensors(network.training):
            if name not in seen.names and name not in told:
                continue
            plain = "averaged" if value.is_floating_point() else "counted"
            rule = told.get(name) or ("anew" if name in seen.reshaped else "local" if self.mode == "local" else plain)
            if rule == "averaged" and plain != "averaged":
                raise ConfigError(
                    f"buffer_rules has {name!r} averaged, but it is of {_kind(value)}",
                    where="Training.model",
                    remedy="use 'counted', 'local' or 'anew', or keep it as a floating-point buffer",
                )
            if rule == "anew":
                anew.append(name)
            elif rule == "local":
                local.append(name)
            else:
                sent[name] = rule
        return Written(sent, tuple(local), tuple(anew), tuple(seen.loose), tuple(seen.draws), tuple(seen.shared))


class Holding:
    """A learner whose clients may keep buffers of the model: what is measured and served without them is refused.

    Attributes:
        model: the module as it was given.
        network: the model as pure functions.
        rules: how its buffers travel.
        cast: what is done in the type of the network's numbers, if the model's differ.
    """

    model: nn.Module
    network: FunctionalModule
    rules: BufferRules
    cast: ClassVar[str] = "trained and measured"

    @property
    def notices(self) -> Sequence[str]:
        """Return how each of the model's buffers travels, and of which type the numbers are, as sentences."""
        ours = _kind(self.network.training.get_parameter(self.network.names[0]))
        others = sorted({_kind(p) for p in self.model.parameters() if p.requires_grad} - {ours})
        cast = f"The model's parameters of {' and '.join(others)} are {self.cast} in {ours}, and rounded in the model that is returned."
        return [*self.rules.notes(self.network), *([cast] if others else [])]

    @property
    def withheld(self) -> tuple[str, ...]:
        """Return the buffers that stay at the clients, so that the server cannot measure the model."""
        return tuple(name for name in self.rules.find_rules(self.network).local if name not in self.network.spectral)

    def held(self, params: Tree, state: Tree) -> tuple[Tree, bool]:
        """Return a model as the client with this private state has it, with its own buffers, and whether training has made them.

        A client that has not trained has the buffers of the model as it was given.
        """
        names = self.withheld
        if not names:
            return params, True
        if isinstance(state, Mapping) and "client" in state:  # of a node, beside its model
            state = state["client"]
        own = state["buffers"] if isinstance(state, Mapping) and set(state) == {"algorithm", "buffers"} else None
        given = {name: array_of(self.network.frozen[name]) if own is None else own[name] for name in names}
        return {**given, **params}, own is not None

    def require_held(self, params: Tree) -> None:
        """Refuse to measure a model without the buffers that clients keep.

        Raises:
            CompositionError: some are missing.
        """
        missing = [name for name in self.withheld if name not in params]
        if missing:
            raise _withheld(missing, self.network.title)

    def export_module(self, module: nn.Module, params: Tree) -> nn.Module:
        """Return the module; without the buffers that clients keep, it refuses to predict until they are loaded."""
        missing = tuple(name for name in self.withheld if name not in params)
        if missing:
            Withheld(missing, self.network.title).guard(module)
        return module


class Withheld:
    """Refuses the predictions of a model whose buffers are at the clients, until a client's are loaded or training makes some.

    Args:
        names: the buffers.
        title: of the model.
    """

    def __init__(self, names: tuple[str, ...], title: str) -> None:
        self.names, self.title = names, title

    def guard(self, module: nn.Module) -> None:
        """Watch a model."""
        module.register_forward_pre_hook(self)
        module.register_load_state_dict_post_hook(self.note_loaded)  # type: ignore[no-untyped-call]

    def __call__(self, module: nn.Module, given: Any) -> None:
        """Refuse a pass in evaluation mode."""
        if module.training:
            self.names = ()
        elif self.names:
            raise _withheld(self.names, self.title)

    def note_loaded(self, module: nn.Module, keys: Any) -> None:
        """Take note of a state dict."""
        del module
        self.names = tuple(name for name in self.names if name in keys.missing_keys)


def _withheld(names: Sequence[str], title: str) -> CompositionError:
    return CompositionError(
        f"buffers of {title} are at the clients ({', '.join(names)}), and without them its predictions mean nothing",
        where="Training.buffers",
        remedy="measure with Evaluation(clients=-1), which uses each client's own, load the buffers of one client into the model, or use buffers='averaged'",
    )


def fixed_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return what of a model is no trained parameter, by name: its buffers, and parameters that only ``forward`` may change."""
    yield from ((name, p) for name, p in module.named_parameters() if not p.requires_grad)
    yield from module.named_buffers()


def structural_writes(module: nn.Module) -> list[str]:
    """Return the buffers of layers that are known to keep running statistics of their training inputs."""
    return [
        _join_names(prefix, name)
        for prefix, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats
        for name, _ in layer.named_buffers(recurse=False)
    ]


def _told_rules(module: nn.Module) -> dict[str, str]:
    """Return what modules say of their own buffers: full name -> rule.

    Raises:
        ConfigError: no such buffer, or no such rule.
    """
    found = dict[str, str]()
    for prefix, layer in module.named_modules():
        told = getattr(layer, "buffer_rules", None)
        own = dict(fixed_tensors(layer))
        for name, rule in told.items() if isinstance(told, Mapping) else ():
            if name not in own or rule not in RULES:
                given, known, kind = (rule, RULES, "rule") if name in own else (name, tuple(own), "buffer")
                raise ConfigError(
                    f"buffer_rules of {type(layer).__name__} has {name!r}: {rule!r}, and there is no such {kind}.{nearest(str(given), known)}",
                    where="Training.model",
                    remedy=f"use one of {', '.join(known)}" if known else "register the buffer, or leave the rule out",
                )
            found[_join_names(prefix, name)] = rule
    return found


def _moves(value: Tensor) -> bool:
    return bool(value.isfinite().all()) if value.is_floating_point() else value.numel() <= _TABLE


def require_known(plan: Written, written: Iterable[str], title: str) -> None:
    """Refuse a buffer that some clients write, and that nothing told of before: it would be lost, or be that of some clients alone.

    Raises:
        CompositionError: names it.
    """
    unknown = next((name for name in written if name not in plan.names), None)
    if unknown is not None:
        name = unknown.rpartition(".")[2]
        raise CompositionError(
            f"training writes the buffer {unknown!r} of {title} at some clients, and a first step did not",
            where="Training.model",
            remedy=f"say in its module how it travels: buffer_rules = {{{name!r}: 'averaged'}}, or 'counted', 'local' or 'anew'",
        )


def _join_names(*names: str) -> str:
    return ".".join(name for name in names if name)


def _kind(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


# ---------------------------------------------------------------- a step, and what it writes


@dataclass
class _Seen:
    """What steps wrote: buffers, those of them that changed their form, and further attributes; and what they drew from."""

    names: list[str]
    reshaped: set[str] = field(default_factory=set)
    loose: list[str] = field(default_factory=list)
    draws: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)


def _watch_step(network: FunctionalModule, x: Tensor, *, strict: bool = True) -> _Seen | None:
    """Return what a training step writes; ``None`` if there are no rows, and the model takes none that are made up."""
    rows = x[:2] if len(x) > 1 else x[[0, 0]] if len(x) else x.new_zeros((2, *x.shape[1:]))
    with warnings.catch_warnings():  # training says them
        warnings.simplefilter("ignore")
        try:
            seen = _step(network, rows, moved=False, strict=strict)
        except CompositionError:
            raise
        except Exception:
            if len(x):
                raise
            return None
        with contextlib.suppress(Exception):
            # What rows and buffers of zeros hide: a moving average that is written past autograd's sight.
            other = _step(network, _unlike(rows), moved=True, strict=strict)
            seen.names += other.names
            seen.loose = list(dict.fromkeys([*seen.loose, *other.loose]))
            seen.shared = list(dict.fromkeys([*seen.shared, *other.shared]))
            network.looks_back = _looks_back(network, rows)
    return seen


def _unlike(rows: Tensor) -> Tensor:
    """Return other rows of the same form; indices stay, since a table has only some."""
    if not rows.is_floating_point():
        return rows
    steps = torch.arange(rows.numel(), dtype=rows.dtype, device=rows.device).reshape(rows.shape)
    return rows + torch.sin(1.0 + steps)


def _step(network: FunctionalModule, rows: Tensor, *, moved: bool, strict: bool) -> _Seen:
    module, own = _trial(network)
    shared = SharedState([module], own)
    before = {name: value.detach().clone() for name, value in fixed_tensors(module)}
    if moved:
        before = {name: value + 0.25 if value.is_floating_point() else value for name, value in before.items()}
    held = Held({name: value.clone() for name, value in before.items()})
    held.strict = strict
    given = {name: (value, value._version) for name, value in held.items()}
    params = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters() if p.requires_grad}
    seed = torch.zeros(2, dtype=torch.int64, device=network.device)
    with torch.enable_grad(), seed_generators(0), Bounded(seed, strict=False):
        states = generator_states()
        made = network.outputs(params, held, rows, training=True, module=module)
        with contextlib.suppress(Exception):  # training reports it
            made.float().sum().backward()
        now = generator_states()
    # PyTorch's own draws are keyed on every path.
    draws = [name for name in states if name != "torch" and states[name] != now[name]]
    seen = _Seen([], loose=own.list_changes(), draws=draws, shared=shared.list_changes())
    kept = set(module.state_dict(keep_vars=True))
    for name, first in before.items():
        last, (tensor, version) = held[name].detach(), given[name]
        if (last.shape, last.dtype) != (first.shape, first.dtype):
            if name in kept:
                raise _make_form_error(
                    network, name, f"turns the buffer {name!r} from {_form(first)} into {_form(last)}"
                )
            seen.reshaped.add(name)
        elif held[name] is tensor and tensor._version == version and _same(last, first):
            continue
        seen.names.append(name)
    seen.loose += _born(network, module, {**params, **before}, kept)
    own.restore()
    shared.restore()
    return seen


def _looks_back(network: FunctionalModule, rows: Tensor) -> bool:
    """Tell whether a gradient depends on what the model itself holds, and not on the parameters of its pass alone: a backward hook reads its weights."""
    module, own = _trial(network)
    shared = SharedState([module], own)
    kept = [(p, p.detach().clone()) for p in module.parameters()]
    params = {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}
    fixed = {name: value.detach().clone() for name, value in fixed_tensors(module)}
    seed, found = torch.zeros(2, dtype=torch.int64, device=network.device), []
    try:
        for far in (0.0, 0.25):
            with torch.no_grad():
                for own_tensor, value in kept:
                    own_tensor.copy_(value + far)
            leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
            with torch.enable_grad(), seed_generators(0), Bounded(seed, strict=False):
                held = Held({name: value.clone() for name, value in fixed.items()})
                made = network.outputs(leaves, held, rows, training=True, module=module).float()
                steps = torch.arange(made.numel(), dtype=made.dtype, device=made.device).reshape(made.shape)
                (made * torch.sin(1.0 + steps)).sum().backward()
            found.append({name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None})
            own.restore()
            shared.restore()  # both passes begin alike, and training with what was there
    finally:
        shared.restore()
        with torch.no_grad():
            for own_tensor, value in kept:
                own_tensor.copy_(value)
    return found[0].keys() != found[1].keys() or not all(_same(value, found[1][n]) for n, value in found[0].items())


def _born(network: FunctionalModule, module: nn.Module, before: Mapping[str, Any], kept: set[str]) -> list[str]:
    """Return the buffers that a step has made, and that are not saved; what else it has made is refused."""
    made = [name for name, _ in module.named_buffers() if name not in before]
    for name in made:
        if name in kept:
            raise _make_form_error(network, name, f"makes the buffer {name!r}, which has no value before")
    for name, _ in module.named_parameters():
        if name not in before:
            raise CompositionError(
                f"the first training step of {network.title} makes the parameter {name!r}, which training would leave as it is",
                where="Training.model",
                remedy="make it in __init__, with a lazy layer such as nn.LazyLinear if its shape follows from the data",
            )
    return made


class _ParameterWrites(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that writes into the memory of a parameter: through ``data``, ``detach()`` or a view, too, and whatever the values.

    Args:
        params: the parameters by name.
    """

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = {p.untyped_storage()._cdata: name for name, p in params.items()}
        self.written = list[str]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return what avoids loading PyTorch's compiler, which takes two seconds: there is nothing to guard against it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Look at the arguments that the operation's schema says it writes."""
        given = kwargs or {}
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else given.get(argument.name)
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                    name = self.names.get(tensor.untyped_storage()._cdata)
                    self.written += [] if name is None else [name]
        return func(*args, **given)


def find_parameter_writes(network: FunctionalModule, x: Tensor) -> list[str]:
    """Return the trained parameters that a pass in training mode writes itself, past their gradients."""
    rows = x[:2] if len(x) > 1 else x[[0, 0]] if len(x) else x.new_zeros((2, *x.shape[1:]))
    module, own = _trial(network)
    params = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters() if p.requires_grad}
    held = Held({name: value.detach().clone() for name, value in fixed_tensors(module)})
    seed = torch.zeros(2, dtype=torch.int64, device=network.device)
    with warnings.catch_warnings(), torch.enable_grad(), seed_generators(0):
        warnings.simplefilter("ignore")
        try:
            with Bounded(seed, strict=False), _ParameterWrites(params) as seen:
                network.outputs(params, held, rows, training=True, module=module)
        except Exception:
            if len(x):
                raise
        finally:
            own.restore()
    return list(dict.fromkeys(seen.written))


def require_unwritten(written: Sequence[str], title: str) -> None:
    """Refuse a pass that writes parameters itself, where only noisy gradients may move them.

    Raises:
        CompositionError: names them.
    """
    if written:
        raise CompositionError(
            f"training writes parameters of {title} ({', '.join(written)}) beside their gradients, and they would leave the clients without noise",
            where="Training.model",
            remedy="let gradients alone change them, or use GaussianLDP or CentralDP, which clip and noise the whole update",
        )


def _trial(network: FunctionalModule) -> tuple[nn.Module, OwnState]:
    """Return a copy of the model in training mode, and what it owns beside its parameters and buffers."""
    network.restore()
    try:
        module, owned = copy_owned(network.training)
    except Exception:  # it was used, and holds what cannot be copied
        return network.training, network.own
    return module, OwnState(module, owned)


def _same(one: Tensor, other: Tensor) -> bool:
    same = torch.equal(one.nan_to_num(), other.nan_to_num()) if one.is_floating_point() else torch.equal(one, other)
    return bool(same)


def _form(value: Tensor) -> str:
    return f"{_kind(value)} of shape {tuple(value.shape)}"


def _make_form_error(network: FunctionalModule, name: str, what: str) -> CompositionError:
    return CompositionError(
        f"the first training step of {network.title} {what}: a server could not average it",
        where="Training.model",
        remedy=f"register {name.rpartition('.')[2]!r} with a tensor of its shape and type; with persistent=False if it only saves time",
    )
