"""Reference implementation: the equations as plain loops over tokens and heads, in float64."""

import math
from fractions import Fraction

import numpy as np
import torch

from clearhead.config.presets import presets
from clearhead.hooks import Recorder
from clearhead.model.transformer import Transformer, build_transformer

EXACT = 1e-9  # float64 with another order of summation
FP32 = 1e-5  # angles, sinusoids and losses are computed in fp32
WITHOUT_SCORES = [
    f"**{name}" for name in ("in", "q", "rot_q", "k", "rot_k", "v", "z", "out", "final_norm")
]
IMPLEMENTATIONS = {
    "eager": ["**"],
    "fused": WITHOUT_SCORES,
}  # recording scores runs eager attention


# --- networks and their activations
def random_net(preset: str = "tiny-decoder", seed: int = 0, **changes: object) -> Transformer:
    """A float64 network without zero biases or unit gains, which would hide errors."""
    m = presets[preset].replace(**changes).model
    net = build_transformer(m, seed=seed, dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return net


def random_ids(*shape: int, seed: int = 0, vocab_size: int = 64) -> torch.Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def random_values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parameters(net: Transformer) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in net.state_dict().items()}


def watch(
    net: Transformer, x: torch.Tensor, implementation: str = "eager", **inputs: torch.Tensor
) -> dict[str, np.ndarray]:
    """All activations of one pass, logits included."""
    hooks = Recorder(IMPLEMENTATIONS[implementation])
    with torch.no_grad():
        hidden = net(x, hooks=hooks, **inputs)
        net.compute_logits(hidden, inputs.get("segment_ids"), hooks=hooks)
    assert any(name.endswith("scores") for name in hooks.values) == (implementation == "eager")
    return {name: value.numpy() for name, value in hooks.values.items()}


def close(actual: object, expected: object, tolerance: float = EXACT) -> None:
    np.testing.assert_allclose(
        np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance
    )


# --- layers that act on one token
def each_token(f, x):
    """f of every vector of batch × token × d."""
    return np.array([[f(token) for token in row] for row in x])


def linear(P, name):
    """x ↦ xW + b."""
    W = P[f"{name}.weight"].T
    b = P.get(f"{name}.bias", 0.0)
    return lambda x: sum(x[i] * W[i] for i in range(len(x))) + b


def norm(P, name, config):
    """LayerNorm γ (x − μ)/σ + β, or RMSNorm γ x / √mean(x²) (L4.3)."""
    gain = P[f"{name}.weight"]
    shift = P.get(f"{name}.bias", 0.0)

    def layer_norm(x):
        mean = sum(x) / len(x)
        variance = sum((xi - mean) ** 2 for xi in x) / len(x)
        return gain * (x - mean) / math.sqrt(variance + config.eps) + shift

    def rms_norm(x):
        return gain * x / math.sqrt(sum(xi**2 for xi in x) / len(x) + config.eps)

    return layer_norm if config.kind == "layernorm" else rms_norm


def gelu(x):
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + math.exp(-x))


def feed_forward(P, name, activation):
    """f(x W_up + b) W_down + b (L4.2), or (f(x W_gate + b) ⊙ (x W_up + b)) W_down + b."""
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
        up = linear(P, f"{name}.up")(x)
        if activation in ("swiglu", "geglu", "geglu-tanh"):
            gate = linear(P, f"{name}.gate")(x)
            post = np.array([f(xi) for xi in gate]) * up
        else:
            post = np.array([f(xi) for xi in up])
        return linear(P, f"{name}.down")(post)

    return forward


# --- attention
def softmax(scores):
    """exp(s)/Σ exp(s); a fully masked row is all zeros."""
    highest = max(scores)
    if highest == -math.inf:
        return [0.0] * len(scores)
    exps = [math.exp(s - highest) for s in scores]
    return [e / sum(exps) for e in exps]


def split_heads(x, heads):
    """Head h has its own columns of W, which are a slice of xW: batch × head × token × d."""
    d = x.shape[-1] // heads
    return np.array(
        [[[token[h * d : (h + 1) * d] for token in row] for h in range(heads)] for row in x]
    )


def bidirectional(b, i, j):
    return True


def causal(b, i, j):
    return j <= i


def no_bias(b, h, i, j):
    return 0.0


