"""The survey's methods on quadratics whose optimum is known: one module of ``ROWS`` a family."""

from .row import SurveyRow
from .table import rows

__all__ = ["SurveyRow", "rows"]
