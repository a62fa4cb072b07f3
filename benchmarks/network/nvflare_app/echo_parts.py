"""What NVFlare loads from the job: the model, the clock, and the client's half of the work."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey, make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType


def initial(layers: int, numbers: int) -> dict[str, np.ndarray]:
    """Return the first model: `numbers` float32 in `layers` equal arrays."""
    values = np.random.default_rng(0).standard_normal(numbers, dtype=np.float32)
    return {f"layer{i}": part.copy() for i, part in enumerate(np.split(values, layers))}


def added(client: int, clients: int) -> np.float32:
    """Return what a client adds to every number: different for each, 1 on average."""
    return np.float32(1 + (client - (clients - 1) / 2) / 8)


class Arrays(ModelPersistor):
    """Gives the first model; writes every later one with NumPy if asked to."""

    def __init__(self, layers: int, numbers: int, save: bool) -> None:
        super().__init__()
        self.layers, self.numbers, self.save_each = layers, numbers, save

    def load_model(self, fl_ctx: FLContext) -> ModelLearnable:
        """Return the first model."""
        return make_model_learnable(initial(self.layers, self.numbers), {})

    def save_model(self, model: ModelLearnable, fl_ctx: FLContext) -> None:
        """Write the model into the job's result folder."""
        if self.save_each:
            root = fl_ctx.get_workspace().get_result_root(fl_ctx.get_job_id())
            np.savez(Path(root) / "server.npz", **model[ModelLearnableKey.WEIGHTS])


class Clock(FLComponent):
    """Records when each average was complete and, at the end, how far the model is off."""

    def __init__(self, file: str, layers: int, numbers: int, rounds: int) -> None:
        super().__init__()
        self.file, self.layers, self.numbers, self.rounds = Path(file), layers, numbers, rounds
        self.stamps: list[float] = []
        self.model: dict[str, np.ndarray] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Listen to the workflow."""
        if event_type == AppEventType.AFTER_AGGREGATION:
            self.stamps.append(time.perf_counter())
            self.model = fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT).params
        elif event_type == EventType.END_RUN:
            first = initial(self.layers, self.numbers)
            worst = max(float(np.abs(self.model[k] - (v + self.rounds)).max()) for k, v in first.items())
            part = self.file.with_suffix(".part")
            part.write_text(json.dumps({"averaged_at": self.stamps, "worst_error": worst}))
            part.replace(self.file)


class Echo(Executor):
    """The client without NVFlare's Client API: add, return."""

    def __init__(self, clients: int) -> None:
        super().__init__()
        self.clients = clients

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """One task."""
        client = int(fl_ctx.get_identity_name().removeprefix("site-")) - 1
        plus = added(client, self.clients)
        weights = {k: np.asarray(v) + plus for k, v in from_shareable(shareable).data.items()}
        return DXO(DataKind.WEIGHTS, weights).to_shareable()
