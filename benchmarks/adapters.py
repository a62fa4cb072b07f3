"""What tuning a frozen encoder costs: an epoch on kept features next to one that encodes, and the memory of twenty LoRA clients next to two.

    python benchmarks/adapters.py                       # both
    python benchmarks/adapters.py --texts 200           # fewer texts

The encoder has MiniLM's shape, 6 layers of 384, and random weights, which cost as much as trained ones. Both epochs are of AttAI, in processor seconds of one thread. Memory is the largest resident
set of a process that loads the encoder and trains a round of LoRA of rank 8, on its two and on its twenty clients.
Results go to `benchmarks/results/adapters.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import atoll
import numpy as np
import tokenizers
import torch
import transformers
from atoll.adapters import AttAI, Encoder, Peft, Tuning
from atoll.adapters.encoder import quiet

EPOCH, MEMORY = 50.0, 1.1
"""Least ratio of an epoch that encodes to one that does not, and largest ratio of memory."""
WORDS = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(2000))]


def make_encoder(folder: Path) -> Path:
    """A model of MiniLM's shape, and a tokeniser of made words."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    with quiet():
        transformers.BertModel(config).save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]"
        ).save_pretrained(folder)
    return folder


def write_texts(folder: Path, sites: int, rows: int) -> Path:
    """A CSV file a site, of texts as long as tweets."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for site in range(sites):
        lines = [f"{' '.join(rng.choice(WORDS[2:], 24))},{('a', 'b', 'c')[i % 3]}" for i in range(rows)]
        (folder / f"site-{site}.csv").write_text("\n".join(["text,label", *lines]))
    return folder


def islands(folder: Path) -> Any:
    return atoll.data.from_csv_folder(folder, target="label", keep=["text"], features=[])


def epochs(place: Path, rows: int) -> dict[str, float]:
    """Processor seconds of encoding all texts, and of an epoch on their features."""
    encoder = Encoder.open(str(place / "encoder"))
    data = islands(write_texts(place / "epoch", 1, rows))
    job = Tuning(
        encoder=str(place / "encoder"),
        method=AttAI(),
        length=64,
        rounds=1,
        algorithm=atoll.FedAvg(lr=0.1, batch_size=32),
        compile="never",
    )
    texts = job.model.rows.texts(data.shard(0))
    encoder.encode(texts[:8], cached=False)
    begin = time.process_time()
    encoder.encode(texts, cached=False)
    encoding = time.process_time() - begin
    several = job.replace(rounds=11)
    found = []
    for one in (job, several, job, several):
        begin = time.process_time()
        atoll.simulate(one, data, engine="inline")
        found.append(time.process_time() - begin)
    epoch = (min(found[1], found[3]) - min(found[0], found[2])) / 10
    return {"texts": rows, "encode": encoding, "kept": epoch, "ratio": (encoding + epoch) / epoch}


def peak(place: Path, clients: int) -> float:
    """The largest resident set of a process, in MB."""
    done = subprocess.run(
        [sys.executable, __file__, "--clients", str(clients), str(place)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.splitlines()[-1])


def train(place: Path, clients: int) -> None:
    lora = Peft("LORA", {"r": 8, "target_modules": ["query", "value"]})
    job = Tuning(
        encoder=str(place / "encoder"),
        method=lora,
        length=32,
        rounds=1,
        algorithm=atoll.FedAvg(lr=0.1, batch_size=4),
        compile="never",
    )
    atoll.simulate(job, islands(place / f"memory-{clients}"), engine="inline")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    parser.add_argument("place", nargs="?", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.clients:
        train(Path(given.place), given.clients)
        return
    with tempfile.TemporaryDirectory() as name:
        os.environ["ATOLL_CACHE"] = str(Path(name) / "cache")
        place = Path(name)
        make_encoder(place / "encoder")
        found: dict[str, Any] = {"epoch": epochs(place, given.texts)}
        for clients in (2, 20):
            write_texts(place / f"memory-{clients}", clients, 8)
        found["memory"] = {str(clients): peak(place, clients) for clients in (2, 20)}
        found["memory"]["ratio"] = found["memory"]["20"] / found["memory"]["2"]
    results = Path(__file__).parent / "results"
    (results / "adapters.json").write_text(json.dumps(found, indent=1) + "\n")
    epoch, memory = found["epoch"]["ratio"], found["memory"]["ratio"]
    print(
        f"an epoch on kept features: {epoch:.0f} times as fast as one that encodes (at least {EPOCH:.0f}: {'holds' if epoch >= EPOCH else 'does not hold'})"
    )
    print(
        f"memory of 20 LoRA clients: {memory:.2f} of that of 2 (at most {MEMORY}: {'holds' if memory <= MEMORY else 'does not hold'})"
    )


if __name__ == "__main__":
    main()
