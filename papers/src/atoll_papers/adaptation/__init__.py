"""What the reproduction of adaptation trains and measures."""
