"""Static word vectors (L1.4): train, load, query and benchmark them."""
