"""How large the columns of a plan may be, whatever rows there are.

Where few rows must not show, a site may not compare its rows with what a statement makes of them: whoever tries ``SUM((pay - 100) * 1000)`` with further factors would read the largest pay, one person's,
from the refusals. So the plan says how large the numbers of each shared column may be, by interval arithmetic over its expression (`reader`): a column of a table lies in the policy's ``range``, or in what
its type holds, or within one of ``CAPS``. Of its rows a site looks only whether columns of whole tables keep these caps, which no statement chooses, and how long their texts are (`columns`).
"""
