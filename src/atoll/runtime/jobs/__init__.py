"""Jobs: their settings, their terms, and the settings that describe a live job."""
