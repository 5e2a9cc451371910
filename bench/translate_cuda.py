"""Translation on one GPU: an encoder-decoder of 2017 (6 + 6 layers, 512 wide, 32,000 words), bf16, 32 tokens out.

python bench/translate_cuda.py

Against Marian in Hugging Face's transformers with equal weights. Every output has its full length (nothing ends it), so
both do the same work. Whole calls, interleaved; medians with the spread; a ratio above 1 means ours is faster.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import transformers

import kept
from clearhead.config.presets import presets
from clearhead.generate.beam_search import beam_search
from clearhead.model.transformer import build_transformer
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.load import save_model
from gpu_calls import timed, told

WORDS = 32000
STOP = 1
START = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=5)
    kept.offer(parser)
    options = parser.parse_args()
    rows = []
    config = presets["vaswani-base"].replace(
        **{"model.vocab_size": WORDS, "model.position.layout": "halves"},
        **{
            "model.attention.bias": ["q", "k", "v", "out"],
            "inference.decoder_start_tokens": [START],
            "inference.eos_tokens": [STOP],
            "inference.pad_token": [START],
        },
    )
    net = build_transformer(config.model, 0)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / "marian", Checkpoint(net, config), "hf")
        peer = (
            transformers.MarianMTModel.from_pretrained(
                Path(folder) / "marian", dtype=torch.bfloat16
            )
            .cuda()
            .eval()
        )
    net = net.to("cuda", torch.bfloat16).eval()
    chance = torch.Generator().manual_seed(0)
    sources = [
        torch.randint(3, WORDS, (options.batch, 32), generator=chance).cuda() for _ in range(4)
    ]
    for beams in options.beams:
        result, times = measure(net, peer, sources, beams, options)
        print(json.dumps(result), flush=True)
        work = f"translation base, {options.batch} sentences, {'greedy' if beams == 1 else f'{beams} beams'}"
        named = {"ours": times["ours"], "Hugging Face Marian": times["transformers"]}
        rows += kept.rows(
            work,
            "sentences/s",
            {who: [options.batch / t for t in spent] for who, spent in named.items()},
        )
    if options.keep:
        kept.write(rows, "transformers", device="cuda")


def measure(net, peer, sources, beams: int, options: argparse.Namespace) -> tuple[dict, dict]:
    """What is told, and the seconds of every call."""
    at = 0

    def ours() -> list[list[int]]:
        wishes = {"beams": beams, "max_tokens": options.tokens, "never": (STOP,), "stop": ()}
        start = [[START]] * options.batch
        return [
            found[0].tokens for found in beam_search(net, start, source=sources[at % 4], **wishes)
        ]

    def theirs() -> list[list[int]]:
        length = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens}
        made = peer.generate(
            sources[at % 4], num_beams=beams, do_sample=False, suppress_tokens=[STOP], **length
        )
        return made[:, 1 : 1 + options.tokens].tolist()

    sides = {"ours": ours, "transformers": theirs}
    times: dict[str, list[float]] = {name: [] for name in sides}
    first = {name: timed(side) for name, side in sides.items()}
    [timed(side) for side in sides.values() for _ in range(2)]
    for _ in range(options.rounds):
        at += 1
        for name, side in sides.items():
            times[name].append(timed(side))
    mine = ours()
    others = theirs()
    equal = sum(a == b for a, b in zip(mine, others, strict=True))
    result = {
        "batch": options.batch,
        "beams": beams,
        "equal_outputs": equal,
        "torch": torch.__version__,
    }
    return result | told(f"beams {beams}", times, first, options.batch, "sentences"), times


if __name__ == "__main__":
    main()
