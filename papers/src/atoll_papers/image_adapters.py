"""FedCLIP's attention on images: pictures in four renditions, each a participant, before a small dual encoder of our own.

Source: Lu, Hu, Wang, Xie 2023, "FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning". Its images (PACS, Office-Home, VLCS) and CLIP's weights are not to be
had here. In their place stand images of CIFAR-10 as they are, in grey, as edges and in few colours, and an encoder that `atoll.adapters.pretrain_encoder` makes from generated
pictures: it has seen no photograph. No number of the source's tables stands beside ours, since none could be compared; its protocol and the order of its methods do.

``--quick`` takes generated pictures of shapes in place of CIFAR-10, and a shorter pretraining.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import atoll
from atoll.adapters import AttAI, Bottleneck, LinearHead, Tuning, WholeModel, leave_domains_out, pretrain_encoder
from atoll.adapters.pretraining import SHAPES, draw_pictures
from atoll.algorithms import LocalAdam
from atoll.core.algebra.rng import Rng
from atoll.reproduce import Claim, Entry, keeping_nothing

__all__ = ["ENTRY", "RENDITIONS", "in_renditions", "measure_methods"]

Pixels = NDArray[np.uint8]
Columns = tuple[list[Pixels], list[str], list[str]]
"""Images, their classes, and their domains."""

PROMPT = "a picture of a {label}"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
METHODS: dict[str, Any] = {
    "linear": LinearHead(),
    "AttAI": AttAI(),
    "AttAI, text": AttAI("text"),
    "AttAI, both": AttAI("both"),
    "bottleneck": Bottleneck(),
    "whole model": WholeModel(),
}
_OF_EACH = {True: 60, False: 500}
_PAIRS = {True: 2048, False: 4096}
_STEPS = {True: 150, False: 400}


def _grey(images: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.repeat((images @ np.array([0.299, 0.587, 0.114]))[..., None], 3, axis=-1)


def _edges(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """Dark lines on white where the grey level changes."""
    level = _grey(images)[..., 0]
    down, across = np.gradient(level, axis=(1, 2))
    return np.repeat(np.clip(1 - 4 * np.hypot(down, across), 0, 1)[..., None], 3, axis=-1)


def _few_colours(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """Three levels a channel, after the mean of each pixel and its eight neighbours."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    side, other = images.shape[1:3]
    mean = sum(padded[:, i : i + side, j : j + other] for i in range(3) for j in range(3)) / 9
    return np.asarray(np.round(mean * 2) / 2)


RENDITIONS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "as it is": lambda images: images,
    "grey": _grey,
    "edges": _edges,
    "few colours": _few_colours,
}
"""What is made of images, ``(rows, height, width, 3)`` in [0, 1]."""


def in_renditions(pixels: Pixels, labels: list[str]) -> Columns:
    """Divide images among the renditions, in turn: each is in one of them."""
    made: Columns = ([], [], [])
    for place, (name, render) in enumerate(RENDITIONS.items()):
        own = slice(place, None, len(RENDITIONS))
        drawn = np.round(np.clip(render(pixels[own] / 255.0), 0, 1) * 255).astype(np.uint8)
        made[0].extend(drawn)
        made[1].extend(labels[own])
        made[2].extend([name] * len(drawn))
    return made


def _cifar(of_each: int) -> Columns:
    """Return images of CIFAR-10, as many of each class in each rendition, drawn with seed 0."""
    whole = atoll.data.cifar10_subset(scale=False)
    x, y = np.asarray(whole["x"]), np.asarray(whole["y"])
    rng = Rng.of(0).child("images").generator()
    count = of_each * len(RENDITIONS) // len(CLASSES)
    places = np.concatenate([rng.permutation(np.flatnonzero(y == code))[:count] for code in range(len(CLASSES))])
    return in_renditions(x[places].transpose(0, 2, 3, 1), [CLASSES[code] for code in y[places]])


def _shapes(of_each: int) -> Columns:
    pixels, y, _ = draw_pictures(of_each * len(RENDITIONS), Rng.of(1).child("images").generator())
    return in_renditions(pixels, [SHAPES[code] for code in y])


