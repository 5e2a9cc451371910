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
out, kills = Path(sys.argv[1]), 0
draw = random.Random(int(sys.argv[2]))
while True:
    child = os.fork()
    if child == 0:
        made = run(out, steps=40, save=2, report=2, check=10, average=2, **{"model.dropout.residual": 0.1})
        made.resume()
        made.train(lambda progress: True)
        os._exit(0)
    end = time.monotonic() + draw.uniform(0.05, 0.3) * (1 + kills / 4)  # ever longer, so that it ends on any machine
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            print(kills)
            sys.exit()
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kills += 1
