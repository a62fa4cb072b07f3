from .connection import Connection as Connection
from .connection import ScriptTask as ScriptTask
from .connection import connect as connect
