"""Chat tokens: exactly the model's input, each with its message."""

import pytest

import clearhead as ch
from clearhead.errors import ClearheadError
from clearhead.serve.explorer.requests import RunRequest
from clearhead.serve.explorer.routes.tasks import tokenize_chat
from clearhead.serve.explorer.routes.words import MAX_TOKENS

WORDS = ch.Tokenizer.bytes(("<|begin|>", "<|end|>"))
CHAT_TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "You are an apple."},
    {"role": "user", "content": "  user 🍏 <|end|> é "},
]


def model(template=CHAT_TEMPLATE):
    return ch.new(
        "tiny-decoder",
        tokenizer=WORDS,
        vocab_size=258,
        context_length=200,
        inference__chat_template=template,
    )


def message_text(shown, number):
    return WORDS.decode([token["id"] for token in shown["tokens"] if token["message"] == number])


def test_tokens_equal_the_chat_prompt():
    shown = tokenize_chat(model(), MESSAGES)
    assert WORDS.decode(shown["ids"]) == model().chat_prompt(MESSAGES)
    assert [token["id"] for token in shown["tokens"]] == shown["ids"]


def test_messages_are_found_in_the_prompt():
    shown = tokenize_chat(model(), MESSAGES)
    assert shown["spans_found"]
    assert message_text(shown, 0) == "You are an apple."
    assert message_text(shown, 1) == "user 🍏 <|end|> é"
    rest = WORDS.decode([token["id"] for token in shown["tokens"] if token["message"] is None])
    assert rest == "<|begin|>system\n<|end|>\n<|begin|>user\n<|end|>\n<|begin|>assistant\n"


def test_typed_special_tokens_are_text():
    shown = tokenize_chat(model(), MESSAGES)
    assert all(not token["special"] for token in shown["tokens"] if token["message"] is not None)


def test_templates_that_rewrite_messages_give_no_spans():
    shown = tokenize_chat(
        model("{{ messages[-1].content | upper }}{{ messages | length }}"), MESSAGES
    )
    assert not shown["spans_found"]
    assert all(token["message"] is None for token in shown["tokens"])


def test_a_model_without_template_continues_the_messages():
    shown = tokenize_chat(model(""), MESSAGES)
    assert WORDS.decode(shown["ids"]) == model("").chat_prompt(MESSAGES)
    request = RunRequest(model="m", messages=MESSAGES)
    assert request.model_inputs(model(""))["x"] == shown["ids"]


def test_empty_messages_have_no_tokens():
    contents = ["", "a", " ", "é🍏", ""]
    shown = tokenize_chat(model(), [{"role": "user", "content": text} for text in contents])
    assert [message_text(shown, number) for number in range(5)] == ["", "a", "", "é🍏", ""]


def test_conversations_of_too_many_tokens_are_refused(monkeypatch):
    monkeypatch.setattr(
        "clearhead.serve.explorer.routes.tasks.IncrementalDetokenizer",
        lambda *_: pytest.fail("it was read"),
    )
    messages = [{"role": "user", "content": "a" * (MAX_TOKENS + 1)}]
    with pytest.raises(ClearheadError, match="at most 8,192"):
        tokenize_chat(model(), messages)
