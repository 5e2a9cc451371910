"""Small datasets of every kind, and options that make models small and runs short."""

import wave

import numpy as np

import clearhead as ch

WORD_LIST = "the cat sat on a mat and saw dog run past old red house"
TINY_MODEL = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.attention.n_heads": 2,
    "model.ffn.d_ff": 32,
}
SHORT_RUN = {
    "train.batch_size": 4,
    "train.warmup_steps": 1,
    "train.log_every": 2,
    "train.eval_every": 2,
    "train.save_every": 4,
}


def sections(options):
    """{"train": {"max_steps": 5}} from {"train.max_steps": 5}."""
    nested = {}
    for name, value in options.items():
        section, _, option = name.partition(".")
        nested.setdefault(section, {})[option] = value
    return nested


def train(recipe, output, options, **arguments):
    """`ch.train` on a CPU, with dotted options."""
    return ch.train(recipe, output, quiet=True, device="cpu", **sections(options), **arguments)


def sentences(count, seed=0, words=8):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORD_LIST.split(), words)) for _ in range(count)]


def write_text(folder):
    """One text of many lines."""
    path = folder / "text.txt"
    path.write_text(".\n".join(sentences(300)) + ".\n")
    return [str(path)]


def write_pairs(folder, count=120):
    """Two parallel files: sentences, and the same in capitals."""
    sources = sentences(count, words=5)
    (folder / "a.en").write_text("\n".join(sources) + "\n")
    (folder / "a.de").write_text("\n".join(line.upper() for line in sources) + "\n")
    return [str(folder / "a.en"), str(folder / "a.de")]


def write_labeled(folder, name="rows.tsv", label=lambda i: ("bad", "good")[i % 2], count=40):
    """A table of two texts, a label and a number."""
    lines = ["text\tother\tlabel\tscore"]
    texts = zip(sentences(count), sentences(count, seed=1), strict=True)
    for i, (text, other) in enumerate(texts):
        lines.append(f"{text}\t{other}\t{label(i)}\t{i % 2 - 0.5}")
    (folder / name).write_text("\n".join(lines) + "\n")
    return [str(folder / name)]


def write_images(folder, size=8, count=40):
    """An .npz of images that are bright on the left or on the right."""
    labels = np.arange(count) % 2
    images = np.random.default_rng(0).integers(0, 60, (count, size, size)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, label * size // 2 : (label + 1) * size // 2] += 180
    np.savez(folder / "images.npz", images=images, labels=labels)
    return [str(folder / "images.npz")]


def write_audio(folder, sample_rate=8000, count=16):
    """Low and high tones of a tenth of a second, in a folder each."""
    time = np.arange(sample_rate // 10) / sample_rate
    for number in range(count):
        label, pitch = (("high", 1500), ("low", 300))[number % 2]
        wave_form = 9000 * np.sin(2 * np.pi * (pitch + 20 * number) * time)
        (folder / "audio" / label).mkdir(parents=True, exist_ok=True)
        with wave.open(str(folder / "audio" / label / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(sample_rate)
            file.writeframes(wave_form.astype("<i2").tobytes())
    return [str(folder / "audio")]
