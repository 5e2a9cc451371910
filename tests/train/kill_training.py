"""Trains in a process that gets SIGKILL or SIGTERM at random moments until the run ends.

Prints the number of signals.
"""

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
        result = trainer.train(lambda progress: True)
        os._exit(int(result.status == "interrupted"))
    # Ever longer, so that the run ends on any machine.
    end = time.monotonic() + generator.uniform(0.03, 0.2) * (1 + num_kills / 8)
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG) == (child, 0):
            print(num_kills)
            sys.exit()
        time.sleep(0.005)
    os.kill(child, generator.choice([signal.SIGKILL, signal.SIGTERM]))
    num_kills += 1
    if os.waitpid(child, 0)[1] == 0:  # it ended just before
        print(num_kills)
        sys.exit()
