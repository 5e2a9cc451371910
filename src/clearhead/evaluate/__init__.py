"""What a model can do, and whether its laws hold."""
