"""The script's side of a federation: an existing training script becomes a client.

```python
import atoll.client

with atoll.client.connect(model) as fed:
    for task in fed.rounds():
        model.load_state_dict(task.model)
        ...  # the script's own loop
        task.reply(model, examples=n, metrics={"loss": loss})
```

A job names the script with `atoll.models.Script`, which runs it as a process of its own at each client. Outside a federation
`rounds` gives one round, so the script still runs alone.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
