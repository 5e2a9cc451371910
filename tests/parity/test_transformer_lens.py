"""TransformerLens with the same weights sees the same: patterns, lens, attribution, ablation, patching, to 1e-5."""

import pytest
import torch

import clearhead as ch

pytest.importorskip("transformer_lens")

from hooked import hooked

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
OTHER = [3, 1, 4, 8, 5, 9, 2, 6]
ANSWER = 17
AGAINST = 40


@pytest.fixture(scope="module")
def pair():
    model = ch.new(
        "gpt2-124m",
        d_model=32,
        n_layers=2,
        attention__n_heads=4,
        vocab_size=96,
        context_length=64,
        seed=1,
    )
    draw = torch.Generator().manual_seed(5)
    for p in model.net.parameters():  # norms and biases that do something
        p.data += 0.1 * torch.randn(p.shape, generator=draw)
    return model, hooked(model.net)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs.detach(), atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def cache(pair):
    with torch.no_grad():
        return pair[1].run_with_cache(torch.tensor([IDS]))[1]


def test_patterns(pair, cache):
    ours = ch.lens.attention(pair[0], IDS)
    for layer in range(2):
        close(ours.values[layer], cache[f"blocks.{layer}.attn.hook_pattern"][0])


def test_the_logit_lens(pair, cache):
    model, peer = pair
    lens = ch.lens.logit_lens(model, IDS, top=96)
    for row in range(3):
        stream = (
            cache[f"blocks.{row}.hook_resid_pre"] if row < 2 else cache["blocks.1.hook_resid_post"]
        )
        with torch.no_grad():
            shares = peer.unembed(peer.ln_final(stream))[0].softmax(dim=-1)
        close(lens.probabilities[row], shares.gather(-1, lens.ids[row]))


def test_attribution(pair, cache):
    """Their stack of parts, through the frozen scale of the last norm, onto the difference of two directions."""
    model, _ = pair
    ours = ch.lens.attribution(model, IDS, token=ANSWER, against=AGAINST)
    norm = model.net.norm
    table = model.net.embed.tokens.weight.detach()
    direction = (table[ANSWER] - table[AGAINST]) * norm.weight.detach()

    def onto(part):
        return ((part - part.mean()) / cache["ln_final.hook_scale"][0, -1] * direction).sum()

    parts = {"embedding": cache["hook_embed"][0, -1], "positions": cache["hook_pos_embed"][0, -1]}
    for i in range(2):
        parts[f"{i} attention"] = cache[f"blocks.{i}.hook_attn_out"][0, -1]
        parts[f"{i} feed-forward"] = cache[f"blocks.{i}.hook_mlp_out"][0, -1]
        z = cache[f"blocks.{i}.attn.hook_z"][0, -1]
        out = model.net.blocks[i].attn.out.weight.detach().unflatten(1, (4, 8))
        close(ours.by_head().values[i], torch.stack([onto(out[:, h] @ z[h]) for h in range(4)]))
    for name, part in parts.items():
        close(ours.values[ours.axes[0].labels.index(name)], onto(part))


def test_ablating_every_head(pair):
    model, peer = pair
    ours = ch.lens.ablation(model, IDS, token=ANSWER, against=AGAINST)
    for layer in range(2):
        for head in range(4):

            def cut(z, hook, head=head):
                z[:, :, head] = 0
                return z

            with torch.no_grad():
                logits = peer.run_with_hooks(
                    torch.tensor([IDS]), fwd_hooks=[(f"blocks.{layer}.attn.hook_z", cut)]
                )[0, -1]
            close(ours.values[layer, head] + ours.baseline, logits[ANSWER] - logits[AGAINST])


def test_patching_the_stream_at_every_token(pair):
    model, peer = pair
    ours = ch.lens.patching(model, IDS, OTHER, token=ANSWER, against=AGAINST)
    with torch.no_grad():
        other = peer.run_with_cache(torch.tensor([OTHER]))[1]
        for layer in range(2):
            for token in range(len(IDS)):

                def put(value, hook, token=token, layer=layer):
                    value[:, token] = other[f"blocks.{layer}.hook_resid_pre"][:, token]
                    return value

                hooks = [(f"blocks.{layer}.hook_resid_pre", put)]
                logits = peer.run_with_hooks(torch.tensor([IDS]), fwd_hooks=hooks)[0, -1]
                close(ours.values[layer, token] + ours.baseline, logits[ANSWER] - logits[AGAINST])
