"""Multi30k en→de: trains mt-small on it alone, translates test_2016_flickr with beam 5, and scores it both ways.

python bench/multi30k.py FOLDER --device cuda [--out run]     FOLDER holds train, val and test_2016_flickr
python bench/multi30k.py FOLDER --score translations.de       scores a file that is there already

Cased and detokenised by sacrebleu, with its signature; and as older papers did: lowercased, normalised and tokenised
by Moses' rules, against the prepared test set. Needs `pip install sacrebleu sacremoses` where it scores.
"""

import argparse
import gzip
import json
import lzma
import time
from pathlib import Path

import kept


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("multi30k"))
    parser.add_argument("--score", type=Path)
    kept.offer(parser)
    options = parser.parse_args()
    rows = []
    if options.score is None:
        options.score, seconds = translate(options)
        rows.append(kept.row("mt-small on Multi30k: training, everything included", "s", [seconds]))
    used = []
    try:
        rows += score(options.folder, options.score.read_text(encoding="utf-8").splitlines())
        used += ["sacrebleu", "sacremoses"]
    except ImportError:
        print(
            f"sacrebleu and sacremoses are not here; {options.score} can be scored elsewhere with --score"
        )
    if options.keep and rows:
        kept.write(rows, *used, device=options.device)


def translate(options: argparse.Namespace) -> tuple[Path, float]:
    """The file of translations, and the seconds of training."""
    import clearhead as ch

    files = {
        part: [str(options.folder / f"{part}.{side}.gz") for side in ("en", "de")]
        for part in ("train", "val")
    }
    began = time.perf_counter()
    data = {"data__train": files["train"], "data__valid": files["val"]}
    model = ch.train("mt-small", options.out, device=options.device, **data)
    trained = time.perf_counter()
    with gzip.open(options.folder / "test_2016_flickr.en.gz", "rt", encoding="utf-8") as file:
        sources = file.read().splitlines()
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    texts = [""] * len(sources)
    for start in range(0, len(order), 250):
        some = order[start : start + 250]
        for i, best in zip(
            some, model.translate([sources[i] for i in some], num_beams=5), strict=True
        ):
            texts[i] = best.text
    there = options.out / "test_2016_flickr.de"
    there.write_text("\n".join(texts) + "\n", encoding="utf-8")
    seconds = {
        "training_s": round(trained - began, 1),
        "translating_s": round(time.perf_counter() - trained, 1),
    }
    print(json.dumps(seconds), flush=True)
    return there, trained - began


def score(folder: Path, texts: list[str]) -> list[kept.Row]:
    from sacrebleu.metrics import BLEU
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    with gzip.open(folder / "test_2016_flickr.de.gz", "rt", encoding="utf-8") as file:
        reference = file.read().splitlines()
    with lzma.open(folder / "test_2016_flickr.lc.norm.tok.de.xz", "rt", encoding="utf-8") as file:
        prepared = file.read().splitlines()
    normalise = MosesPunctNormalizer("de").normalize
    cut = MosesTokenizer("de").tokenize

    def old(text: str) -> str:
        return cut(normalise(text.lower()), return_str=True)

    assert [old(text) for text in reference] == prepared, "the prepared test set was made otherwise"
    cased = BLEU()
    cased_score = cased.corpus_score(texts, [reference])
    print("cased    ", cased_score, cased.get_signature())
    plain = BLEU(tokenize="none", force=True)
    plain_score = plain.corpus_score([old(text) for text in texts], [prepared])
    print("old style", plain_score, plain.get_signature())
    return [
        kept.row("mt-small on Multi30k: sacrebleu, cased", "BLEU", [cased_score.score]),
        kept.row("mt-small on Multi30k: as older papers score", "BLEU", [plain_score.score]),
    ]


if __name__ == "__main__":
    main()
