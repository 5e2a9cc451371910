"""Writing on this CPU, float32 and int8, against CTranslate2 and Hugging Face with equal weights.

python bench/decode.py                          all works, all engines, as many threads as there are cores
python bench/decode.py --works decode beam      some of them: decode, greedy, beam, small

    decode   GPT-2 124M, one text, 96 tokens after a prompt of 16
    greedy   an encoder-decoder of 2017 (6 + 6 layers, 512 wide, 32,000 words), 32 sentences of 16 to 32 tokens, 24 out
    beam     the same with 5 beams
    small    10M parameters by character (6 layers, 384 wide), one text of 240, against a loop without a cache

Weights are random, written by our exporters and read by the peers. Before anything is timed, float32 outputs must be
equal token for token; how far int8 agrees with float32 is told. Interleaved, medians with the spread (lowest-highest);
a ratio above 1 means ours is faster. Where others use the machine, CPU time (of all threads) is the better measure.
"""

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import ctranslate2
import torch
import transformers

import kept
from clearhead.api import Model
from clearhead.config.model import Config
from clearhead.config.presets import presets
from clearhead.generate.beam_search import beam_search
from clearhead.model import int8
from clearhead.model.transformer import Transformer, build_transformer
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.load import save_model

Texts = list[list[int]]
Engine = Callable[[], Texts]
NAMES = {
    "decode": "GPT-2 124M, one text",
    "greedy": "translation base, 32 sentences, greedy",
    "beam": "translation base, 32 sentences, 5 beams",
    "small": "10M by character, one text",
}
PEERS = {"ctranslate2": "CTranslate2", "hf": "Hugging Face", "no": "a loop without cache"}
FIRST: list[float] = []  # milliseconds until the small model's first token
PROMPT = 16
WRITTEN = 96
SENTENCES = 32
OUT = 24
CHARACTERS = 240


def named(ids: list[int]) -> list[str]:
    return [f"<unused{i}>" for i in ids]


def sides(
    net: Transformer,
    ours: Callable[[Transformer], Engine],
    theirs: Callable[[str], Engine],
    face: Engine,
) -> dict[str, Engine]:
    """All engines; our networks are as `clearhead.load` leaves them."""
    whole = copy.deepcopy(net)
    int8.quantize(whole)
    both = {"ours float32": ours(net), "ours int8": ours(whole)}
    return (
        both | {f"ctranslate2 {d}": theirs(d) for d in ("float32", "int8")} | {"hf float32": face}
    )


def exported(net: Transformer, config: Config, folder: Path) -> tuple[Path, Path]:
    for kind in ("ctranslate2", "hf"):
        save_model(folder / kind, Checkpoint(net, config), kind)
    return folder / "ctranslate2", folder / "hf"


def decode(folder: Path, threads: int) -> dict[str, Engine]:
    config = presets["gpt2-124m"]
    net = build_transformer(config.model).eval()
    ct2, hf = exported(net, config, folder)
    prompt = torch.randint(
        0, config.model.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(1)
    )

    def ours(net: Transformer) -> Engine:
        model = Model(net, config)
        return lambda: [model.generate(prompt, WRITTEN, temperature=0.0).tokens]

    def theirs(dtype: str) -> Engine:
        generator = ctranslate2.Generator(str(ct2), compute_type=dtype, intra_threads=threads)
        options = {"max_length": WRITTEN, "include_prompt_in_result": False}
        return lambda: [
            generator.generate_batch([named(prompt.tolist())], **options)[0].sequences_ids[0]
        ]

    face = transformers.AutoModelForCausalLM.from_pretrained(hf).eval()
    lengths = {
        "max_new_tokens": WRITTEN,
        "min_new_tokens": WRITTEN,
        "do_sample": False,
        "pad_token_id": 0,
    }

    def hugging_face() -> Texts:
        mask = torch.ones(1, PROMPT, dtype=torch.long)
        return face.generate(prompt[None], attention_mask=mask, **lengths)[:, PROMPT:].tolist()

    return sides(net, ours, theirs, hugging_face)


def translate(folder: Path, threads: int, beams: int) -> dict[str, Engine]:
    marian = {
        "position.layout": "halves",
        "attention.bias": ("q", "k", "v", "out"),
        "head.bias": True,
    }
    marian["head.tie_embeddings"] = False  # tied, random weights repeat what they read
    config = presets["vaswani-base"].replace(
        vocab_size=32000, inference__decoder_start_tokens=(0,), **marian
    )
    net = build_transformer(config.model).eval()
    ct2, hf = exported(net, config, folder)
    chance = torch.Generator().manual_seed(1)
    lengths = torch.randint(16, 33, (SENTENCES,), generator=chance).tolist()
    sources = [torch.randint(3, 32000, (length,), generator=chance).tolist() for length in lengths]
    rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sources], batch_first=True)
    real = (torch.arange(rows.shape[1]) < torch.tensor(lengths)[:, None]).long()

    def ours(net: Transformer) -> Engine:
        options = {"source": rows, "source_segments": real, "beams": beams, "max_tokens": OUT}
        return lambda: [h.tokens for h, *_ in beam_search(net, [[0]] * SENTENCES, **options)]

    def theirs(dtype: str) -> Engine:
        translator = ctranslate2.Translator(str(ct2), compute_type=dtype, intra_threads=threads)
        options = {"beam_size": beams, "max_decoding_length": OUT}
        texts = [named(source) for source in sources]
        return lambda: [
            [int(word[7:-1]) for word in result.hypotheses[0]]
            for result in translator.translate_batch(texts, **options)
        ]

    face = transformers.AutoModelForSeq2SeqLM.from_pretrained(hf).eval()
    inner = face.model  # where the head is not tied, it does not tie these two either
    inner.encoder.embed_tokens = inner.decoder.embed_tokens = inner.shared
    face.generation_config = transformers.GenerationConfig(
        num_beams=beams,
        max_new_tokens=OUT,
        min_new_tokens=OUT,
        decoder_start_token_id=0,
        pad_token_id=0,
    )

    def hugging_face() -> Texts:
        return face.generate(rows, attention_mask=real)[:, 1:].tolist()

    return sides(net, ours, theirs, hugging_face)


