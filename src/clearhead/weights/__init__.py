"""Models in files: finding, loading, saving and converting them."""
