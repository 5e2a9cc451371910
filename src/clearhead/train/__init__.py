"""Training: datasets, optimizers, distribution, checkpoints, activation recording and reports."""
