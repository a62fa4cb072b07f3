"""The site's process: offers answered, jobs run, lines to other sites."""
