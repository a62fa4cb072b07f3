"""Methods that hide some labels from the method inside: labels that the global model denies, and labels that a guard holds out."""
