"""Read data files and turn them into packed batches of static shape."""
