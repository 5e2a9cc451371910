"""Parity with TransformerLens: patterns, logit lens, attribution, ablation and patching."""

import pytest
import torch

import clearhead as ch

pytest.importorskip("transformer_lens")

from hooked import hooked

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
PATCH_FROM = [3, 1, 4, 8, 5, 9, 2, 6]
ANSWER = 17
AGAINST = 40
N_LAYERS = 2
N_HEADS = 4


@pytest.fixture(scope="module")
def pair():
    model = ch.new(
        "gpt2-124m",
        d_model=32,
        n_layers=N_LAYERS,
        attention__n_heads=N_HEADS,
        vocab_size=96,
        context_length=64,
        seed=1,
    )
    generator = torch.Generator().manual_seed(5)
    for p in model.net.parameters():  # no gain at 1, no bias at 0
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    return model, hooked(model.net)


@pytest.fixture(scope="module")
def cache(pair):
    with torch.no_grad():
        return pair[1].run_with_cache(torch.tensor([IDS]))[1]


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs.detach(), atol=1e-5, rtol=1e-5)


def logit_difference(peer, hook_name, hook):
    """The logit of the answer minus that of the other token, with a hook."""
    with torch.no_grad():
        logits = peer.run_with_hooks(torch.tensor([IDS]), fwd_hooks=[(hook_name, hook)])
    return logits[0, -1, ANSWER] - logits[0, -1, AGAINST]


def test_attention_patterns_equal_transformer_lens(pair, cache):
    ours = ch.lens.attention(pair[0], IDS)
    for layer in range(N_LAYERS):
        close(ours.values[layer], cache[f"blocks.{layer}.attn.hook_pattern"][0])


def test_logit_lens_equals_transformer_lens(pair, cache):
    model, peer = pair
    lens = ch.lens.logit_lens(model, IDS, top_k=96)
    names = [*(f"blocks.{i}.hook_resid_pre" for i in range(N_LAYERS)), "blocks.1.hook_resid_post"]
    for row, name in enumerate(names):
        with torch.no_grad():
            probabilities = peer.unembed(peer.ln_final(cache[name]))[0].softmax(dim=-1)
        close(lens.probabilities[row], probabilities.gather(-1, lens.ids[row]))


def test_attribution_equals_transformer_lens(pair, cache):
    """TransformerLens's residual parts after the final norm, projected on the logit difference."""
    model, _ = pair
    ours = ch.lens.attribution(model, IDS, token=ANSWER, against=AGAINST)
    table = model.net.embed.tokens.weight.detach()
    direction = (table[ANSWER] - table[AGAINST]) * model.net.final_norm.weight.detach()

    def project(part):
        return ((part - part.mean()) / cache["ln_final.hook_scale"][0, -1] * direction).sum()

    parts = {"embedding": cache["hook_embed"][0, -1], "positions": cache["hook_pos_embed"][0, -1]}
    for i in range(N_LAYERS):
        parts[f"{i} attention"] = cache[f"blocks.{i}.hook_attn_out"][0, -1]
        parts[f"{i} feed-forward"] = cache[f"blocks.{i}.hook_mlp_out"][0, -1]
        z = cache[f"blocks.{i}.attn.hook_z"][0, -1]
        W_O = model.net.blocks[i].attn.out.weight.detach().unflatten(1, (N_HEADS, -1))
        by_head = torch.stack([project(W_O[:, h] @ z[h]) for h in range(N_HEADS)])
        close(ours.by_head().values[i], by_head)
    for name, part in parts.items():
        close(ours.values[ours.axes[0].labels.index(name)], project(part))


def test_ablation_of_every_head_equals_transformer_lens(pair):
    model, peer = pair
    ours = ch.lens.ablation(model, IDS, token=ANSWER, against=AGAINST)
    for layer in range(N_LAYERS):
        for head in range(N_HEADS):

            def ablate(z, hook, head=head):
                z[:, :, head] = 0
                return z

            expected = logit_difference(peer, f"blocks.{layer}.attn.hook_z", ablate)
            close(ours.values[layer, head] + ours.baseline, expected)


def test_patching_the_residual_stream_equals_transformer_lens(pair):
    model, peer = pair
    ours = ch.lens.patching(model, IDS, PATCH_FROM, token=ANSWER, against=AGAINST)
    with torch.no_grad():
        other = peer.run_with_cache(torch.tensor([PATCH_FROM]))[1]
    for layer in range(N_LAYERS):
        name = f"blocks.{layer}.hook_resid_pre"
        for position in range(len(IDS)):

            def patch(value, hook, position=position, name=name):
                value[:, position] = other[name][:, position]
                return value

            expected = logit_difference(peer, name, patch)
            close(ours.values[layer, position] + ours.baseline, expected)
