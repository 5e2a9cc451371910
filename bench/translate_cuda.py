"""Translation on a GPU against Marian in Hugging Face transformers.

python bench/translate_cuda.py

Transformer base of 2017 (6 + 6 layers, d_model 512, vocabulary 32,000) in bf16, equal weights, 32
output tokens. EOS is suppressed, so both do the same work. Whole calls, interleaved rounds; medians
with the spread; a ratio above 1 means ours is faster.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import transformers

import benchmark_results
from clearhead.config.presets import presets
from clearhead.generate.beam_search import BeamRules, beam_search
from clearhead.model.transformer import build_transformer
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.load import save_model
from gpu_timing import print_rates, timed

VOCAB_SIZE = 32000
EOS = 1
START = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=5)
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    rows = []
    config = presets["vaswani-base"].replace(
        **{"model.vocab_size": VOCAB_SIZE, "model.position.layout": "halves"},
        **{
            "model.attention.bias": ["q", "k", "v", "out"],
            "inference.decoder_start_tokens": [START],
            "inference.eos_tokens": [EOS],
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
    generator = torch.Generator().manual_seed(0)
    sources = [
        torch.randint(3, VOCAB_SIZE, (args.batch, 32), generator=generator).cuda() for _ in range(4)
    ]
    for beams in args.beams:
        result, times = measure(net, peer, sources, beams, args)
        print(json.dumps(result), flush=True)
        decoding = "greedy" if beams == 1 else f"{beams} beams"
        workload = f"translation base, {args.batch} sentences, {decoding}"
        seconds = {"ours": times["ours"], "Hugging Face Marian": times["transformers"]}
        rows += benchmark_results.compare(
            workload,
            "sentences/s",
            {side: [args.batch / t for t in values] for side, values in seconds.items()},
        )
    if args.save:
        benchmark_results.save(rows, "transformers", device="cuda")


def measure(net, peer, sources, beams: int, args: argparse.Namespace) -> tuple[dict, dict]:
    """The printed result, and the seconds of every call."""
    index = 0

    def ours() -> list[list[int]]:
        rules = BeamRules(torch.device("cuda"), beams, args.tokens, suppress_tokens=(EOS,))
        start = [[START]] * args.batch
        return [
            hypotheses[0].tokens
            for hypotheses in beam_search(net, rules, start, source=sources[index % 4])
        ]

    def theirs() -> list[list[int]]:
        length = {"max_new_tokens": args.tokens, "min_new_tokens": args.tokens}
        output = peer.generate(
            sources[index % 4], num_beams=beams, do_sample=False, suppress_tokens=[EOS], **length
        )
        return output[:, 1 : 1 + args.tokens].tolist()

    sides = {"ours": ours, "transformers": theirs}
    times: dict[str, list[float]] = {name: [] for name in sides}
    first = {name: timed(side) for name, side in sides.items()}
    [timed(side) for side in sides.values() for _ in range(2)]
    for _ in range(args.rounds):
        index += 1
        for name, side in sides.items():
            times[name].append(timed(side))
    num_equal = sum(a == b for a, b in zip(ours(), theirs(), strict=True))
    result = {
        "batch": args.batch,
        "beams": beams,
        "equal_outputs": num_equal,
        "torch": torch.__version__,
    }
    return result | print_rates(f"beams {beams}", times, first, args.batch, "sentences"), times


if __name__ == "__main__":
    main()
