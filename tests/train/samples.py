"""Small data of every kind, made up on the spot, and how a model is made small enough to learn it in a second."""

import wave

import numpy as np

LETTERS = (
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "dog",
    "run",
    "past",
    "old",
    "red",
    "house",
)
NARROW = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.attention.n_heads": 2,
    "model.ffn.d_ff": 32,
}
QUICK = {
    "train.batch_size": 4,
    "train.warmup_steps": 1,
    "train.log_every": 2,
    "train.eval_every": 2,
    "train.save_every": 4,
}


def sentences(count, seed=0, words=8):
    chance = np.random.default_rng(seed)
    return [" ".join(chance.choice(LETTERS, words)) for _ in range(count)]


def texts(folder):
    """One text of many lines."""
    path = folder / "text.txt"
    path.write_text(".\n".join(sentences(300)) + ".\n")
    return [str(path)]


def sentence_pairs(folder, count=120):
    """Two files whose lines belong together: words, and the same in capitals."""
    read = sentences(count, words=5)
    (folder / "a.en").write_text("\n".join(read) + "\n")
    (folder / "a.de").write_text("\n".join(line.upper() for line in read) + "\n")
    return [str(folder / "a.en"), str(folder / "a.de")]


def labelled(folder, name="rows.tsv", label=lambda i: ("bad", "good")[i % 2], count=40):
    """A table of two texts, a label and a number."""
    lines = [f"{text}\t{other}\t{label(i)}\t{i % 2 - 0.5}" for i, (text, other) in enumerate(zip(
        sentences(count), sentences(count, seed=1), strict=True))]  # fmt: skip
    (folder / name).write_text("\n".join(["text\tother\tlabel\tscore", *lines]) + "\n")
    return [str(folder / name)]


def pictures(folder, size=8, count=40):
    """An .npz of pictures that are bright on the left or on the right."""
    labels = np.arange(count) % 2
    images = np.random.default_rng(0).integers(0, 60, (count, size, size)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, label * size // 2 : (label + 1) * size // 2] += 180
    np.savez(folder / "pictures.npz", images=images, labels=labels)
    return [str(folder / "pictures.npz")]


def sounds(folder, rate=8000, count=16):
    """Low and high tones of a tenth of a second, in a folder for each."""
    time = np.arange(rate // 10) / rate
    for number in range(count):
        kind, pitch = (("high", 1500), ("low", 300))[number % 2]
        (folder / "sounds" / kind).mkdir(parents=True, exist_ok=True)
        with wave.open(str(folder / "sounds" / kind / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(
                (9000 * np.sin(2 * np.pi * (pitch + 20 * number) * time)).astype("<i2").tobytes()
            )
    return [str(folder / "sounds")]
