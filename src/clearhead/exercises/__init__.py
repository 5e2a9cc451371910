"""Exercises: students write parts of a Transformer, and `clearhead check` compares them."""
