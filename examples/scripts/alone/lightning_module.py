"""A module and the Trainer of Lightning."""

import sys

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def train(model, loader):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet)
    trainer.fit(model, loader)
    return trainer.callback_metrics["loss"].item()


if __name__ == "__main__":
    rows = np.load(sys.argv[1])
    x, y = torch.tensor(rows["x"], dtype=torch.float32), torch.tensor(rows["y"])
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    model = Digits()
    loss = train(model, loader)
    print(f"loss {loss:.3f}")
