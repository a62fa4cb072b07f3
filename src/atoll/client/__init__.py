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

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .connection import Connection, ScriptTask, connect
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(__name__, {"connection": ("Connection", "ScriptTask", "connect")})

__all__ = ["Connection", "ScriptTask", "connect"]
