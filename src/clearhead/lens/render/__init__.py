"""Render views for terminals, HTML pages and matplotlib."""
