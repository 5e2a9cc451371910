"""Hooks that are not used cost nothing in compiled code."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_forward_without_hooks_compiles_to_the_operations_of_a_plain_decoder():
    # In a process of its own, without the shape checks that the tests switch on.
    script = Path(__file__).with_name("plain_decoder.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "one graph", run.stderr[-2000:]
