"""From data to a model."""
