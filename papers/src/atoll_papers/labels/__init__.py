"""What surveys say of learning without full labels, tried out: few labels, none, another domain, and labels under attack."""
