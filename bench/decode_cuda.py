"""Writing on one GPU: 124M, bf16, 256 tokens, top-k 50, against Hugging Face with a static cache and a compiled step.

python bench/decode_cuda.py --batch 1 64

Equal weights and prompts; whole calls, from the prompt to the last token. Interleaved, medians with the spread; a ratio
above 1 means ours is faster. What came before the first measured call (compiling, recording) is given apart.
"""

import argparse
import json

import torch

import clearhead as ch
import kept
from gpu_calls import timed, told
from peers import HuggingFace


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", default=["static"], choices=["static", "dynamic"])
    kept.offer(parser)
    options = parser.parse_args()
    rows = []
    model = ch.new("gpt2-124m", device="cuda", dtype="bfloat16")
    peer = HuggingFace(ch.new("gpt2-124m").net).model.to("cuda", torch.bfloat16).eval()
    peer.config.use_cache = peer.generation_config.use_cache = True
    ids = torch.randint(
        50000, (max(options.batch), options.prompt), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        gap = (model.logits(ids[:2]).float() - peer(ids[:2].cuda()).logits.float()).abs().max()
    print(f"logits differ by at most {float(gap):.3f}", flush=True)
    for batch in options.batch:
        result, times = measure(model, peer, ids[:batch], options)
        print(json.dumps(result), flush=True)
        work = f"GPT-2 124M, {options.tokens} tokens, batch {batch}"
        written = batch * options.tokens
        named = {
            who if who == "ours" else f"Hugging Face, {who} cache, compiled": spent
            for who, spent in times.items()
        }
        rows += kept.rows(
            work, "tok/s", {who: [written / t for t in spent] for who, spent in named.items()}
        )
    if options.keep:
        kept.write(rows, "transformers", device="cuda")


def measure(
    model: ch.Model, peer: torch.nn.Module, ids: torch.Tensor, options: argparse.Namespace
) -> tuple[dict, dict]:
    """What is told, and the seconds of every call."""
    tokens = options.tokens
    prompts = ids.tolist()
    there = ids.cuda()

    def ours() -> None:
        made = model.generate(prompts, tokens, top_k=50)
        assert all(len(one.tokens) == tokens for one in made)

    def theirs(cache: str) -> None:
        length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
        made = peer.generate(
            there, do_sample=True, top_k=50, cache_implementation=cache, pad_token_id=0, **length
        )
        assert made.shape[1] == ids.shape[1] + tokens

    sides = {"ours": ours} | {name: lambda name=name: theirs(name) for name in options.peers}
    times: dict[str, list[float]] = {name: [] for name in sides}
    first = {name: timed(side) for name, side in sides.items()}
    for side in sides.values():
        side()
    for _ in range(options.rounds):
        for name, side in sides.items():
            times[name].append(timed(side))
    result = {"batch": len(ids), "tokens": tokens, "torch": torch.__version__}
    return result | told(f"batch {len(ids)}", times, first, len(ids) * tokens, "tokens"), times


if __name__ == "__main__":
    main()
