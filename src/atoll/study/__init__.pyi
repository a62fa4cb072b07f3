from .arms import FunctionArm as FunctionArm
from .arms import run_study as run_study
from .arms import sweep as sweep
from .configured import sweep_config as sweep_config
from .result import StudyResult as StudyResult
