"""The long-lived processes of the real world: the server, the sites, and the people who ask them.

A front holds keys and network and knows jobs, never what a task means: a job's blocks pass through it undecoded.
"""
