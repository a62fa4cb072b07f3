"""The PyTorch side of the methods: adapters, heads, an encoder with trained parts, and the learner of a tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from atoll.core.errors import ConfigError
from atoll.core.extras import need
from atoll.torch import TorchLearner

from .encoder import copy_sharing, pooled_of, quiet, unit_rows
from .lora_mean import RESIDUAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.learner import LearnerSettings

    from .encoded_rows import EncodedRows
    from .encoder import Encoder, Modality
    from .methods import EncoderTarget

__all__ = [
    "AttentionAdapter",
    "BottleneckAdapter",
    "FeatureClassifier",
    "LanguageModel",
    "TokenClassifier",
    "TowerClassifier",
    "TunedLearner",
    "copy_trainable",
    "copy_with_peft",
    "follow_rules",
    "in_batch_loss",
    "linear_head",
    "merge_residuals",
    "tokens_of",
    "tower_of",
    "unchanged",
    "wrap_with_peft",
]


class AttentionAdapter(nn.Module):
    """``softmax(W2 tanh(W1 x + b1) + b2) * x``: attention over the features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features of the same shape, ``(rows, width)``."""
        return torch.softmax(self.outer(torch.tanh(self.inner(x))), dim=-1) * x


class BottleneckAdapter(nn.Module):
    """``x + ratio * U relu(D x)``; ``U`` begins at zero, so that the first scores are those without an adapter."""

    def __init__(self, width: int, hidden: int, ratio: float) -> None:
        super().__init__()
        self.down, self.up, self.ratio = nn.Linear(width, hidden), nn.Linear(hidden, width), ratio
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features of the same shape, ``(rows, width)``."""
        made: torch.Tensor = x + self.ratio * self.up(torch.relu(self.down(x)))
        return made


