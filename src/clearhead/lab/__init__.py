"""Variants compared honestly: a grid of runs with several seeds, and what can be said about it."""
