"""The scripts of ``examples/scripts``, what they need, and rows that they can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import atoll

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "scripts"
FEDERATED = EXAMPLES / "federated"
SCRIPTS = {
    # script: what makes the model, libraries, further arguments, whether Atoll can measure it on digits
    "plain_numpy": ("plain_numpy:start", (), (), False),
    "pytorch_loop": ("pytorch_loop:net", ("torch",), (), True),
    "scikit_learn": ("scikit_learn:classifier", ("sklearn",), (), True),
    "hugging_face": ("hugging_face:bert", ("transformers", "accelerate"), (), False),
    "hugging_face --lora": ("hugging_face:adapters", ("transformers", "accelerate", "peft"), ("--lora",), False),
    "lightning_module": ("lightning_module:Digits", ("lightning",), (), True),
}


def rows_for(name: str) -> tuple[Any, Any]:
    """Rows that a script can read: digits, or sentences of tokens whose first says the class."""
    if not name.startswith("hugging_face"):
        data = atoll.data.digits()
        return np.asarray(data.x, dtype=np.float64), np.asarray(data.y)
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 160)
    return np.concatenate([y[:, None] + 1, random.integers(3, 32, (160, 7))], axis=1), y
