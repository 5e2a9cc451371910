"""The same GPT-2 with our weights in Hugging Face, nn.TransformerEncoder and plain PyTorch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.model.transformer import Transformer


class Ours(nn.Module):
    """Our model; like its peers, a map from tokens to logits or a mean loss."""

    def __init__(self, net: Transformer) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        hidden = self.net(ids)
        if targets is None:
            return self.net.compute_logits(hidden)
        total, count = self.net.loss(hidden, targets)
        return total / count


class HuggingFace(nn.Module):
    def __init__(self, net: Transformer) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        m = net.config
        config = GPT2Config(
            vocab_size=m.vocab_size,
            n_positions=m.context_length,
            n_embd=m.d_model,
            n_layer=m.n_layers,
            n_head=m.attention.n_heads,
            activation_function={"gelu": "gelu", "gelu-tanh": "gelu_new"}[m.ffn.activation],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
        self.model = GPT2LMHeadModel(config)
        theirs = dict(self.model.transformer.named_parameters())
        with torch.no_grad():
            theirs["wte.weight"].copy_(net.embed.tokens.weight)
            theirs["wpe.weight"].copy_(net.position.table)
            _copy_norm(theirs, "ln_f", net.final_norm)
            for i, block in enumerate(net.blocks):
                h = f"h.{i}"
                _copy_norm(theirs, f"{h}.ln_1", block.attn_norm)
                _copy_norm(theirs, f"{h}.ln_2", block.ffn_norm)
                qkv = (block.attn.q, block.attn.k, block.attn.v)
                theirs[f"{h}.attn.c_attn.weight"].copy_(
                    torch.cat([x.weight.mT for x in qkv], dim=1)
                )
                theirs[f"{h}.attn.c_attn.bias"].copy_(torch.cat([x.bias for x in qkv]))
                for name, ours in (
                    ("attn.c_proj", block.attn.out),
                    ("mlp.c_fc", block.ffn.up),
                    ("mlp.c_proj", block.ffn.down),
                ):
                    theirs[f"{h}.{name}.weight"].copy_(ours.weight.mT)
                    theirs[f"{h}.{name}.bias"].copy_(ours.bias)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        logits = self.model(ids).logits
        return logits if targets is None else _mean_loss(logits, targets)


class TorchEncoder(nn.Module):
    """nn.TransformerEncoder with a causal mask, embeddings and a tied head."""

    def __init__(self, net: Transformer) -> None:
        super().__init__()
        m = net.config
        layer = nn.TransformerEncoderLayer(
            m.d_model,
            m.attention.n_heads,
            m.d_ff,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.tokens = nn.Embedding(m.vocab_size, m.d_model)
        self.positions = nn.Embedding(m.context_length, m.d_model)
        self.stack = nn.TransformerEncoder(
            layer, m.n_layers, norm=nn.LayerNorm(m.d_model), enable_nested_tensor=False
        )
        with torch.no_grad():
            self.tokens.weight.copy_(net.embed.tokens.weight)
            self.positions.weight.copy_(net.position.table)
            self.stack.norm.load_state_dict(net.final_norm.state_dict())
            for theirs, block in zip(self.stack.layers, net.blocks, strict=True):
                qkv = (block.attn.q, block.attn.k, block.attn.v)
                theirs.self_attn.in_proj_weight.copy_(torch.cat([x.weight for x in qkv]))
                theirs.self_attn.in_proj_bias.copy_(torch.cat([x.bias for x in qkv]))
                theirs.self_attn.out_proj.load_state_dict(block.attn.out.state_dict())
                theirs.linear1.load_state_dict(block.ffn.up.state_dict())
                theirs.linear2.load_state_dict(block.ffn.down.state_dict())
                theirs.norm1.load_state_dict(block.attn_norm.state_dict())
                theirs.norm2.load_state_dict(block.ffn_norm.state_dict())
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(m.context_length)
        )

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        n = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(n, device=ids.device))
        x = self.stack(x, mask=self.mask[:n, :n], is_causal=True)
        logits = F.linear(x, self.tokens.weight)
        return logits if targets is None else _mean_loss(logits, targets)


class Plain(nn.Module):
    """A GPT as usually written: one projection for q, k and v, SDPA, a mean loss."""

    def __init__(self, net: Transformer) -> None:
        super().__init__()
        m = net.config
        self.tokens = nn.Embedding(m.vocab_size, m.d_model)
        self.positions = nn.Embedding(m.context_length, m.d_model)
        self.blocks = nn.ModuleList(
            _PlainBlock(block, m.d_model, m.attention.n_heads) for block in net.blocks
        )
        self.norm = nn.LayerNorm(m.d_model)
        with torch.no_grad():
            self.tokens.weight.copy_(net.embed.tokens.weight)
            self.positions.weight.copy_(net.position.table)
            self.norm.load_state_dict(net.final_norm.state_dict())

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return logits if targets is None else _mean_loss(logits, targets)


class _PlainBlock(nn.Module):
    def __init__(self, block: nn.Module, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        parts = (block.attn.q, block.attn.k, block.attn.v)
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            self.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
            pairs = (
                (self.norm1, block.attn_norm),
                (self.norm2, block.ffn_norm),
                (self.out, block.attn.out),
            )
            for own, theirs in (*pairs, (self.up, block.ffn.up), (self.down, block.ffn.down)):
                own.load_state_dict(theirs.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(z.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def _copy_norm(theirs: dict[str, nn.Parameter], name: str, ours: nn.Module) -> None:
    for part, value in ours.named_parameters():
        theirs[f"{name}.{part}"].copy_(value)


def _mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())
