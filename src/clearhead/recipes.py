"""Presets that also say how they are trained, and on what data: one command from a file to a good model."""

from collections.abc import Mapping

from clearhead.config import (
    Attention,
    Classes,
    Config,
    Data,
    Dropout,
    Encoder,
    EncoderDecoder,
    FeedForward,
    Language,
    LayerNorm,
    Learned,
    MaskedWord,
    ModelConfig,
    Pictures,
    Position,
    RMSNorm,
    Rotary,
    Spectrogram,
    Tokens,
    Train,
)
from clearhead.optimisers import Adam, AdamW, Muon
from clearhead.schedule import Cosine, InverseSquareRoot, Trapezoid

EXPECTS = {
    "shakespeare-char": "one text of about a million characters, such as tinyshakespeare",
    "shakespeare-char-cpu": "one text of about a million characters, in two minutes of two CPU cores",
    "lm-small": "any texts, of a few megabytes or more",
    "gpt2-124m": "any texts, of a gigabyte or more",
    "mt-small": "some ten thousand sentence pairs, such as Multi30k: two aligned files, or .tsv, .jsonl, .tmx, .po",
    "vaswani-base": "hundreds of thousands of sentence pairs",
    "mlm-small": "any texts, of some ten megabytes or more",
    "roformer-small": "any texts, of some ten megabytes or more",
    "finetune-classify": "a .csv, .tsv or .jsonl of texts with labels, and train.start = a model",
    "picture-patches": "a folder of pictures for each class, an .npz, or idx files such as MNIST's",
    "sound-patches": "a folder of sounds for each class, or data.label = stem, such as the spoken digits",
}

MEASURED_ON = {  # the data that train.expected of a recipe was measured on
    "shakespeare-char": "tinyshakespeare",
    "shakespeare-char-cpu": "tinyshakespeare",
    "mt-small": "Multi30k, English to German",
}


