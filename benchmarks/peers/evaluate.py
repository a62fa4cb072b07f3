"""Test loss and accuracy of saved weights, outside every timed part.

python -m peers.evaluate WORKLOAD FILE [FILE ...]      # one JSON object: file -> [loss, accuracy]
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from peers import torch_model
from workloads import load


@torch.no_grad()
def main() -> None:
    """Evaluate every named file."""
    plan = load(sys.argv[1])
    x, y = torch.from_numpy(plan.x_test), torch.from_numpy(plan.y_test)
    model = torch_model.build(plan.workload).eval()
    results = {}
    for file in sys.argv[2:]:
        with np.load(file) as archive:
            torch_model.load(model, [archive[key] for key in archive.files])
        logits = model(x)
        accuracy = (logits.argmax(dim=1) == y).double().mean()
        results[file] = [float(cross_entropy(logits, y)), float(accuracy)]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
