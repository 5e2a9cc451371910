"""Text generation on a CPU in float32 and int8, against CTranslate2 and Hugging Face.

python bench/decode.py                          all workloads and engines, with all cores
python bench/decode.py --workloads decode beam  some workloads: decode, greedy, beam, small

    decode   GPT-2 124M, one text, 96 tokens after a prompt of 16
    greedy   Transformer base of 2017 (6 + 6 layers, d_model 512, vocabulary 32,000), 32 sentences
             of 16 to 32 tokens, 24 output tokens
    beam     the same with 5 beams
    small    10M character model (6 layers, d_model 384), one text of 240, against no KV cache

Weights are random and equal, exported for the other engines. Before anything is timed, float32
outputs must be equal token for token; the agreement of int8 with float32 is reported. Interleaved
rounds, medians with the spread (lowest–highest); a ratio above 1 means ours is faster. On a busy
machine, CPU time (of all threads) is the better measure.
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

import benchmark_results
from clearhead.api import Model
from clearhead.config.model import Config
from clearhead.config.presets import presets
from clearhead.generate.beam_search import BeamRules, beam_search
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
    "small": "10M character model, one text",
}
PEERS = {"ctranslate2": "CTranslate2", "hf": "Hugging Face", "no": "loop without KV cache"}
FIRST_TOKEN_MS: list[float] = []  # of the small model
PROMPT_TOKENS = 16
OUTPUT_TOKENS = 96
SENTENCES = 32
TRANSLATION_TOKENS = 24
CHARACTERS = 240


def token_names(ids: list[int]) -> list[str]:
    return [f"<unused{i}>" for i in ids]


def make_engines(
    net: Transformer,
    ours: Callable[[Transformer], Engine],
    theirs: Callable[[str], Engine],
    hugging_face: Engine,
) -> dict[str, Engine]:
    quantized = copy.deepcopy(net)
    int8.quantize(quantized)
    return {
        "ours float32": ours(net),
        "ours int8": ours(quantized),
        "ctranslate2 float32": theirs("float32"),
        "ctranslate2 int8": theirs("int8"),
        "hf float32": hugging_face,
    }


def export(net: Transformer, config: Config, folder: Path) -> tuple[Path, Path]:
    for name in ("ctranslate2", "hf"):
        save_model(folder / name, Checkpoint(net, config), name)
    return folder / "ctranslate2", folder / "hf"


def decode(folder: Path, threads: int) -> dict[str, Engine]:
    config = presets["gpt2-124m"]
    net = build_transformer(config.model).eval()
    ct2, hf = export(net, config, folder)
    prompt = torch.randint(
        0, config.model.vocab_size, (PROMPT_TOKENS,), generator=torch.Generator().manual_seed(1)
    )

    def ours(net: Transformer) -> Engine:
        model = Model(net, config)
        return lambda: [model.generate(prompt, OUTPUT_TOKENS, temperature=0.0).tokens]

    def theirs(dtype: str) -> Engine:
        generator = ctranslate2.Generator(str(ct2), compute_type=dtype, intra_threads=threads)
        options = {"max_length": OUTPUT_TOKENS, "include_prompt_in_result": False}
        return lambda: [
            generator.generate_batch([token_names(prompt.tolist())], **options)[0].sequences_ids[0]
        ]

    peer = transformers.AutoModelForCausalLM.from_pretrained(hf).eval()
    lengths = {
        "max_new_tokens": OUTPUT_TOKENS,
        "min_new_tokens": OUTPUT_TOKENS,
        "do_sample": False,
        "pad_token_id": 0,
    }

    def hugging_face() -> Texts:
        mask = torch.ones(1, PROMPT_TOKENS, dtype=torch.long)
        return peer.generate(prompt[None], attention_mask=mask, **lengths)[
            :, PROMPT_TOKENS:
        ].tolist()

    return make_engines(net, ours, theirs, hugging_face)


def translate(folder: Path, threads: int, beams: int) -> dict[str, Engine]:
    marian = {
        "position.layout": "halves",
        "attention.bias": ("q", "k", "v", "out"),
        "head.bias": True,
    }
    marian["head.tie_embeddings"] = False  # tied random weights repeat their input
    config = presets["vaswani-base"].replace(
        vocab_size=32000, inference__decoder_start_tokens=(0,), **marian
    )
    net = build_transformer(config.model).eval()
    ct2, hf = export(net, config, folder)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(16, 33, (SENTENCES,), generator=generator).tolist()
    sources = [
        torch.randint(3, 32000, (length,), generator=generator).tolist() for length in lengths
    ]
    rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sources], batch_first=True)
    mask = (torch.arange(rows.shape[1]) < torch.tensor(lengths)[:, None]).long()

    def ours(net: Transformer) -> Engine:
        rules = BeamRules(torch.device("cpu"), beams, TRANSLATION_TOKENS)
        sides = {"source": rows, "source_segment_ids": mask}
        return lambda: [h.tokens for h, *_ in beam_search(net, rules, [[0]] * SENTENCES, **sides)]

    def theirs(dtype: str) -> Engine:
        translator = ctranslate2.Translator(str(ct2), compute_type=dtype, intra_threads=threads)
        options = {"beam_size": beams, "max_decoding_length": TRANSLATION_TOKENS}
        texts = [token_names(source) for source in sources]
        return lambda: [
            [int(word[7:-1]) for word in result.hypotheses[0]]
            for result in translator.translate_batch(texts, **options)
        ]

    peer = transformers.AutoModelForSeq2SeqLM.from_pretrained(hf).eval()
    inner = peer.model  # without a tied head, these are not tied either
    inner.encoder.embed_tokens = inner.decoder.embed_tokens = inner.shared
    peer.generation_config = transformers.GenerationConfig(
        num_beams=beams,
        max_new_tokens=TRANSLATION_TOKENS,
        min_new_tokens=TRANSLATION_TOKENS,
        decoder_start_token_id=0,
        pad_token_id=0,
    )

    def hugging_face() -> Texts:
        return peer.generate(rows, attention_mask=mask)[:, 1:].tolist()

    return make_engines(net, ours, theirs, hugging_face)


def small(folder: Path, threads: int) -> dict[str, Engine]:
    config = presets["shakespeare-char"].replace(vocab_size=65)
    net = build_transformer(config.model).eval()
    model = Model(net, config)
    prompt = torch.arange(PROMPT_TOKENS)
    start = time.perf_counter()
    model.generate(prompt, 1, temperature=0.0)
    FIRST_TOKEN_MS.append((time.perf_counter() - start) * 1e3)
    print(f"small: {config.num_parameters():,} parameters; first token {FIRST_TOKEN_MS[-1]:.1f} ms")

    @torch.no_grad()
    def without_cache() -> Texts:
        ids = prompt[None]
        for _ in range(CHARACTERS):
            ids = torch.cat((ids, net.compute_logits(net(ids)[:, -1:]).argmax(dim=-1)), dim=1)
        return ids[:, PROMPT_TOKENS:].tolist()

    return {
        "ours float32": lambda: [model.generate(prompt, CHARACTERS, temperature=0.0).tokens],
        "no cache float32": without_cache,
    }


WORKLOADS = {
    "decode": decode,
    "greedy": lambda folder, threads: translate(folder, threads, 1),
    "beam": lambda folder, threads: translate(folder, threads, 5),
    "small": small,
}


def agreement(texts: Texts, others: Texts) -> float:
    """The fraction of equal texts."""
    return sum(a == b for a, b in zip(texts, others, strict=True)) / len(texts)


def measure(
    workload: str, repeats: int, threads: int
) -> tuple[list[dict], list[benchmark_results.Row]]:
    with tempfile.TemporaryDirectory() as folder:
        engines = WORKLOADS[workload](Path(folder), threads)
    outputs = {name: engine() for name, engine in engines.items()}
    expected = outputs["ours float32"]
    for name, texts in outputs.items():
        same = agreement(texts, expected)
        assert same == 1 or "int8" in name, (
            f"{workload}: {name} generates other texts; {same:.0%} are equal"
        )
    tokens = sum(map(len, expected))
    times = {name: ([], []) for name in engines}
    for _ in range(repeats):
        for name, engine in engines.items():
            wall = time.perf_counter()
            cpu = time.process_time()
            engine()
            times[name][0].append(time.perf_counter() - wall)
            times[name][1].append(time.process_time() - cpu)
    rows = []
    saved = []
    for name, (walls, cpus) in times.items():
        if name.startswith("ours"):
            continue
        engine = name.split()[0]
        dtype = name.split()[-1]
        our_times = times[f"ours {dtype}"]
        rates = {
            side: [tokens / t for t in seconds]
            for side, seconds in (("ours", our_times[0]), (PEERS[engine], walls))
        }
        saved += benchmark_results.compare(f"{NAMES[workload]}, {dtype}", "tok/s", rates)
        rows.append(
            {
                "workload": workload,
                "peer": name,
                "ours_tok_s": [round(tokens / f(our_times[0]), 1) for f in (median, max, min)],
                "peer_tok_s": [round(tokens / f(walls), 1) for f in (median, max, min)],
                "ratio": round(median(walls) / median(our_times[0]), 2),
                "cpu_ratio": round(median(cpus) / median(our_times[1]), 2),
                "agreement_with_float32": [
                    agreement(outputs[n], expected) for n in (f"ours {dtype}", name)
                ],
            }
        )
    return rows, saved


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    benchmark_results.add_save_argument(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    versions = {m.__name__: m.__version__ for m in (torch, ctranslate2, transformers)}
    print(f"{versions}, {args.threads} threads")
    rows = []
    saved = []
    for workload in args.workloads:
        results, more = measure(workload, args.repeats, args.threads)
        saved += more
        for r in results:
            ours, peer = (
                "{:.1f} ({:.1f}-{:.1f})".format(*r[key]) for key in ("ours_tok_s", "peer_tok_s")
            )
            ratios = f"{r['ratio']:.2f} x, CPU time {r['cpu_ratio']:.2f} x"
            print(
                f"{workload:7s} {r['peer']:20s} ours {ours:24s} tok/s  theirs {peer:24s} tok/s  "
                f"{ratios}",
                flush=True,
            )
            rows.append(r)
    print(json.dumps({"versions": versions, "threads": args.threads, "rows": rows}))
    if FIRST_TOKEN_MS:
        saved.append(
            benchmark_results.measure(
                "10M character model, first token after loading", "ms", FIRST_TOKEN_MS
            )
        )
    if args.save:
        benchmark_results.save(saved, "ctranslate2", "transformers")


if __name__ == "__main__":
    main()
