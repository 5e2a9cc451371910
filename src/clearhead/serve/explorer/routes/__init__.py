"""Routes of the page's API, by topic."""
