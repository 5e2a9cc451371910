"""Files become packed batches of static shape: text, sentence pairs, labelled rows, pictures, sound."""
