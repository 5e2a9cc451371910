"""Inference: sampling, beam search, translation, chat, and tasks such as classification."""
