"""Configuration of models and training runs, as frozen dataclasses. Importing it does not import torch."""

# ruff: noqa: F403
from clearhead.config.model import *
from clearhead.config.training import *
