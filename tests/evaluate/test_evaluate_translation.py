"""Evaluation of translation models against sacrebleu and the loss by hand."""

import numpy as np
import pytest
import sacrebleu
import torch

import clearhead as ch
from clearhead.data.pairs import SentencePair, TranslationDataset, encode_pairs
from clearhead.data.readers import DataReport
from clearhead.errors import ClearheadError
from clearhead.evaluate.results import bootstrap_metrics
from clearhead.evaluate.translation import CorpusScorer
from clearhead.train.strategy import SingleProcess
from clearhead.train.train_step import validation_loss

SOURCES = ["the cat sat", "on a mat", "the dog ran home again", "a cat"]
TARGETS = ["die katze sass", "auf einer matte", "der hund lief wieder heim", "eine katze"]
WORDS = ch.Tokenizer.train_bpe(SOURCES + TARGETS, 300, ("<|end|>", "<|start|>"))
END = WORDS.special_tokens["<|end|>"]
START = WORDS.special_tokens["<|start|>"]


@pytest.fixture
def files(tmp_path):
    for name, texts in (("a.en", SOURCES), ("a.de", TARGETS)):
        (tmp_path / name).write_text("\n".join(texts) + "\n")
    return [tmp_path / "a.en", tmp_path / "a.de"]


@pytest.fixture(scope="module")
def translator():
    inference = {
        "inference__sep_tokens": [END],
        "inference__decoder_start_tokens": [START],
        "inference__eos_tokens": [END],
        "inference__suppress_tokens": [START],
    }
    return ch.new(
        "tiny-encoder-decoder",
        vocab_size=len(WORDS),
        tokenizer=WORDS,
        context_length=24,
        seed=1,
        **inference,
    )


def test_bleu_and_chrf_equal_sacrebleu(translator, files, monkeypatch):
    translations = {
        "the cat sat": "die Katze sass da",
        "on a mat": "auf einer matte",
        "a cat": "",
        SOURCES[2]: "der hund lief",
    }

    class FakeTranslation(str):
        text = property(str)

    monkeypatch.setattr(
        translator,
        "translate",
        lambda texts, num_beams: [FakeTranslation(translations[text]) for text in texts],
    )
    result = ch.evaluate(translator, files)
    hypotheses = [translations[source] for source in SOURCES]
    assert [example["hypothesis"] for example in result.examples] == hypotheses
    assert result.value("bleu") == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [TARGETS]).score)
    assert result.value("chrf") == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [TARGETS]).score)
    assert result.examples[0]["chrf"] == pytest.approx(
        sacrebleu.sentence_chrf(hypotheses[0], [TARGETS[0]]).score
    )
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in result["bleu"].method
    assert result["bleu"].low <= result.value("bleu") <= result["bleu"].high


def test_interval_is_close_to_that_of_sacrebleu():
    rng = np.random.default_rng(0)
    references = [" ".join(rng.choice(list("abcdefgh"), 12)) for _ in range(200)]
    hypotheses = [
        " ".join(w if rng.random() < 0.8 else "x" for w in text.split()) for text in references
    ]
    metric = sacrebleu.metrics.BLEU(force=True)
    scorer = CorpusScorer(metric, hypotheses, references)
    ours = bootstrap_metrics(
        {"bleu": ""}, lambda counts: [scorer.score(counts @ scorer.stats)], 200, "sentences", 0
    )[0]
    theirs = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    assert ours.value == pytest.approx(theirs.score)
    assert (ours.high - ours.low) / 2 == pytest.approx(theirs._ci, rel=0.1)
    assert (ours.high + ours.low) / 2 == pytest.approx(theirs._mean, abs=0.5)


def test_hypotheses_keep_the_order_of_the_file(translator, files):
    result = ch.evaluate(translator, files, num_beams=2)
    expected = [translation.text for translation in translator.translate(SOURCES, num_beams=2)]
    assert [example["hypothesis"] for example in result.examples] == [
        " ".join(text.split()) for text in expected
    ]
    assert [example["source"] for example in result.examples] == SOURCES


