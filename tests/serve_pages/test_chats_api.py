"""A conversation is shown as exactly the tokens that the model reads, each with whose words it is."""

import pytest

import clearhead as ch
from clearhead.serve.explorer.routes.tasks import tokenize_chat

WORDS = ch.Tokenizer.bytes(("<|begin|>", "<|end|>"))
TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "You are an apple."},
    {"role": "user", "content": "  user 🍏 <|end|> é "},
]


def model(template=TEMPLATE):
    return ch.new(
        "tiny-decoder",
        tokenizer=WORDS,
        vocab_size=258,
        context_length=200,
        inference__chat_template=template,
    )


def said(shown, number):
    return WORDS.decode([token["id"] for token in shown["tokens"] if token["message"] == number])


def test_the_tokens_are_those_that_chat_reads():
    shown = tokenize_chat(model(), MESSAGES)
    assert WORDS.decode(shown["ids"]) == model().chat_prompt(MESSAGES)
    assert [token["id"] for token in shown["tokens"]] == shown["ids"]


def test_each_message_is_found_word_for_word_whatever_the_template_says_around_it():
    shown = tokenize_chat(model(), MESSAGES)
    assert shown["told"]
    assert said(shown, 0) == "You are an apple."
    assert said(shown, 1) == "user 🍏 <|end|> é"
    rest = WORDS.decode([token["id"] for token in shown["tokens"] if token["message"] is None])
    assert rest == "<|begin|>system\n<|end|>\n<|begin|>user\n<|end|>\n<|begin|>assistant\n"


def test_a_typed_special_token_is_somebodys_words_and_not_special():
    shown = tokenize_chat(model(), MESSAGES)
    assert all(not token["special"] for token in shown["tokens"] if token["message"] is not None)


def test_where_a_template_hides_who_said_what_nothing_is_claimed():
    shown = tokenize_chat(
        model("{{ messages[-1].content | upper }}{{ messages | length }}"), MESSAGES
    )
    assert not shown["told"]
    assert all(token["message"] is None for token in shown["tokens"])


def test_a_model_without_a_template_is_told_in_a_sentence():
    with pytest.raises(ch.ClearheadError, match="no chat template"):
        tokenize_chat(model(""), MESSAGES)
