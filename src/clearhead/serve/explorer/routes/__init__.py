"""HTTP routes of the explorer page, by topic."""
