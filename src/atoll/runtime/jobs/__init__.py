"""Jobs: their settings, their terms, and a live job as the settings that make it again."""
