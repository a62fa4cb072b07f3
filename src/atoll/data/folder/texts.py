"""Tweets with a sentiment label."""

from __future__ import annotations

from atoll.core.calls import checked_call

from ..dataset import Dataset
from ..readers.csv import read_csv
from ._place import Folder, divided, locate

__all__ = ["airline_tweets", "sentiment140"]


@checked_call
def airline_tweets(*, test: float = 0.2, seed: int | None = 0, folder: Folder = None) -> Dataset:
    """Load 14,640 tweets on six airlines: columns ``text``, ``airline``, ``user`` and 3 classes of sentiment.

    There is no ``x``: encode the text, for example with `hash_words`. Six natural clients: ``natural(data,
    "airline")``. File: ``airline_tweets/airline_tweets.csv.gz``.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows; ``None`` takes the last rows.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file.
    """
    whole = read_csv(
        locate(folder, "airline_tweets", "airline_tweets.csv.gz"),
        target="airline_sentiment",
        features=(),
        keep=("text", "airline", "user_id"),
        categories={"airline_sentiment": ("negative", "neutral", "positive")},
        name="airline_tweets",
        citation="CrowdFlower: Twitter US airline sentiment, 2015",
    )
    return divided(_renamed(whole), test, seed)


@checked_call
def sentiment140(*, test: float = 0.2, seed: int | None = 0, folder: Folder = None) -> Dataset:
    """Load 19,999 tweets of Sentiment140: columns ``text``, ``user``; ``y`` is 1 for positive.

    No user has more than 9 tweets, so clients must be made in another way. File:
    ``sent140/sent140_20k_with_users.csv.gz``.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows; ``None`` takes the last rows.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file.
    """
    whole = read_csv(
        locate(folder, "sent140", "sent140_20k_with_users.csv.gz"),
        target="label",
        task="binary",
        features=(),
        keep=("text", "user_id"),
        name="sentiment140",
        citation="Go, Bhayani, Huang: Twitter sentiment classification using distant supervision, 2009",
    )
    return divided(_renamed(whole), test, seed)


def _renamed(whole: Dataset) -> Dataset:
    columns = {"user" if name == "user_id" else name: whole[name] for name in whole.columns}
    about = whole.about
    return Dataset(
        columns,
        task=about.task,
        classes=about.classes,
        labels=about.labels,
        name=about.name,
        citation=about.citation,
    )
