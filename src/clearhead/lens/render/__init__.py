"""Drawings of views for the terminal, HTML and matplotlib."""
