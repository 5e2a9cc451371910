"""Tokenizers for text, and the conversion of images and audio to model inputs."""
