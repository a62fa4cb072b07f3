"""What is true in reports that err, and who reports well: annotators label the same tasks, sensors measure the same things.

Four nouns. `Reports` is a long table of (task, worker, label), of one party or of all; a `TaskLayout` gives all sums one shape, whoever reported on what. A `TruthModel` says what a worker adds to each task, what
the sums mean, and what a worker learns from them: a fit of a table in one place, `TruthModel.fit_predict`, and a federation are the same three functions. A `TruthProtocol` adds up what parties contribute, such as `Shamir`, which shows
nobody more than sums. `Truth` is the job. `plan_truth` and `plan_committee` say beforehand how many users a campaign needs.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