def attend(q, k, v, allowed, bias=no_bias, scale=None):
    """softmax(q·k/√d_k + M) V, one head and query at a time (L3.3, L3.5), with grouped kv heads."""
    batch, heads, queries, d = q.shape
    keys = k.shape[2]
    group = heads // k.shape[1]
    scale = 1 / math.sqrt(d) if scale is None else scale
    grids = {
        name: np.zeros((batch, heads, queries, keys))
        for name in ("scores", "masked_scores", "pattern")
    }
    z = np.zeros(q.shape)
    for b, h, i in np.ndindex(batch, heads, queries):
        K = k[b, h // group]
        V = v[b, h // group]
        scores = [sum(q[b, h, i] * K[j]) * scale + bias(b, h, i, j) for j in range(keys)]
        masked_scores = [s if allowed(b, i, j) else -math.inf for j, s in enumerate(scores)]
        pattern = softmax(masked_scores)
        z[b, h, i] = sum(pattern[j] * V[j] for j in range(keys))
        grids["scores"][b, h, i] = scores
        grids["masked_scores"][b, h, i] = masked_scores
        grids["pattern"][b, h, i] = pattern
    return {**grids, "z": z}


def check_attention(values, path, allowed, bias=no_bias, scale=None, tolerance=EXACT):
    """Compare the recorded activations of one attention layer, from scores to z, with the loops."""
    q, k, v = (values[f"{path}.{name}"] for name in ("rot_q", "rot_k", "v"))
    expected = attend(q, k, v, allowed, bias, scale)
    recorded = [name for name in expected if f"{path}.{name}" in values]
    assert "z" in recorded
    for name in recorded:
        close(values[f"{path}.{name}"], expected[name], tolerance)


# --- positions
def inverse_frequency(i, d, theta=10000.0):
    """Radians per position of the i-th pair."""
    return 1 / theta ** (2 * i / d)


def sinusoid(pos, d, layout="interleaved"):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same) (L2.3)."""
    out = np.zeros(d)
    for i in range(d // 2):
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, d // 2 + i)
        out[sine] = math.sin(pos * inverse_frequency(i, d))
        out[cosine] = math.cos(pos * inverse_frequency(i, d))
    return out


def rotated(x, positions, frequencies):
    """Numbers i and i + half of a head are one complex number, times e^(i · pos · freq) (L2.5)."""
    out = x.copy()
    half = len(frequencies)
    for b, h, n in np.ndindex(x.shape[:3]):
        for i in range(half):
            number = complex(x[b, h, n, i], x[b, h, n, half + i])
            number *= np.exp(1j * positions[b][n] * frequencies[i])
            out[b, h, n, i] = number.real
            out[b, h, n, half + i] = number.imag
    return out


def llama3_frequency(frequency, s):
    """Short wavelengths are kept, long ones divided by the factor, with a ramp in between."""
    wavelength = 2 * math.pi / frequency
    if wavelength < s.original_context_length / s.high_freq_factor:
        return frequency
    if wavelength > s.original_context_length / s.low_freq_factor:
        return frequency / s.factor
    smooth = (s.original_context_length / wavelength - s.low_freq_factor) / (
        s.high_freq_factor - s.low_freq_factor
    )
    return (1 - smooth) * frequency / s.factor + smooth * frequency


def t5_bucket(query, key, num_buckets, max_distance, is_bidirectional):
    """Half of the buckets for exact distances, half growing logarithmically up to `max_distance`.

    In fractions: where log(n/exact)/log(max/exact) is an integer, rounding would decide.
    """
    first = 0
    distance = query - key
    if is_bidirectional:
        num_buckets //= 2
        first = num_buckets if key > query else 0
        distance = abs(distance)
    distance = max(distance, 0)
    num_exact = num_buckets // 2
    if distance < num_exact:
        return first + distance
    num_log = num_buckets - num_exact
    step = 0
    while step < num_log - 1 and Fraction(distance, num_exact) ** num_log >= Fraction(
        max_distance, num_exact
    ) ** (step + 1):
        step += 1
    return first + num_exact + step


def alibi_slopes(heads):
    """Press et al.: n = 2^a heads start at 2^(−8/n) with the same ratio; other n add every other
    slope of the next power of two.
    """
    power = 1
    while power * 2 <= heads:
        power *= 2
    slopes = [(2 ** (-8 / power)) ** (h + 1) for h in range(power)]
    following = [(2 ** (-8 / (2 * power))) ** (h + 1) for h in range(2 * power)]
    return slopes + following[0::2][: heads - power]
