"""The PyTorch side of the methods: adapters, heads, an encoder with trained parts, and the learner of a tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from atoll.core.algebra.form import safetensors_of
from atoll.core.errors import ConfigError
from atoll.core.extras import need
from atoll.torch import TorchLearner

from .encoder import copy_sharing, image_features, quiet, text_features, unit_rows
from .lora_mean import RESIDUAL
from .saved import PEFT_FILES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.learner import LearnerSettings

    from .encoded_rows import EncodedRows
    from .encoder import Encoder
    from .methods import EncoderTarget

__all__ = [
    "AdaptedHead",
    "AttentionAdapter",
    "BottleneckAdapter",
    "ContextClassifier",
    "ContextPrompts",
    "FeatureClassifier",
    "ImageClassifier",
    "LanguageModel",
    "TokenClassifier",
    "TunedLearner",
    "copy_trainable",
    "copy_with_peft",
    "follow_rules",
    "in_batch_loss",
    "linear_head",
    "merge_residuals",
    "save_context",
    "tokens_of",
    "tower_of",
    "unchanged",
    "wrap_with_peft",
]


_CONTEXT = 16
"""Vectors where neither a count nor words are said (Zhou et al. 2022)."""


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
    """An encoder of texts with trained parts: its features, and a linear head or prompts."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores, ``(rows, classes)``, of ids and masks, ``(rows, 2, length)``."""
        scores: torch.Tensor = self.head(text_features(self.body, x[:, 0], x[:, 1]))
        return scores


class ImageClassifier(nn.Module):
    """An encoder of images with trained parts: its features, and a linear head or prompts."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores, ``(rows, classes)``, of prepared images, ``(rows, 3, height, width)``."""
        scores: torch.Tensor = self.head(image_features(self.body, x))
        return scores


