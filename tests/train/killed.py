"""Trains in a process that is killed again and again at random moments, until the run is through. Prints the kills."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from runs import run

torch.set_num_threads(1)
out = Path(sys.argv[1])
kills = 0
draw = random.Random(int(sys.argv[2]))
options = {
    "steps": 40,
    "save": 2,
    "report": 2,
    "check": 10,
    "average": 2,
    "model.dropout.residual": 0.1,
}
run(out.with_name("warm"), **options)  # else each child would spend its life on imports
while True:
    child = os.fork()
    if child == 0:
        made = run(out, **options)
        made.resume()
        made.train(lambda progress: True)
        os._exit(0)
    end = time.monotonic() + draw.uniform(0.03, 0.2) * (
        1 + kills / 8
    )  # ever longer, so that it ends on any machine
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            print(kills)
            sys.exit()
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kills += 1
