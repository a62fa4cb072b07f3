"""SQL among owners alone: a plan's operators as circuits over wires (`wires`), what owners put in and what leaves (`owner_rows`), and parts of a plan that some of them compute first (`subplans`)."""
