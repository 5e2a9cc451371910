"""Multi30k en→de: train mt-small, translate test_2016_flickr with 5 beams, and compute BLEU.

python bench/multi30k.py FOLDER --device cuda [--output run]  FOLDER: train, val, test_2016_flickr
python bench/multi30k.py FOLDER --score translations.de       score existing translations

BLEU is computed cased and detokenized by sacrebleu, with its signature; and lowercased, normalized
and tokenized by Moses against the prepared test set, as in older papers. Needs sacremoses.
"""

import argparse
import gzip
import json
import lzma
import time
from pathlib import Path

import benchmark_results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("multi30k"))
    parser.add_argument("--score", type=Path)
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    rows = []
    if args.score is None:
        args.score, seconds = translate(args)
        rows.append(
            benchmark_results.measure("mt-small on Multi30k: total training time", "s", [seconds])
        )
    packages = []
    try:
        rows += score(args.folder, args.score.read_text(encoding="utf-8").splitlines())
        packages += ["sacrebleu", "sacremoses"]
    except ImportError:
        print(f"install sacrebleu and sacremoses to score {args.score} with --score")
    if args.save and rows:
        benchmark_results.save(rows, *packages, device=args.device)


def translate(args: argparse.Namespace) -> tuple[Path, float]:
    """The file of translations, and the seconds of training."""
    import clearhead as ch

    files = {
        part: [str(args.folder / f"{part}.{side}.gz") for side in ("en", "de")]
        for part in ("train", "val")
    }
    start_time = time.perf_counter()
    data = {"train": files["train"], "valid": files["val"]}
    model = ch.train("mt-small", args.output, data=data, device=args.device)
    trained = time.perf_counter()
    with gzip.open(args.folder / "test_2016_flickr.en.gz", "rt", encoding="utf-8") as file:
        sources = file.read().splitlines()
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    texts = [""] * len(sources)
    for start in range(0, len(order), 250):
        block = order[start : start + 250]
        for i, translation in zip(
            block, model.translate([sources[i] for i in block], num_beams=5), strict=True
        ):
            texts[i] = translation.text
    path = args.output / "test_2016_flickr.de"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    seconds = {
        "training_s": round(trained - start_time, 1),
        "translating_s": round(time.perf_counter() - trained, 1),
    }
    print(json.dumps(seconds), flush=True)
    return path, trained - start_time


def score(folder: Path, texts: list[str]) -> list[benchmark_results.Row]:
    from sacrebleu.metrics import BLEU
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    with gzip.open(folder / "test_2016_flickr.de.gz", "rt", encoding="utf-8") as file:
        reference = file.read().splitlines()
    with lzma.open(folder / "test_2016_flickr.lc.norm.tok.de.xz", "rt", encoding="utf-8") as file:
        prepared = file.read().splitlines()
    normalize = MosesPunctNormalizer("de").normalize
    tokenize = MosesTokenizer("de").tokenize

    def preprocess(text: str) -> str:
        return tokenize(normalize(text.lower()), return_str=True)

    assert [preprocess(text) for text in reference] == prepared, (
        "the preprocessing differs from the prepared test set's"
    )
    cased = BLEU()
    cased_score = cased.corpus_score(texts, [reference])
    print("cased    ", cased_score, cased.get_signature())
    plain = BLEU(tokenize="none", force=True)
    plain_score = plain.corpus_score([preprocess(text) for text in texts], [prepared])
    print("tokenized", plain_score, plain.get_signature())
    return [
        benchmark_results.measure(
            "mt-small on Multi30k: sacrebleu, cased", "BLEU", [cased_score.score]
        ),
        benchmark_results.measure(
            "mt-small on Multi30k: BLEU, lowercased and tokenized", "BLEU", [plain_score.score]
        ),
    ]


if __name__ == "__main__":
    main()
