"""The Transformer of the lectures: one attention, three shapes."""