def measure_methods(
    encoder: str, columns: Columns, names: list[str], rounds: int, leave_out: str
) -> dict[str, dict[str, Any]]:
    """Return what `leave_domains_out` says of each method, with mixtures of AttAI."""
    found = {}
    for name in names:
        method = METHODS[name]
        job = Tuning(
            encoder=encoder, method=method, image="image", prompt="" if isinstance(method, LinearHead) else PROMPT, rounds=rounds, length=24,
            algorithm=LocalAdam(lr=1e-3, batch_size=32), selection=atoll.Everyone(),
        )  # fmt: skip
        found[name] = leave_domains_out(job, *columns, run=atoll.simulate, leave_out=leave_out, mix=name == "AttAI")
    return found


@contextmanager
def _setting(quick: bool) -> Iterator[tuple[str, float, Columns]]:
    """Give the encoder, the share of generated shapes that its prompts find, and the images."""
    with tempfile.TemporaryDirectory() as folder:
        made = pretrain_encoder(Path(folder) / "small", pairs=_PAIRS[quick], steps=_STEPS[quick])
        yield made.folder, made.shapes, (_shapes if quick else _cifar)(_OF_EACH[quick])


def _both(one: dict[str, Any]) -> str:
    return f"{one['personalization']:.3f}, {one['generalization']:.3f}"


@keeping_nothing("fedclip-images")
def _run(quick: bool) -> list[Claim]:
    names = ["AttAI", "AttAI, both"] if quick else [*METHODS]
    with _setting(quick) as (encoder, shapes, columns):
        found = measure_methods(encoder, columns, names, 3 if quick else 15, "edges" if quick else "each")
    attai, sides = found["AttAI"], found["AttAI, both"]
    zero = attai["zero_shot"]
    parts = [[*fold["domains"].values(), fold["generalization"]] for fold in attai["folds"]]
    made = [
        Claim.figure("generated shapes that the small encoder's prompts find, of eight", f"{shapes:.3f}", "it has seen no photograph"),
        Claim("AttAI is worth more than the prompts alone: personalization", None, f"{attai['personalization']:.3f} against {zero:.3f}", attai["personalization"] > zero, "FedCLIP has no such line"),
        Claim("comprehensive is the mean over all domains (Table 4)", None, f"{attai['comprehensive']:.4f}", bool(np.isclose(attai["comprehensive"], np.mean([np.mean(one) for one in parts]))), "an identity"),
        Claim("attention on both sides is worth at least that on images, less .01 (Figure 3)", None, f"{sides['comprehensive']:.3f} against {attai['comprehensive']:.3f}", sides["comprehensive"] >= attai["comprehensive"] - 0.01, "comprehensive"),
        Claim("a participant's own mixture is worth at least the shared adapter, less .01", None, f"{attai['mixed']:.3f} against {attai['personalization']:.3f}", attai["mixed"] >= attai["personalization"] - 0.01, "personalization"),
    ]  # fmt: skip
    if not quick:
        whole = found["whole model"]
        made += [
            Claim.figure(f"{name}: personalization, generalization; values trained; bytes up a round", f"{_both(found[name])}; {found[name]['trainable']:,}; {found[name]['bytes_up']:,}", "of a participant")
            for name in names
        ]  # fmt: skip
        made.append(Claim("AttAI is worth more than the whole encoder trained (Tables 2 to 4)", None, f"{attai['comprehensive']:.3f} against {whole['comprehensive']:.3f}", attai["comprehensive"] > whole["comprehensive"], "comprehensive; the source's encoder knows photographs, this one does not"))  # fmt: skip
    return made


ENTRY = Entry(
    name="fedclip-images",
    title="FedCLIP's attention adapter on images in four renditions, before a small encoder of generated pictures",
    source="Lu, Hu, Wang, Xie 2023, FedCLIP",
    run=_run,
    needs="CIFAR-10 below ATOLL_DATA, and minutes to pretrain the encoder; nothing with --quick",
    data=("cifar10_subset",),
    quick_data=(),
)
