"""The lectures' equations as plain loops over tokens and heads, in float64, and what the tests need to meet them."""

import math
from fractions import Fraction

import numpy as np
import torch

from clearhead.config.presets import presets
from clearhead.hooks import Recorder
from clearhead.model.transformer import Transformer, build_transformer

EXACT = 1e-9  # what float64 leaves of a different order of sums
FP32 = 1e-5  # angles, waves and losses are computed in fp32
SHALLOW = [f"**{name}" for name in ("in", "q", "rot_q", "k", "rot_k", "v", "z", "out", "norm")]
KERNELS = {"spelled": ["**"], "fused": SHALLOW}  # who asks for scores gets them written out


# ---------------------------------------------------------------- nets and their values
def random_net(preset: str = "tiny-decoder", seed: int = 0, **changes: object) -> Transformer:
    """A float64 net in which no bias is 0 and no gain is 1, so that nothing hides."""
    net = build_transformer(
        presets[preset].replace(**changes).model, seed=seed, dtype=torch.float64
    ).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return net


def random_ids(*shape: int, seed: int = 0, vocabulary: int = 64) -> torch.Tensor:
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def random_values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parameters(net: Transformer) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in net.state_dict().items()}


def watch(
    net: Transformer, x: torch.Tensor, kernel: str = "spelled", **how: torch.Tensor
) -> dict[str, np.ndarray]:
    """Every named value of one pass, logits included."""
    hooks = Recorder(KERNELS[kernel])
    with torch.no_grad():
        net.compute_logits(net(x, hooks=hooks, **how), how.get("segments"), hooks=hooks)
    assert any(name.endswith("scores") for name in hooks.values) == (kernel == "spelled")
    return {name: value.numpy() for name, value in hooks.values.items()}


def close(got: object, expected: object, tolerance: float = EXACT) -> None:
    np.testing.assert_allclose(
        np.asarray(got), np.asarray(expected), rtol=tolerance, atol=tolerance
    )


# ---------------------------------------------------------------- what acts on one token alone
def each_token(f, x):
    """f of every vector of batch × token × d."""
    return np.array([[f(token) for token in row] for row in x])


def linear(P, name):
    """x ↦ xW + b."""
    W = P[f"{name}.weight"].T
    b = P.get(f"{name}.bias", 0.0)
    return lambda x: sum(x[i] * W[i] for i in range(len(x))) + b


def norm(P, name, kind):
    """γ (x − μ)/σ + β, or γ x / √mean(x²) (L4.3)."""
    gain = P[f"{name}.weight"]
    shift = P.get(f"{name}.bias", 0.0)

    def layer(x):
        mean = sum(x) / len(x)
        variance = sum((xi - mean) ** 2 for xi in x) / len(x)
        return gain * (x - mean) / math.sqrt(variance + kind.eps) + shift

    def rms(x):
        return gain * x / math.sqrt(sum(xi**2 for xi in x) / len(x) + kind.eps)

    return layer if kind.kind == "layer" else rms


def gelu(x):
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + math.exp(-x))


def feed_forward(P, name, activation):
    """f(xW_1 + b_1)W_2 + b_2 (L4.2), or gated by a second reading of x."""
    f = {
        "relu": lambda x: max(x, 0.0),
        "relu2": lambda x: max(x, 0.0) ** 2,
        "gelu": gelu,
        "gelu-tanh": gelu_tanh,
        "silu": silu,
        "swiglu": silu,
        "geglu": gelu,
        "geglu-tanh": gelu_tanh,
    }[activation]

    def forward(x):
        inner = np.array([f(xi) for xi in linear(P, f"{name}.up")(x)])
        if activation in ("swiglu", "geglu", "geglu-tanh"):
            inner = inner * linear(P, f"{name}.gate")(x)
        return linear(P, f"{name}.down")(inner)

    return forward


# ---------------------------------------------------------------- attention
def softmax(scores):
    """exp(s)/Σ exp(s); a row that may look at nothing is all zeros."""
    most = max(scores)
    if most == -math.inf:
        return [0.0] * len(scores)
    exps = [math.exp(s - most) for s in scores]
    return [e / sum(exps) for e in exps]


def split(x, heads):
    """Head h reads its own columns of W, which are its own slice of xW: batch × head × token × d."""
    d = x.shape[-1] // heads
    return np.array(
        [[[token[h * d : (h + 1) * d] for token in row] for h in range(heads)] for row in x]
    )


