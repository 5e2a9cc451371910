"""Shapes in signatures are checked while the tests run; they cost nothing elsewhere."""

import os

import torch
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("clearhead.model", "beartype.beartype")
settings.register_profile("house", deadline=None, max_examples=24, derandomize=True)
settings.load_profile("house")
torch.set_num_threads(1)
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # of commands that a test starts, too: tests run side by side