class AdaptedHead(nn.Module):
    """Adapted features before a linear head, where no prompts tell the classes apart."""

    def __init__(self, adapter: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.adapter, self.head = adapter, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores, ``(rows, classes)``, of features, ``(rows, width)``."""
        scores: torch.Tensor = self.head(self.adapter(x))
        return scores


@dataclass(frozen=True)
class ContextPrompts:
    """Prompts of classes whose first words are vectors to be learnt.

    Attributes:
        tokens: ids and masks, ``(classes, 2, length)``; in the vectors' places stands any token.
        which: the vector of each place, ``(classes, length)``; -1 for none.
        vectors: what they begin at, ``(n, width)``.
    """

    tokens: NDArray[np.int64]
    which: NDArray[np.int64]
    vectors: NDArray[np.float32]

    @classmethod
    def make(cls, encoder: Encoder, labels: Sequence[str], prompt: str, count: int | None) -> ContextPrompts:
        """Return prompts for an encoder; new vectors follow PyTorch's generator.

        Args:
            encoder: the encoder.
            labels: the classes' names.
            prompt: a text for each class, with ``{label}`` where its name stands. The vectors begin at the words before.
            count: of vectors; ``None`` for as many as the prompt has words before the name, or 16 without any.

        Raises:
            ConfigError: the count is not that of the words, the words run into the name, or a prompt is longer than the encoder takes.
        """
        said = prompt or "{label}"
        before = said.partition("{label}")[0].strip()
        words = _ids_of(encoder, before, alone=True)
        rows = [_ids_of(encoder, said.replace("{label}", label)) for label in labels]
        if words and count not in (None, len(words)):
            raise ConfigError(
                f"tokens={count}, and the prompt has {len(words)} before the name of the class",
                where="PromptFL",
                remedy="leave tokens= out, so that the vectors begin at these words, or use prompt='{label}'",
            )
        place = _find_place(encoder, rows, words, before, labels)
        if not words:
            count = _CONTEXT if count is None else count
            rows = [[*row[:place], *[row[0]] * count, *row[place:]] for row in rows]
            vectors = nn.init.normal_(torch.empty(count, _table_of(encoder).shape[1]), std=0.02)  # Zhou et al. 2022
        else:
            vectors = _table_of(encoder)[words].detach()
        longest = max(map(len, rows))
        if longest > encoder.longest:
            raise ConfigError(
                f"a prompt of {longest} tokens, {len(vectors)} of them learnt, for an encoder that takes {encoder.longest}",
                where="PromptFL",
                remedy="use fewer tokens=, or shorter names of classes, or a larger length= if the encoder takes more",
            )
        return cls(*_pad_rows(encoder, rows, place, len(vectors)), vectors.numpy())


def _ids_of(encoder: Encoder, text: str, *, alone: bool = False) -> list[int]:
    made: list[int] = encoder.tokeniser(text, add_special_tokens=not alone)["input_ids"]
    return made


def _table_of(encoder: Encoder) -> torch.Tensor:
    side = encoder.model.text_model if encoder.dual else encoder.model
    table: torch.Tensor = side.get_input_embeddings().weight
    return table


def _find_place(
    encoder: Encoder, rows: Sequence[list[int]], words: list[int], before: str, labels: Sequence[str]
) -> int:
    """Return the place of the first vector: behind the marks with which every text begins."""
    marks = 0
    special = set(encoder.tokeniser.all_special_ids) - {encoder.tokeniser.unk_token_id}
    while marks < len(rows[0]) - 1 and rows[0][marks] in special:
        marks += 1
    for row, label in zip(rows, labels, strict=True):
        if row[marks : marks + len(words)] != words:
            raise ConfigError(
                f"the tokens of {before!r} change before the class {label!r}",
                where="PromptFL",
                remedy="put a space before {label}, as in 'a photo of a {label}'",
            )
    return marks


def _pad_rows(
    encoder: Encoder, rows: Sequence[list[int]], place: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ids with masks, and the places of vectors; a tokeniser that pads on the left counts places from the longest text that is asked for."""
    left = encoder.tokeniser.padding_side == "left"
    length = encoder.longest if left else max(map(len, rows))
    tokens, which = np.zeros((len(rows), 2, length), dtype=np.int64), np.full((len(rows), length), -1, dtype=np.int64)
    tokens[:, 0] = encoder.tokeniser.pad_token_id
    for at, row in enumerate(rows):
        begin = length - len(row) if left else 0
        tokens[at, 0, begin : begin + len(row)], tokens[at, 1, begin : begin + len(row)] = row, 1
        which[at, begin + place : begin + place + count] = np.arange(count)
    return tokens, which


class _Seats(nn.Module):
    """The encoder's token embeddings, with other vectors at some places: ``vectors[which]`` where ``which``, ``(rows, length)``, is no less than 0."""

    def __init__(self, table: nn.Module, which: NDArray[np.int64]) -> None:
        super().__init__()
        self.table = table
        self.vectors: torch.Tensor | None = None  # given for the time of a call
        self.which: torch.Tensor
        self.register_buffer("which", torch.from_numpy(which), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings, ``(rows, length, width)``."""
        made: torch.Tensor = self.table(ids)
        if self.vectors is None:
            return made
        if not len(self.vectors):
            return made + self.vectors.sum()  # 0, so that there is something to derive by
        return torch.where((self.which >= 0).unsqueeze(-1), self.vectors[self.which.clamp(min=0)], made)


class ContextClassifier(nn.Module):
    """Features against prompts with learnt vectors: ``scale * cos(x, t(V, class))``, with ``t`` the frozen side of texts.

    Args:
        encoder: the encoder.
        prompts: the classes' tokens, and the vectors' places among them.
        scale: factor on the cosine.
    """

    def __init__(self, encoder: Encoder, prompts: ContextPrompts, scale: float) -> None:
        super().__init__()
        self.tower, self.dual, self.scale = tower_of(replace(encoder, modality="text")), encoder.dual, scale
        self._texts.set_input_embeddings(_Seats(self._texts.get_input_embeddings(), prompts.which))
        self.context = nn.Parameter(torch.from_numpy(np.array(prompts.vectors)))
        self.tokens: torch.Tensor
        self.register_buffer("tokens", torch.from_numpy(prompts.tokens), persistent=False)

    @property
    def _texts(self) -> Any:
        tower: Any = self.tower
        return tower.text_model if self.dual else tower

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores, ``(rows, classes)``, of features, ``(rows, width)``."""
        seats = self._texts.get_input_embeddings()
        seats.vectors = self.context
        try:
            prompts = text_features(self.tower, self.tokens[:, 0], self.tokens[:, 1])
        finally:
            seats.vectors = None
        scores: torch.Tensor = self.scale * functional.normalize(x, dim=-1) @ functional.normalize(prompts, dim=-1).T
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


def save_context(encoder: Encoder, vectors: NDArray[Any], place: Path) -> None:
    """Write learnt vectors as peft writes those of prompt tuning: ``PeftModel.from_pretrained`` loads them."""
    config = getattr(encoder.model.config, "text_config", encoder.model.config)
    made = need("peft", "encoders", "PromptFL").PromptTuningConfig(
        task_type="FEATURE_EXTRACTION", num_virtual_tokens=len(vectors), token_dim=vectors.shape[1], num_transformer_submodules=1,
        num_attention_heads=config.num_attention_heads, num_layers=config.num_hidden_layers, base_model_name_or_path=Path(encoder.folder).name,
        inference_mode=True,
    )  # fmt: skip
    made.save_pretrained(str(place))
    (place / PEFT_FILES[1]).write_bytes(safetensors_of({"prompt_embeddings": vectors}, {}))


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
    return (ImageClassifier if encoder.modality == "image" else TokenClassifier)(body, head)


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


_BEGIN = ("gaussian", "orthogonal", "eva")
"""Ways in which LoRA's factors begin, by peft's names; others, such as PiSSA and OLoRA, take their product out of the layer."""


def wrap_with_peft(encoder: Encoder, config: Any) -> nn.Module:
    """Return peft's model over the encoder's shared weights.

    Raises:
        ConfigError: no layer of the encoder fits the targets, or a rank exceeds a layer.
    """
    library = need("peft", "encoders", "Peft")
    where = f"Peft({getattr(config.peft_type, 'value', config.peft_type)})"
    body = tower_of(encoder)
    names = sorted({n.rpartition(".")[2] for n, layer in body.named_modules() if isinstance(layer, nn.Linear)})
    if encoder.dual and config.is_prompt_learning:
        raise ConfigError(
            "a dual encoder takes no virtual tokens",
            where=where,
            remedy="use PromptFL(tokens=8), which learns vectors in the prompts of the classes, or a method that changes layers, such as peft.LoraConfig of q_proj and v_proj",
        )
    added = int(config.num_virtual_tokens or 0) if config.is_prompt_learning else 0
    if added and encoder.places is not None and encoder.longest + added > encoder.places:
        raise ConfigError(
            f"{added} virtual tokens before texts of {encoder.longest}, and the encoder has {encoder.places} places",
            where=where,
            remedy=f"use length={max(1, encoder.places - added)}, or fewer virtual tokens",
        )
    begin = getattr(config, "init_lora_weights", True)
    if isinstance(begin, str) and begin.lower() not in _BEGIN:
        raise ConfigError(
            f"init_lora_weights={begin!r} changes frozen values of the encoder, which is shared and which its hash names",
            where=where,
            remedy=f"leave init_lora_weights out of the configuration, or use {', '.join(map(repr, _BEGIN))}",
        )
    shared = {id(p) for p in body.parameters()}
    try:
        with quiet():
            made: nn.Module = library.get_peft_model(body, config)
    except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
        raise ConfigError(
            f"peft cannot change this encoder: {str(error).strip().splitlines()[0]}",
            where=where,
            remedy=f"give the configuration target_modules of this encoder, such as {', '.join(names[:12])}, and a rank of at least 1",
        ) from error
    _copy_trained(made, shared)
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


def _copy_trained(made: nn.Module, shared: set[int]) -> None:
    """Give what peft trains of the encoder's own values a copy: the encoder is shared by all that use its folder."""
    for name, p in list(made.named_parameters()):
        if p.requires_grad and id(p) in shared:
            layer, _, last = name.rpartition(".")
            setattr(made.get_submodule(layer), last, nn.Parameter(p.detach().clone()))
            p.requires_grad_(False)


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
