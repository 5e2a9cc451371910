"""Experiments: variants trained with several seeds and compared with statistical tests."""
