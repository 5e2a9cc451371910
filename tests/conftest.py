"""Shapes in signatures are checked while the tests run; they cost nothing elsewhere.

On a GPU they are not: what is compiled there is tested compiled, and the compiler does not see through such checks.
"""

import torch
from hypothesis import settings
from jaxtyping import install_import_hook

if not torch.cuda.is_available():
    install_import_hook("clearhead.model", "beartype.beartype")
settings.register_profile("house", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("house")
torch.set_num_threads(1)
