"""Trains in a process that is killed at random moments until the run ends; prints the kills."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from tiny_training import KILLED_OPTIONS, make_trainer

torch.set_num_threads(1)
output = Path(sys.argv[1])
generator = random.Random(int(sys.argv[2]))
num_kills = 0
make_trainer(output.with_name("warm-up"), **KILLED_OPTIONS)  # imports, which the children share
while True:
    child = os.fork()
    if child == 0:
        trainer = make_trainer(output, **KILLED_OPTIONS)
        trainer.resume()
        trainer.train(lambda progress: True)
        os._exit(0)
    # Ever longer, so that the run ends on any machine.
    end = time.monotonic() + generator.uniform(0.03, 0.2) * (1 + num_kills / 8)
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            print(num_kills)
            sys.exit()
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    num_kills += 1
