"""Made-up utterances whose classes show in their phones, and less in words and frames."""

from __future__ import annotations

import numpy as np

from atoll.crossmodal import Utterances


def made_side(modality: str, count: int, seed: int, *, told: float = 0.6, width: int = 6) -> Utterances:
    """Utterances in which three phones name the class, nine times of ten; words or frames do so with probability ``told``."""
    draw, labels, phones, inputs = np.random.default_rng(seed), [], [], []
    for _ in range(count):
        positive, length = bool(draw.integers(2)), int(draw.integers(8, 16))
        spoken = draw.integers(0, 39, length)
        if draw.random() < 0.9:
            at = int(draw.integers(0, length - 2))
            spoken[at : at + 3] = (1, 5, 9) if positive else (2, 6, 10)
        phones.append(spoken)
        labels.append("positive" if positive else "negative")
        shown = draw.random() < told
        if modality == "text":
            words = [f"w{draw.integers(300)}" for _ in range(4)]
            inputs.append([*words, f"{'good' if positive else 'bad'}{draw.integers(30)}"] if shown else words)
        elif modality == "vector":
            vector = draw.normal(0, 1, width)
            vector[0] += (1.5 if positive else -1.5) * shown
            inputs.append(vector)
        else:
            frames = draw.normal(0, 1, (length, width))
            frames[:, 0] += (1.0 if positive else -1.0) * shown
            inputs.append(frames)
    return Utterances(modality, inputs, phones, labels)
