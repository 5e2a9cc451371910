"""Time and peak memory of loading published models, against Hugging Face transformers.

python bench/load.py [--save]   GPT-2 124M (random weights in its published layout), and
                                SmolLM2-135M if it was downloaded

Each load runs in its own process, after all imports. Memory is the peak resident memory above that
before the load, mapped files included, as a multiple of the size of the weights.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import benchmark_results

ROUNDS = 5
MEASURE = """
import json, sys, time
from pathlib import Path

def peak_memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

implementation, path = sys.argv[1:]
if implementation == "ours":
    import clearhead.api, clearhead.weights.gguf, clearhead.weights.huggingface
    def load():
        return clearhead.api.load(path, device="cpu").net
else:
    import torch, transformers, gguf
    from transformers.models.gpt2 import modeling_gpt2
    from transformers.models.llama import modeling_llama
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options = {"gguf_file": Path(path).name} if path.endswith(".gguf") else {}
    folder = str(Path(path).parent) if options else path
    def load():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, **options
        )
        if options:
            transformers.AutoTokenizer.from_pretrained(folder, **options)
        return model
Path("/proc/self/clear_refs").write_text("5")  # reset the peak
before = peak_memory()
start = time.perf_counter()
model = load()
seconds = time.perf_counter() - start
size = sum(p.numel() * p.element_size() for p in model.parameters())
print(json.dumps({"seconds": seconds, "memory": (peak_memory() - before) / size}))
"""


def measure_load(implementation: str, path: str) -> dict[str, float]:
    command = [sys.executable, "-c", MEASURE, implementation, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    import clearhead as ch
    from clearhead.weights import hub

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        ch.save(ch.new("gpt2-124m"), Path(folder) / "gpt2", format="hf")
        models = {"gpt2-124m, safetensors": str(Path(folder) / "gpt2")}
        smollm = hub.cache_dir() / "smollm2-135m-instruct"
        for path in smollm.glob("*.gguf"):
            models[f"smollm2-135m, {path.suffixes[-2]}.gguf"] = str(path)
        for name, path in models.items():
            runs: dict[str, list[dict[str, float]]] = {"ours": [], "transformers": []}
            for _ in range(ROUNDS):
                for implementation, results in runs.items():
                    results.append(measure_load(implementation, path))
            seconds = {side: [r["seconds"] for r in results] for side, results in runs.items()}
            memory = {side: [r["memory"] for r in results] for side, results in runs.items()}
            rows += benchmark_results.compare(name, "s", seconds)
            rows += benchmark_results.compare(f"{name}: peak memory", "× the weights", memory)
            print(name)
            for side in runs:
                spread = f"{min(seconds[side]):.2f}–{max(seconds[side]):.2f}"
                print(
                    f"  {side:<14} {statistics.median(seconds[side]):5.2f} s ({spread}), "
                    f"{statistics.median(memory[side]):.2f} × the weights"
                )
    if args.save:
        benchmark_results.save(rows, "transformers")


if __name__ == "__main__":
    main()
