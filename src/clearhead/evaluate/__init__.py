"""Evaluation: metrics with confidence intervals, and the invariants `clearhead verify` checks."""
