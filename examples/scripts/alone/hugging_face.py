"""A transformer and the Trainer of Hugging Face; with ``--lora``, adapters of PEFT alone."""

import sys

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SIZES, num_labels=2, max_position_embeddings=16))


def adapters():
    from peft import LoraConfig, get_peft_model

    return get_peft_model(bert(), LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))


class Sentences(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.tokens, self.labels = torch.tensor(rows["x"]), torch.tensor(rows["y"])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {"input_ids": self.tokens[row], "labels": self.labels[row]}


if __name__ == "__main__":
    rows = Sentences(np.load(sys.argv[1]))
    model = adapters() if "--lora" in sys.argv else bert()
    settings = TrainingArguments(
        "trainer", max_steps=4, learning_rate=1e-2, save_strategy="no", report_to=[], disable_tqdm=True
    )
    trainer = Trainer(model, settings, train_dataset=rows)
    loss = trainer.train().training_loss
    print(f"loss {loss:.3f}")
