"""The party's side: engines, executors and what they remember."""