def everywhere(b, i, j):
    return True


def causal(b, i, j):
    return j <= i


def no_bias(b, h, i, j):
    return 0.0


def attend(q, k, v, allowed, bias=no_bias, scale=None):
    """softmax(q·k/√d_k + M) V, one head and one query at a time (L3.3, L3.5); heads of q share those of k and v."""
    batch, heads, queries, d = q.shape
    keys = k.shape[2]
    shared = heads // k.shape[1]
    scale = 1 / math.sqrt(d) if scale is None else scale
    grids = {
        name: np.zeros((batch, heads, queries, keys)) for name in ("scores", "masked", "pattern")
    }
    z = np.zeros(q.shape)
    for b, h, i in np.ndindex(batch, heads, queries):
        K = k[b, h // shared]
        V = v[b, h // shared]
        scores = [sum(q[b, h, i] * K[j]) * scale + bias(b, h, i, j) for j in range(keys)]
        masked = [s if allowed(b, i, j) else -math.inf for j, s in enumerate(scores)]
        pattern = softmax(masked)
        z[b, h, i] = sum(pattern[j] * V[j] for j in range(keys))
        grids["scores"][b, h, i], grids["masked"][b, h, i], grids["pattern"][b, h, i] = (
            scores,
            masked,
            pattern,
        )
    return {**grids, "z": z}


def attention_meets(values, path, allowed, bias=no_bias, scale=None, tolerance=EXACT):
    """Whatever was watched of one attention layer, from scores to z, is what the loops say."""
    q, k, v = (values[f"{path}.{name}"] for name in ("rot_q", "rot_k", "v"))
    expected = attend(q, k, v, allowed, bias, scale)
    seen = [name for name in expected if f"{path}.{name}" in values]
    assert "z" in seen
    for name in seen:
        close(values[f"{path}.{name}"], expected[name], tolerance)


# ---------------------------------------------------------------- positions
def wave_rate(i, width, theta=10000.0):
    """Radians a position of the i-th pair."""
    return 1 / theta ** (2 * i / width)


def wave(pos, width, layout="interleaved"):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same) (L2.3)."""
    out = np.zeros(width)
    for i in range(width // 2):
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, width // 2 + i)
        out[sine], out[cosine] = (
            math.sin(pos * wave_rate(i, width)),
            math.cos(pos * wave_rate(i, width)),
        )
    return out


def turned(x, at, rates):
    """Numbers i and i + half of a head are one complex number, times e^(i · pos · rate) (L2.5)."""
    out = x.copy()
    half = len(rates)
    for b, h, n in np.ndindex(x.shape[:3]):
        for i in range(half):
            number = complex(x[b, h, n, i], x[b, h, n, half + i]) * np.exp(1j * at[b][n] * rates[i])
            out[b, h, n, i], out[b, h, n, half + i] = number.real, number.imag
    return out


def llama3_rate(rate, s):
    """Short waves stay, long ones are slowed by the factor, between the two it goes over smoothly."""
    length = 2 * math.pi / rate
    if length < s.context / s.high:
        return rate
    if length > s.context / s.low:
        return rate / s.factor
    smooth = (s.context / length - s.low) / (s.high - s.low)
    return (1 - smooth) * rate / s.factor + smooth * rate


def bucket(query, key, buckets, distance, both_ways):
    """T5: half of the buckets for exact distances, half growing logarithmically up to `distance`; later keys apart.

    In whole fractions: where log(n/near)/log(distance/near) is a whole number, rounding would decide.
    """
    first = 0
    away = query - key
    if both_ways:
        buckets //= 2
        first = buckets if key > query else 0
        away = abs(away)
    away = max(away, 0)
    near = buckets // 2
    if away < near:
        return first + away
    step = 0
    while step < buckets - near - 1 and Fraction(away, near) ** (buckets - near) >= Fraction(
        distance, near
    ) ** (step + 1):
        step += 1
    return first + near + step


def alibi_slopes(heads):
    """Press et al.: n = 2^a heads start at 2^(−8/n) with the same ratio; other n add every other slope of the next."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    slopes = [(2 ** (-8 / power)) ** (h + 1) for h in range(power)]
    following = [(2 ** (-8 / (2 * power))) ** (h + 1) for h in range(2 * power)]
    return slopes + following[0::2][: heads - power]
