"""The party's side: engines, executors, and their memory."""
