"""Text, pictures and sound, cut into what a model reads."""
