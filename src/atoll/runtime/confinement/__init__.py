"""What the process of a job may reach on its machine, and what holds it there."""
