"""What a plan under shares may not show, decided from statements, policies and types, and from no row.

Where few rows must not show, a refusal may not tell of one either. `selections` says which rows a statement may be about, since no site's record sees what parties choose. `value_bounds` says by interval
arithmetic between which values an expression lies: a column of a table lies in the policy's ``range``, or in what its type holds, or within one of ``CAPS``; `column_bounds` refuses what might leave 64 bits, and
says what a site looks at: whether columns of whole tables keep these caps, which no statement chooses, and how long their texts are. `sensitivity` says by how many rows one unit moves a table, which noise hides.
"""