class FeatureClassifier(nn.Module):
    """Adapted features against the classes' prompts: ``scale * cos(adapter(x), prompt)``, with the prompts adapted too where an adapter of theirs is given."""

    def __init__(
        self, adapter: nn.Module, prompts: NDArray[Any], scale: float, prompt_adapter: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.adapter, self.prompt_adapter, self.scale = adapter, prompt_adapter, scale
        self.prompts: torch.Tensor
        given = np.array(prompts if prompt_adapter is not None else unit_rows(prompts), dtype=np.float32)
        self.register_buffer("prompts", torch.as_tensor(given), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores, ``(rows, classes)``."""
        prompts = self.prompts
        if self.prompt_adapter is not None:
            prompts = functional.normalize(self.prompt_adapter(prompts), dim=-1)
        return self.scale * functional.normalize(self.adapter(x), dim=-1) @ prompts.T


class TokenClassifier(nn.Module):
    """An encoder with trained parts: the mean of its last states over a text's tokens, and a linear head or prompts."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores, ``(rows, classes)``, of ids and masks, ``(rows, 2, length)``."""
        ids, mask = x[:, 0], x[:, 1]
        states = self.body(input_ids=ids, attention_mask=mask).last_hidden_state[
            :, -ids.shape[1] :
        ]  # virtual tokens stand before
        weight = mask.unsqueeze(-1).to(states.dtype)
        scores: torch.Tensor = self.head((states * weight).sum(1) / weight.sum(1).clamp(min=1.0))
        return scores


class TowerClassifier(nn.Module):
    """One side of a dual encoder with trained parts: its projected features, and a linear head or prompts."""

    def __init__(self, body: nn.Module, head: nn.Module, modality: Modality) -> None:
        super().__init__()
        self.body, self.head, self.modality = body, head, modality

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores, ``(rows, classes)``, of prepared images, ``(rows, 3, height, width)``, or of ids and masks, ``(rows, 2, length)``."""
        body: Any = self.body
        if self.modality == "image":
            made = body.get_image_features(pixel_values=x)
        else:
            made = body.get_text_features(input_ids=x[:, 0], attention_mask=x[:, 1])
        scores: torch.Tensor = self.head(pooled_of(made))
        return scores


class LanguageModel(nn.Module):
    """A causal language model with trained parts."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of each next token, ``(rows, vocabulary, length)``."""
        ids, mask = x[:, 0], x[:, 1]
        made: torch.Tensor = self.body(input_ids=ids, attention_mask=mask).logits[:, -ids.shape[1] :]
        return made.transpose(1, 2)


def unchanged() -> nn.Module:
    """Return a layer that changes nothing."""
    return nn.Identity()


def linear_head(width: int, classes: int) -> nn.Linear:
    """Return a linear layer that begins at zero."""
    made = nn.Linear(width, classes)
    nn.init.zeros_(made.weight)
    nn.init.zeros_(made.bias)
    return made


def tokens_of(body: nn.Module, encoder: Encoder, target: EncoderTarget) -> nn.Module:
    """Return a tuned encoder behind tokens, or images: a language model, or a classifier with prompts or a linear head."""
    if encoder.kind == "causal":
        return LanguageModel(body)
    head: nn.Module
    if target.prompts is None:
        head = linear_head(encoder.width, target.classes)
    else:
        head = FeatureClassifier(unchanged(), target.prompts, target.scale)
    return TowerClassifier(body, head, encoder.modality) if encoder.dual else TokenClassifier(body, head)


def tower_of(encoder: Encoder) -> nn.Module:
    """Return a model over the encoder's shared tensors that can be changed; of a dual encoder only the side of its rows, so that nothing else is trained."""
    made: Any = copy_sharing(encoder.model)
    if encoder.dual:
        other = "text" if encoder.modality == "image" else "vision"
        for name in (f"{other}_model", "text_projection" if other == "text" else "visual_projection", "logit_scale"):
            delattr(made, name)
    body: nn.Module = made
    return body


def copy_trainable(model: nn.Module, chosen: Callable[[str], bool]) -> nn.Module:
    """Return a model over the same frozen tensors, with tensors of its own where a name is chosen to be trained."""
    made: nn.Module = copy_sharing(model)
    own: dict[int, nn.Parameter] = {}
    for name, p in list(made.named_parameters(remove_duplicate=False)):
        if chosen(name):
            layer, _, last = name.rpartition(".")
            fresh = own.setdefault(id(p), nn.Parameter(p.detach().clone()))  # a tied tensor stays tied
            setattr(made.get_submodule(layer), last, fresh)
    return made


def wrap_with_peft(encoder: Encoder, config: Any) -> nn.Module:
    """Return peft's model over the encoder's shared weights.

    Raises:
        ConfigError: no layer of the encoder fits the targets, or a rank exceeds a layer.
    """
    library = need("peft", "encoders", "Peft")
    where = f"Peft({config.peft_type})"
    body = tower_of(encoder)
    names = sorted({n.rpartition(".")[2] for n, layer in body.named_modules() if isinstance(layer, nn.Linear)})
    if encoder.dual and config.is_prompt_learning:
        raise ConfigError(
            "a dual encoder takes no virtual tokens",
            where=where,
            remedy="use a method that changes layers, such as peft.LoraConfig of the layers q_proj and v_proj",
        )
    try:
        with quiet():
            made: nn.Module = library.get_peft_model(body, config)
    except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
        raise ConfigError(
            f"peft cannot change this encoder: {str(error).strip().splitlines()[0]}",
            where=where,
            remedy=f"give the configuration target_modules of this encoder, such as {', '.join(names[:12])}, and a rank of at least 1",
        ) from error
    _tell_no_place(made, encoder)
    for name, p in made.named_parameters():
        if ".lora_A." in name and p.dim() == 2:
            out = made.get_parameter(name.replace(".lora_A.", ".lora_B."))
            if p.shape[0] > min(p.shape[1], out.shape[0]):
                raise ConfigError(
                    f"the rank {p.shape[0]} exceeds {name.partition('.lora_A.')[0]!r}, a layer of {out.shape[0]} × {p.shape[1]}",
                    where=where,
                    remedy=f"use r={min(p.shape[1], out.shape[0])} or less",
                )
    return made


def follow_rules(module: nn.Module, *, residual: bool, frozen: bool) -> nn.Module:
    """Return the module with what an aggregation asks of the layers that LoRA changes; see `atoll.adapters.lora_mean.FactorRules`.

    A residual ``R``, ``(out, in)``, adds ``scaling * R x`` to what the layer makes. It has no gradient: the server alone moves it.
    """
    changed: list[Any] = [one for one in module.modules() if "default" in getattr(one, "lora_A", {})]
    for layer in changed:
        a, b = layer.lora_A["default"], layer.lora_B["default"]
        if frozen:
            a.requires_grad_(False)
        if residual and isinstance(a, nn.Linear):
            layer.register_parameter(RESIDUAL, nn.Parameter(torch.zeros(b.out_features, a.in_features)))
            layer.register_forward_hook(_add_residual)
    return module


def _add_residual(layer: Any, given: tuple[Any, ...], made: torch.Tensor) -> torch.Tensor:
    added = functional.linear(given[0], layer.residual.detach()).to(made.dtype)
    total: torch.Tensor = made + layer.scaling["default"] * added
    return total


def copy_with_peft(encoder: Encoder, config: Any, values: Mapping[str, NDArray[np.float32]]) -> nn.Module:
    """Return peft's model over the encoder's shared weights with some values, by name."""
    made: nn.Module = need("peft", "encoders", "Peft").get_peft_model(tower_of(encoder), config)
    _tell_no_place(made, encoder)
    with torch.no_grad():
        for name, value in values.items():
            made.get_parameter(name).copy_(torch.from_numpy(value))
    return made


def _tell_no_place(made: Any, encoder: Encoder) -> None:
    """Let a saved adapter name its encoder, and no place of this machine."""
    for one in made.peft_config.values():
        one.base_model_name_or_path = Path(encoder.folder).name


def merge_residuals(module: Any, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Return the settings of a LoRA whose factors alone do what factors and residual did, of a rank that is enough for each layer, and its factors by name."""
    made, ranks, alphas = dict[str, "NDArray[np.float32]"](), dict[str, int](), dict[str, float]()
    for name, layer in module.named_modules():
        if RESIDUAL in getattr(layer, "_parameters", {}):
            a, b = (getattr(layer, one)["default"].weight.detach().double() for one in ("lora_A", "lora_B"))
            u, s, v = np.linalg.svd((layer.residual.detach().double() + b @ a).numpy(), full_matrices=False)
            rank = max(1, int((s > s[0] * 1e-7).sum()))
            plain = name.partition("base_model.model.")[2]
            ranks[plain] = rank
            alphas[plain] = layer.scaling["default"] * (rank**0.5 if config.get("use_rslora") else rank)
            root = np.sqrt(s[:rank])
            made[f"{name}.lora_B.default.weight"] = (u[:, :rank] * root).astype(np.float32)
            made[f"{name}.lora_A.default.weight"] = (root[:, None] * v[:rank]).astype(np.float32)
    return {**config, "rank_pattern": ranks, "alpha_pattern": alphas}, made


def in_batch_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of FedCLIP's Eq. 8: each row against the prompts of all rows of the mini-batch, and each prompt against all rows.

    ``S_ij = outputs[i, y_j]``, ``loss = (CE(S, diagonal) + CE(S', diagonal)) / 2``. Rows of one class have one prompt, so that it cannot fall below the mean
    of ``log(rows of the class in the mini-batch)``.
    """
    scores = outputs[:, targets]
    place = torch.arange(scores.shape[0], device=scores.device)
    return (functional.cross_entropy(scores, place) + functional.cross_entropy(scores.T, place)) / 2


class TunedLearner(TorchLearner):
    """A tuned encoder as a learner: its tasks meet texts or images encoded, at the party.

    Args:
        build: makes the module; its new weights follow PyTorch's generator.
        rows: how texts or images become rows.
        settings: the training's settings.
        task: the data's task.
    """

    def __init__(self, build: Callable[[], nn.Module], rows: EncodedRows, settings: LearnerSettings, task: str) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            made = build()
        super().__init__(made, replace(settings, factory=build), task)
        self.rows = rows
        self.train, self.measure, self.report = map(rows.task, (self.train, self.measure, self.report))