def test_loss_includes_eos(translator, files):
    losses = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        ids = [START, *WORDS.encode(target), END]
        log_probs = translator.logits(ids[:-1], source=[*WORDS.encode(source), END]).log_softmax(-1)
        losses.append([-row[token].item() for row, token in zip(log_probs, ids[1:], strict=True)])
    result = ch.evaluate(translator, files, num_beams=1)
    assert result.value("loss") == pytest.approx(np.mean(np.concatenate(losses)), rel=1e-5)
    assert [example["loss"] for example in result.examples] == pytest.approx(
        [np.mean(pair_losses) for pair_losses in losses], rel=1e-5
    )


def test_translation_loss_equals_validation(translator, files):
    pairs = [SentencePair(*texts, "") for texts in zip(SOURCES, TARGETS, strict=True)]
    ids = [
        ids
        for _, ids in encode_pairs(pairs, WORDS, WORDS, translator.config.inference, DataReport())
    ]
    dataset = TranslationDataset(
        ids, ids, DataReport(), batch_size=2, seq_len=24, source_seq_len=24, seed=0
    )
    loss, _ = validation_loss(translator.net, dataset, torch.device("cpu"), SingleProcess())
    assert ch.evaluate(translator, files, num_beams=1).value("loss") == pytest.approx(
        loss, rel=1e-5
    )


def test_misaligned_pairs_are_refused(translator, files, tmp_path):
    files[1].write_text("eins\n")
    with pytest.raises(ClearheadError, match=r"4 lines and .* has 1"):
        ch.evaluate(translator, files)
    (tmp_path / "wide.tsv").write_text("a\tb\tc\n")
    with pytest.raises(ClearheadError, match="3 columns"):
        ch.evaluate(translator, tmp_path / "wide.tsv")
    with pytest.raises(ClearheadError, match="stride"):
        ch.evaluate(translator, files, stride=4)


def test_tmx_pairs_may_share_a_line(translator, tmp_path):
    side = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    texts = zip(SOURCES, TARGETS, strict=True)
    units = "".join(f"<tu>{side.format('en', a)}{side.format('de', b)}</tu>" for a, b in texts)
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{units}</body></tmx>")
    result = ch.evaluate(
        translator, tmp_path / "a.tmx", source_column="en", target_column="de", num_beams=1
    )
    assert [example["reference"] for example in result.examples] == TARGETS


def test_pairs_are_encoded_in_batches(translator, files, monkeypatch):
    batches = []
    encode_batch = ch.Tokenizer.encode_batch
    monkeypatch.setattr(
        ch.Tokenizer,
        "encode_batch",
        lambda words, texts, *options: (
            batches.append(texts) or encode_batch(words, texts, *options)
        ),
    )
    ch.evaluate(translator, files, num_beams=1)
    assert batches == [SOURCES, TARGETS]


def test_audio_models_are_refused(files):
    audio = {"kind": "audio", "n_mels": 6, "n_frames": 9}
    audio_model = ch.new(
        "tiny-encoder-decoder",
        vocab_size=len(WORDS),
        tokenizer=WORDS,
        architecture__source_input=audio,
        architecture__source_context_length=5,
        architecture__source_vocab_size=0,
    )
    with pytest.raises(ClearheadError, match="audio"):
        ch.evaluate(audio_model, files)


def test_long_pairs_fail_or_are_skipped(translator, tmp_path):
    long = "the cat " * 200
    (tmp_path / "long.tsv").write_text(f"a cat\teine katze\n{long}\tviele katzen\n")
    with pytest.raises(
        ClearheadError,
        match=r"long.tsv:2 \(\d+\): the source exceeds the context",
    ):
        ch.evaluate(translator, tmp_path / "long.tsv")
    result = ch.evaluate(translator, tmp_path / "long.tsv", on_error="skip", num_beams=1)
    assert len(result.examples) == 1
    assert any("the source exceeds" in note for note in result.notes)
