"""Models: their list, cards with example inputs, vocabulary and sampling rules."""

from fastapi import APIRouter

from clearhead import config as c
from clearhead.api import Model
from clearhead.lens.parameters import parameters
from clearhead.lens.tokens import output_labels
from clearhead.serve.errors import JSONDict
from clearhead.serve.explorer.example_inputs import example_file, example_inputs
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.routes.training import checkpoint_step, has_training_trace
from clearhead.serve.registry import LoadedModel

# Routes


def model_routes(executor: ExplorerExecutor) -> APIRouter:
    router = APIRouter(prefix="/api/models", tags=["page"])

    @router.get("")
    async def models() -> list[JSONDict]:
        """All models by name, with the cards of loaded ones."""
        loaded = executor.registry.loaded
        return [
            model_card(loaded[name]) if name in loaded else {"name": name}
            for name in executor.registry.names
        ]

    @router.get("/{name}")
    async def model(name: str) -> JSONDict:
        async with executor.use_model(name) as loaded_model:
            return model_card(loaded_model)

    @router.get("/{name}/vocabulary")
    async def vocabulary(name: str) -> list[str]:
        """The label of every output of the head, by id."""
        async with executor.use_model(name) as loaded_model:
            config = loaded_model.model.config
            m = config.model
            num_outputs = m.vocab_size
            if isinstance(m.head, c.ClassificationHead):
                num_outputs = m.head.num_labels
            tokenizer = loaded_model.model.tokenizer
            return await executor.submit(output_labels, config, tokenizer, range(num_outputs))

    @router.get("/{name}/parameters")
    async def parameter_counts(name: str) -> list[JSONDict]:
        """Number of parameters, part by part, with shapes in row form."""
        async with executor.use_model(name) as loaded_model:
            return await executor.submit(count_parameters, loaded_model.model)

    @router.get("/{name}/sampling")
    async def sampling(name: str) -> JSONDict:
        """What sampling needs besides logits: vocabulary size, suppressed and end tokens."""
        async with executor.use_model(name) as loaded_model:
            model = loaded_model.model
            inference = model.config.inference
            tokenizer = model.tokenizer
            return {
                "vocab_size": len(tokenizer) if tokenizer else model.config.model.vocab_size,
                "suppress_tokens": inference.suppress_tokens,
                "begin_suppress_tokens": inference.begin_suppress_tokens,
                "eos_tokens": inference.eos_tokens,
            }

    return router


def count_parameters(model: Model) -> list[JSONDict]:
    return [
        {
            "part": group.part,
            "symbol": group.symbol,
            "formula": group.formula,
            "shape": group.shape,
            "layers": group.layers,
            "count": group.count,
        }
        for group in parameters(model).groups
    ]


# Cards


def model_card(loaded_model: LoadedModel) -> JSONDict:
    model = loaded_model.model
    path = loaded_model.path
    m = model.config.model
    inference = model.config.inference
    architecture = m.architecture
    has_tokenizer = model.tokenizer is not None
    views = available_views(model)
    encoder_layers = (
        architecture.encoder_layers if isinstance(architecture, c.EncoderDecoder) else 0
    )
    return {
        "name": loaded_model.name,
        "path": path,
        "fingerprint": loaded_model.fingerprint,
        "architecture": model.architecture,
        "n_layers": m.n_layers,
        "encoder_layers": encoder_layers,
        "n_heads": m.attention.n_heads,
        "n_kv_heads": m.n_kv_heads,
        "d_model": m.d_model,
        "d_head": m.d_head,
        "d_ff": m.d_ff,
        "vocab_size": m.vocab_size,
        "num_parameters": model.num_parameters(),
        "context_length": m.context_length,
        "device": next(model.net.parameters()).device.type,
        "step": checkpoint_step(path),
        "position": m.position.kind,
        "norm": m.norm.kind,
        "norm_position": m.norm_position,
        "activation": m.ffn.activation,
        "is_gated": m.ffn.is_gated,
        "sliding_window": m.attention.sliding_window,
        "scale_scores": m.attention.scale,
        "tie_embeddings": _has_tied_embeddings(m.head),
        "head": m.head.kind,
        "labels": list(inference.labels),
        "mask_token": list(inference.mask_token),
        "has_chat": "chat" in views,
        "has_chat_template": bool(inference.chat_template),
        "reads_text": isinstance(m.main_input, c.Tokens) and has_tokenizer,
        "reads_images": isinstance(m.main_input, c.Images),
        "reads_audio": isinstance(m.main_input, c.MelSpectrogram),
        "has_training_trace": has_training_trace(path),
        "views": views,
        "examples": {**example_inputs(model), "file": example_file(path)},
    }


def _has_tied_embeddings(head: c.Head) -> bool:
    if isinstance(head, c.LMHead):
        return head.tie_embeddings
    return isinstance(head, c.MLMHead)


def available_views(model: Model) -> list[str]:
    """The views that this model supports, in the order of the navigation."""
    m = model.config.model
    inference = model.config.inference
    has_encoder = isinstance(m.architecture, c.EncoderDecoder)
    reads_text = isinstance(m.main_input, c.Tokens)
    has_words = isinstance(m.input, c.Tokens) and model.tokenizer is not None
    is_language_model = isinstance(m.head, c.LMHead) and isinstance(m.architecture, c.Decoder)
    is_classifier = isinstance(m.head, c.ClassificationHead | c.RegressionHead)
    views = {
        "machine": True,
        "tokens": reads_text,
        "position": True,
        "attention": True,
        "block": True,
        "predict": is_language_model,
        "lens": not isinstance(m.head, c.NoHead) or has_words,  # or only words in context
        "vectors": has_words,
        "translate": has_encoder,
        "classify": reads_text and is_classifier,
        "fill": bool(inference.mask_token) and isinstance(m.head, c.MLMHead),
        "chat": bool(model.chat_template) and has_words and is_language_model,
        "patches": not reads_text,
        "compare": True,
        "tour": True,
    }
    return [view for view, is_available in views.items() if is_available]
