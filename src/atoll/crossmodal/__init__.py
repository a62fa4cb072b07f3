"""Two sides that have different modalities help each other: speech here, text there, and no server.

Four nouns: `Utterances` are one party's rows, each with its phones, its label and its own modality. An *own network* reads that modality and never leaves its party.
`PhoneNetwork` reads phones, which both sides can compute, and is what parties share. The *acoustic table* says how each phone sounded on the speech side.

Speech sides build the table once and send it. In each round every party trains its own network and its copy of the shared one, posts the copy to its peers in sealed letters,
and takes the mean of all copies. A trained party needs its own modality alone.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, needs={"layers": "torch", "training": "torch"})
