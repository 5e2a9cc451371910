"""Published families, each one declarative table."""
