"""Published architectures as tables of attributes and weights."""
