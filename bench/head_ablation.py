"""Ablation of every head of GPT-2 124M, one at a time, against TransformerLens.

python bench/head_ablation.py [rounds] [--save]            (needs transformer-lens)

144 heads and a prompt of 30 tokens. Both run in the same process, interleaved, and must give the
same numbers; a ratio above 1 means ours is faster.
"""

import argparse
import time
from statistics import median

import torch

import benchmark_results
import clearhead as ch
from transformer_lens_peer import to_transformer_lens


def ablate_heads(model, ids, answer):
    """The loop of the TransformerLens tutorials: a run with a hook for each head."""
    effects = torch.empty(model.cfg.n_layers, model.cfg.n_heads)
    clean = model(ids)[0, -1, answer]
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):

            def ablate(z, hook, head=head):
                z[:, :, head] = 0
                return z

            hooks = [(f"blocks.{layer}.attn.hook_z", ablate)]
            logits = model.run_with_hooks(ids, fwd_hooks=hooks)
            effects[layer, head] = logits[0, -1, answer] - clean
    return effects


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    model = ch.new("gpt2-124m", seed=0)
    peer = to_transformer_lens(model.net)
    ids = torch.randint(0, 50257, (1, 30), generator=torch.Generator().manual_seed(0))
    answer = int(model.logits(ids)[0, -1].argmax())
    times: dict[str, list[float]] = {"ours": [], "TransformerLens": []}
    effects = {}
    for _ in range(args.rounds):
        for name, run in (
            ("ours", lambda: ch.lens.ablation(model, ids[0], token=answer).values),
            ("TransformerLens", lambda: ablate_heads(peer, ids, answer)),
        ):
            start = time.perf_counter()
            effects[name] = run()
            times[name].append(time.perf_counter() - start)
    difference = (effects["ours"] - effects["TransformerLens"]).abs().max()
    for name, seconds in times.items():
        print(f"{name:<18} {median(seconds):6.2f} s ({min(seconds):.2f}–{max(seconds):.2f})")
    rows = benchmark_results.compare("GPT-2 124M, 30 tokens: ablation of every head", "s", times)
    print(f"ratio {rows[0].ratio}, {torch.get_num_threads()} threads")
    largest = effects["ours"].abs().max()
    print(f"largest difference {difference:.2g}, of effects up to {largest:.2g}")
    if args.save:
        benchmark_results.save(rows, "transformer-lens")


if __name__ == "__main__":
    main()