def _modern(vocabulary: int, context: int, width: int, layers: int, heads: int, dropout: float) -> ModelConfig:
    """A decoder as they are built today; other engines read it as a Qwen3."""
    return ModelConfig(
        vocabulary=vocabulary,
        context=context,
        width=width,
        layers=layers,
        position=Rotary(),
        attention=Attention(heads, bias=(), qk_norm=True),
        ffn=FeedForward("swiglu", width * 8 // 3 // 32 * 32, bias=False),
        norm=RMSNorm(eps=1e-6),
        dropout=Dropout(embedding=dropout, residual=dropout),
    )


def _reader(position: Position) -> Config:
    return Config(
        ModelConfig(
            vocabulary=8192,
            context=128,
            width=256,
            layers=6,
            shape=Encoder(),
            input=Tokens(),
            position=position,
            attention=Attention(4),
            ffn=FeedForward("gelu"),
            dropout=Dropout(embedding=0.1, residual=0.1),
            head=MaskedWord(),
        ),
        data=Data(vocabulary=8192),
        train=Train(
            steps=6000,
            rows=64,
            warmup=300,
            optimiser=Muon(rate=0.02, adam=Adam(rate=2e-3)),
            schedule=Trapezoid(cooldown=0.4),
        ),
    )


def _judge(width: int, layers: int, heads: int, source: Pictures | Spectrogram, context: int, train: Train) -> Config:
    return Config(
        ModelConfig(
            vocabulary=0,
            context=context,
            width=width,
            layers=layers,
            shape=Encoder(),
            input=source,
            position=Learned(),
            attention=Attention(heads),
            ffn=FeedForward("gelu"),
            norm=LayerNorm(),
            dropout=Dropout(embedding=0.1, residual=0.1),
            head=Classes(classes=10),
        ),
        train=train,
    )


def recipes(models: Mapping[str, Config]) -> dict[str, Config]:
    """By name; those of published models have the shapes that `models` gives."""
    fast = Muon(rate=0.02, decay=0.1, adam=Adam(rate=3e-3))
    mt = ModelConfig(
        vocabulary=8192,
        context=256,
        width=256,
        layers=4,
        shape=EncoderDecoder(layers=4, context=256, input=Tokens()),
        input=Tokens(),
        position=Rotary(),
        attention=Attention(4, bias=()),
        ffn=FeedForward("relu", 1024),
        dropout=Dropout(embedding=0.3, residual=0.3),
        head=Language(),
    )
    return {
        "shakespeare-char": Config(
            _modern(66, 256, 384, 6, 6, 0.2),
            data=Data(tokenizer="characters"),
            train=Train(
                steps=1400,
                rows=32,
                warmup=50,
                optimiser=Muon(rate=0.02, decay=0.3, adam=Adam(rate=3e-3)),
                schedule=Trapezoid(cooldown=0.6),
                ema=0.985,
                check=100,
                save=700,
                expected=(200, 1.64, 1.76, 500, 1.48, 1.57, 1000, 1.42, 1.49, 1400, 1.39, 1.46),
            ),
        ),
        "shakespeare-char-cpu": Config(
            _modern(66, 128, 128, 4, 4, 0.0),
            data=Data(tokenizer="characters"),
            train=Train(
                steps=700,
                rows=16,
                warmup=20,
                optimiser=fast,
                schedule=Trapezoid(cooldown=0.7),
                check=350,
                expected=(350, 1.7, 1.8, 700, 1.53, 1.61),
            ),
        ),
        "lm-small": Config(
            _modern(8192, 256, 384, 6, 6, 0.1),
            data=Data(vocabulary=8192),
            train=Train(steps=4000, rows=32, warmup=100, optimiser=fast, schedule=Trapezoid(cooldown=0.4)),
        ),
        "gpt2-124m": Config(
            models["gpt2-124m"].model,
            data=Data(vocabulary=50257, held_out=0.005),
            train=Train(
                steps=20000,
                rows=16,
                accumulate=32,
                warmup=700,
                optimiser=AdamW(rate=6e-4),
                schedule=Cosine(final=0.1),
                check=250,
                save=250,
            ),
        ),
        "mt-small": Config(
            mt,
            data=Data(vocabulary=8192, held_out=0.03),
            train=Train(
                steps=5000,
                rows=32,
                length=128,
                warmup=200,
                smoothing=0.1,
                optimiser=Muon(rate=0.01, adam=Adam(rate=3e-3)),
                schedule=Trapezoid(cooldown=0.5),
                ema=0.998,
                check=250,
                save=500,
                expected=(1000, 1.93, 2.13, 2000, 1.49, 1.6, 3000, 1.42, 1.52, 4000, 1.39, 1.49, 5000, 1.4, 1.52),
            ),
        ),
        "vaswani-base": Config(
            models["vaswani-base"].model,
            data=Data(vocabulary=37000, held_out=0.01),
            train=Train(
                steps=100000,
                rows=64,
                length=384,
                warmup=4000,
                smoothing=0.1,
                clip=0.0,
                optimiser=AdamW(rate=7e-4, beta2=0.98, eps=1e-9, decay=0.0),
                schedule=InverseSquareRoot(),
                average=5,
                keep=5,
                check=1000,
                save=1000,
            ),
        ),
        "mlm-small": _reader(Learned()),
        "roformer-small": _reader(Rotary()),
        "finetune-classify": Config(
            ModelConfig(
                shape=Encoder(),
                dropout=Dropout(embedding=0.1, residual=0.1),
                head=Classes(classes=2, pooling="mean", pooler=False),
            ),
            train=Train(
                steps=2000, rows=32, warmup=100, optimiser=AdamW(rate=5e-5, beta2=0.999, decay=0.01), patience=5
            ),
        ),
        "picture-patches": _judge(
            128,
            6,
            4,
            Pictures(size=28, patch=4, channels=1, mean=(0.13,), deviation=(0.31,)),
            50,
            Train(
                steps=4000, rows=128, warmup=200, optimiser=Muon(adam=Adam(rate=2e-3)), schedule=Trapezoid(cooldown=0.5)
            ),
        ).change(**{"data.shift": 2, "data.held_out": 0.05}),
        "sound-patches": _judge(
            128,
            6,
            4,
            Spectrogram(rate=8000, window=200, hop=80, mels=64, frames=96, patch_mels=16, patch_frames=8),
            49,
            Train(
                steps=2000, rows=64, warmup=100, optimiser=Muon(adam=Adam(rate=2e-3)), schedule=Trapezoid(cooldown=0.5)
            ),
        ),
    }
