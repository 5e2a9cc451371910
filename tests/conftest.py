"""Configuration of all tests: checked shapes, one thread per process, reproducible examples."""

import os

import torch
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("clearhead.model", "beartype.beartype")  # checks shapes in signatures
# `make test` uses the fast profile, `make test-all` the thorough one
settings.register_profile("fast", deadline=None, max_examples=6, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=24, derandomize=True)
settings.load_profile("thorough")
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
