"""What keeps single rows from showing: minimum counts, records of what was answered, and noise."""
