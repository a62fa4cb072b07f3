"""The real world: the same program between organisations, over mutual TLS.

Two processes of each organisation's own hold keys and network (the fronts); every job has a process of its own at the server and at each
site. `docs/deploy.md` is the way in; ``atoll poc`` shows all of it on one machine.
"""
