"""Which job runs where and when: the decisions, and what a site can offer."""
