"""HTTP: the models as other programs expect them, and the page."""
