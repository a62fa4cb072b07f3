"""Small trained parts of a large frozen encoder.

Four nouns: an `Encoder` is a folder of weights with a tokeniser, known by its hash; a `TuningMethod` says what of it is trained; `EncodedRows` turns a
party's texts or images into what the encoder takes, or into features that a disk keeps; `Tuning` is the job, a `Training` whose model is the tuned encoder.

Texts and images stay columns of a party's data set. A task of the training meets them encoded: as the encoder takes them where the method changes its layers, as
features where it stands behind them. What is trained travels, is summed and is kept in checkpoints; the encoder's weights are at every party and never travel.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
