"""What a program and its parties exchange: parties, tasks, requests, the stages of a reply, and results."""
