"""What passes between a program and its parties: parties, tasks, requests, the stages of a reply, and results."""
