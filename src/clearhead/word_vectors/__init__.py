"""Static vectors of words (L1.4): learned from texts, kept in files, and put to the test."""
