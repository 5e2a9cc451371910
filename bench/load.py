"""How long a published model takes to load, and how much memory at most, beside Hugging Face's own reading of it.

    python bench/load.py [--keep]   GPT-2 124M (random weights in its published layout), SmolLM2-135M if it was fetched

Each load is a process of its own, after all imports; memory is the highest resident memory above that before, file
pages included, as a multiple of the weights in memory.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import kept

ROUNDS = 5
MEASURE = """
import json, sys, time
from pathlib import Path

def now(): return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
def reset(): open("/proc/self/clear_refs", "w").write("5")

who, path = sys.argv[1:]
if who == "ours":
    import clearhead.api, clearhead.weights.gguf, clearhead.weights.huggingface
    def load(): return clearhead.api.load(path, device="cpu").net
else:
    import torch, transformers, gguf
    from transformers.models.gpt2 import modeling_gpt2
    from transformers.models.llama import modeling_llama
    transformers.logging.set_verbosity_error(); transformers.utils.logging.disable_progress_bar()
    gg = {"gguf_file": Path(path).name} if path.endswith(".gguf") else {}
    folder = str(Path(path).parent) if gg else path
    def load():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **gg)
        transformers.AutoTokenizer.from_pretrained(folder, **gg) if gg else None
        return model
reset(); before = now(); start = time.perf_counter()
model = load()
seconds = time.perf_counter() - start
size = sum(p.numel() * p.element_size() for p in model.parameters())
print(json.dumps({"seconds": seconds, "memory": (now() - before) / size}))
"""


def measured(who: str, path: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, who, path], capture_output=True, text=True, check=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    import clearhead as ch
    from clearhead.weights import hub

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kept.offer(parser)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as there:
        ch.save(ch.new("gpt2-124m"), Path(there) / "gpt2", format="hf")
        found = {"gpt2-124m, safetensors": str(Path(there) / "gpt2")}
        small = hub.cache_dir() / "smollm2-135m-instruct"
        found |= {
            f"smollm2-135m, {path.suffixes[-2]}.gguf": str(path) for path in small.glob("*.gguf")
        }
        for name, path in found.items():
            runs: dict[str, list[dict[str, float]]] = {"ours": [], "transformers": []}
            for _ in range(ROUNDS):  # by turns, so that a busy machine is unfair to nobody
                for who, results in runs.items():
                    results.append(measured(who, path))
            for what, unit in (("seconds", "s"), ("memory", "× the weights")):
                sides = {who: [result[what] for result in results] for who, results in runs.items()}
                rows += kept.rows(
                    name if what == "seconds" else f"{name}: peak memory", unit, sides
                )
            print(name)
            for who, results in runs.items():
                seconds = sorted(r["seconds"] for r in results)
                memory = statistics.median(r["memory"] for r in results)
                spread = f"{seconds[0]:.2f}–{seconds[-1]:.2f}"
                print(
                    f"  {who:<14} {statistics.median(seconds):5.2f} s ({spread}), {memory:.2f} × the weights"
                )
    if given.keep:
        kept.write(rows, "transformers")


if __name__ == "__main__":
    main()
