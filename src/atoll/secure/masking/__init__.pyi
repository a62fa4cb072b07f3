from .agreement import Agreement as Agreement
from .one_shot import OneShot as OneShot
from .reducer import MaskingPlan as MaskingPlan
from .reducer import SecureAggregation as SecureAggregation
from .reducer import plan as plan
