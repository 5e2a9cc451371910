"""Text generation on a GPU against Hugging Face with a static cache and a compiled step.

python bench/decode_cuda.py --batch 1 64

GPT-2 124M in bf16, 256 tokens, top-k 50, equal weights and prompts. Times are of whole calls from
the prompt to the last token. Interleaved rounds, medians with the spread; a ratio above 1 means
ours is faster. The first call (compilation, graph capture) is reported separately.
"""

import argparse
import json

import torch

import benchmark_results
import clearhead as ch
from gpu_timing import print_rates, timed
from peers import HuggingFace


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", default=["static"], choices=["static", "dynamic"])
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    rows = []
    model = ch.new("gpt2-124m", device="cuda", dtype="bfloat16")
    peer = HuggingFace(ch.new("gpt2-124m").net).model.to("cuda", torch.bfloat16).eval()
    peer.config.use_cache = peer.generation_config.use_cache = True
    ids = torch.randint(
        50000, (max(args.batch), args.prompt), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        difference = (
            (model.logits(ids[:2]).float() - peer(ids[:2].cuda()).logits.float()).abs().max()
        )
    print(f"logits differ by at most {float(difference):.3f}", flush=True)
    for batch in args.batch:
        result, times = measure(model, peer, ids[:batch], args)
        print(json.dumps(result), flush=True)
        workload = f"GPT-2 124M, {args.tokens} tokens, batch {batch}"
        num_tokens = batch * args.tokens
        rates = {
            side if side == "ours" else f"Hugging Face, {side} cache, compiled": [
                num_tokens / t for t in seconds
            ]
            for side, seconds in times.items()
        }
        rows += benchmark_results.compare(workload, "tok/s", rates)
    if args.save:
        benchmark_results.save(rows, "transformers", device="cuda")


def measure(
    model: ch.Model, peer: torch.nn.Module, ids: torch.Tensor, args: argparse.Namespace
) -> tuple[dict, dict]:
    """The printed result, and the seconds of every call."""
    tokens = args.tokens
    prompts = ids.tolist()
    cuda_ids = ids.cuda()

    def ours() -> None:
        results = model.generate(prompts, tokens, top_k=50)
        assert all(len(result.tokens) == tokens for result in results)

    def theirs(cache: str) -> None:
        length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
        output = peer.generate(
            cuda_ids, do_sample=True, top_k=50, cache_implementation=cache, pad_token_id=0, **length
        )
        assert output.shape[1] == ids.shape[1] + tokens

    sides = {"ours": ours} | {name: lambda name=name: theirs(name) for name in args.peers}
    times: dict[str, list[float]] = {name: [] for name in sides}
    first = {name: timed(side) for name, side in sides.items()}
    for side in sides.values():
        side()
    for _ in range(args.rounds):
        for name, side in sides.items():
            times[name].append(timed(side))
    result = {"batch": len(ids), "tokens": tokens, "torch": torch.__version__}
    return result | print_rates(
        f"batch {len(ids)}", times, first, len(ids) * tokens, "tokens"
    ), times


if __name__ == "__main__":
    main()
