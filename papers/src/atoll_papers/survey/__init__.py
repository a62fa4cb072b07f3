"""The survey's methods on quadratics whose optimum is known: one module with ``ROWS`` per family."""

from .row import SurveyRow
from .table import rows

__all__ = ["SurveyRow", "rows"]
