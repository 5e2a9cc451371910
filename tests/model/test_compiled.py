"""What nobody asked for costs nothing."""

import subprocess
import sys
from pathlib import Path


def test_silent_forward_is_one_graph_with_the_operations_of_a_bare_model():
    # In a process of its own: the checks of shapes that these tests switch on are no part of the model.
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("bare.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "one graph", done.stderr[-2000:]