def small(folder: Path, threads: int) -> dict[str, Engine]:
    config = presets["shakespeare-char"].replace(vocab_size=65)
    net = build_transformer(config.model).eval()
    model = Model(net, config)
    prompt = torch.arange(PROMPT)
    begin = time.perf_counter()
    model.generate(prompt, 1, temperature=0.0)
    FIRST.append((time.perf_counter() - begin) * 1e3)
    print(f"small: {config.num_parameters():,} parameters; first token {FIRST[-1]:.1f} ms")

    @torch.no_grad()
    def without_cache() -> Texts:
        ids = prompt[None]
        for _ in range(CHARACTERS):
            ids = torch.cat((ids, net.compute_logits(net(ids)[:, -1:]).argmax(dim=-1)), dim=1)
        return ids[:, PROMPT:].tolist()

    return {
        "ours float32": lambda: [model.generate(prompt, CHARACTERS, temperature=0.0).tokens],
        "no cache float32": without_cache,
    }


WORKS = {
    "decode": decode,
    "greedy": lambda folder, threads: translate(folder, threads, 1),
    "beam": lambda folder, threads: translate(folder, threads, 5),
    "small": small,
}


def agreement(some: Texts, others: Texts) -> float:
    """The share of texts that are the same to the last token."""
    return sum(a == b for a, b in zip(some, others, strict=True)) / len(some)


def measure(work: str, repeats: int, threads: int) -> tuple[list[dict], list[kept.Row]]:
    """What is told, and what is kept of it."""
    with tempfile.TemporaryDirectory() as folder:
        engines = WORKS[work](Path(folder), threads)
    written = {name: engine() for name, engine in engines.items()}
    wanted = written["ours float32"]
    for name, texts in written.items():
        same = agreement(texts, wanted)
        assert same == 1 or "int8" in name, (
            f"{work}: {name} writes something else: {same:.0%} are as ours"
        )
    tokens = sum(map(len, wanted))
    spent = {name: ([], []) for name in engines}
    for _ in range(repeats):
        for name, engine in engines.items():
            wall = time.perf_counter()
            cpu = time.process_time()
            engine()
            spent[name][0].append(time.perf_counter() - wall)
            spent[name][1].append(time.process_time() - cpu)
    rows = []
    figures = []
    for name, (walls, cpus) in spent.items():
        if name.startswith("ours"):
            continue
        engine = name.split()[0]
        dtype = name.split()[-1]
        mine = spent[f"ours {dtype}"]
        rates = {
            who: [tokens / t for t in times]
            for who, times in (("ours", mine[0]), (PEERS[engine], walls))
        }
        figures += kept.rows(f"{NAMES[work]}, {dtype}", "tok/s", rates)
        rows.append(
            {
                "work": work,
                "peer": name,
                "ours_tok_s": [round(tokens / f(mine[0]), 1) for f in (median, max, min)],
                "peer_tok_s": [round(tokens / f(walls), 1) for f in (median, max, min)],
                "ratio": round(median(walls) / median(mine[0]), 2),
                "cpu_ratio": round(median(cpus) / median(mine[1]), 2),
                "as_float32": [agreement(written[n], wanted) for n in (f"ours {dtype}", name)],
            }
        )
    return rows, figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    kept.offer(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    versions = {m.__name__: m.__version__ for m in (torch, ctranslate2, transformers)}
    print(f"{versions}, {options.threads} threads")
    rows = []
    figures = []
    for work in options.works:
        found, more = measure(work, options.repeats, options.threads)
        figures += more
        for r in found:
            ours, peer = (
                "{:.1f} ({:.1f}-{:.1f})".format(*r[key]) for key in ("ours_tok_s", "peer_tok_s")
            )
            times = f"{r['ratio']:.2f} x, CPU time {r['cpu_ratio']:.2f} x"
            print(
                f"{work:7s} {r['peer']:20s} ours {ours:24s} tok/s  theirs {peer:24s} tok/s  {times}",
                flush=True,
            )
            rows.append(r)
    print(json.dumps({"versions": versions, "threads": options.threads, "rows": rows}))
    if FIRST:
        figures.append(kept.row("10M by character, first token after loading", "ms", FIRST))
    if options.keep:
        kept.write(figures, "ctranslate2", "transformers")


if __name__ == "__main__":
    main()
