from .facts import cite as cite
from .facts import partition_facts as partition_facts
from .facts import summarise_data as summarise_data
from .page import compare_runs as compare_runs
from .page import write_comparison as write_comparison
from .page import write_report as write_report
