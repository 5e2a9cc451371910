"""Ablating every head, one at a time: GPT-2 124M, 144 heads, a prompt of 30 tokens; ours against TransformerLens.

python bench/sweep.py [rounds] [--keep]            (needs transformer-lens)

The two take turns in the same process and must give the same numbers; the ratio is theirs / ours.
"""

import argparse
import time
from statistics import median

import torch

import clearhead as ch
import kept
from hooked import hooked


def theirs(model, ids, answer):
    """The loop of their tutorials: a run with a hook for each head."""
    found = torch.empty(model.cfg.n_layers, model.cfg.n_heads)
    plain = model(ids)[0, -1, answer]
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):

            def cut(z, hook, head=head):
                z[:, :, head] = 0
                return z

            logits = model.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", cut)])
            found[layer, head] = logits[0, -1, answer] - plain
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    kept.offer(parser)
    given = parser.parse_args()
    model = ch.new("gpt2-124m", seed=0)
    peer = hooked(model.net)
    ids = torch.randint(0, 50257, (1, 30), generator=torch.Generator().manual_seed(0))
    answer = int(model.logits(ids)[0, -1].argmax())
    times: dict[str, list[float]] = {"clearhead": [], "transformer_lens": []}
    results = {}
    for _ in range(given.rounds):
        for name, work in (
            ("clearhead", lambda: ch.lens.ablation(model, ids[0], token=answer).values),
            ("transformer_lens", lambda: theirs(peer, ids, answer)),
        ):
            start = time.perf_counter()
            results[name] = work()
            times[name].append(time.perf_counter() - start)
    difference = (results["clearhead"] - results["transformer_lens"]).abs().max()
    for name, seconds in times.items():
        print(f"{name:<18} {median(seconds):6.2f} s ({min(seconds):.2f}–{max(seconds):.2f})")
    ratio = [theirs / ours for ours, theirs in zip(*times.values(), strict=True)]
    spread = f"({min(ratio):.2f}–{max(ratio):.2f})"
    print(f"theirs / ours      {median(ratio):6.2f}   {spread}, {torch.get_num_threads()} threads")
    print(
        f"largest difference {difference:.2g}, of changes up to {results['clearhead'].abs().max():.2g}"
    )
    if given.keep:
        sides = {"ours": times["clearhead"], "TransformerLens": times["transformer_lens"]}
        kept.write(
            kept.rows("GPT-2 124M, 30 tokens: every head left out in turn", "s", sides),
            "transformer-lens",
        )


if __name__ == "__main__":
    main()
