"""Configuration of models and training runs, as frozen dataclasses. Does not import torch."""

# mypy: implicit-reexport
# ruff: noqa: F403
from clearhead.config.model import *
from clearhead.config.training import *
