"""Chat sessions equal chat without a cache, and failures leave them unchanged."""

import pytest

import clearhead as ch

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def model():
    use = {"inference__chat_template": TEMPLATE, "inference__eos_tokens": [10]}
    return ch.new(
        "tiny-llama",
        vocab_size=256,
        context_length=512,
        tokenizer=ch.Tokenizer.bytes(),
        seed=5,
        **use,
    )


def test_session_equals_chat(model):
    session = model.chat_session("Be brief.", max_tokens=12, temperature=0.9)
    messages = [{"role": "system", "content": "Be brief."}]
    for text in ("Hello", "And now?", "Bye"):
        messages.append({"role": "user", "content": text})
        expected = model.chat(messages, max_tokens=12, temperature=0.9)
        answer = session.send(text)
        assert (answer.text, answer.tokens) == (expected.text, expected.tokens)
        assert answer.finish_reason == expected.finish_reason
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        messages.append({"role": "assistant", "content": expected.text})
    assert session.messages == messages


def test_session_prefills_new_tokens_only(model):
    session = model.chat_session(max_tokens=6)
    read = []
    inner = session._engine.runner.prefill

    def spy(texts, row=0, num_cached=0):
        read.append((len(texts[0]), num_cached))
        return inner(texts, row, num_cached)

    session._engine.runner.prefill = spy
    session.send("How are you today?")
    session.send("Fine.")
    first, second = read
    assert first[1] == 0
    assert second[1] >= first[0]


def test_regenerate_replaces_the_last_answer(model):
    session = model.chat_session(max_tokens=12)
    first = session.send("Hello").text
    second = session.regenerate().text
    assert first != second
    assert [m["content"] for m in session.messages] == ["Hello", second]


def test_failed_messages_change_nothing(model):
    session = model.chat_session(max_tokens=6)
    session.send("Hello")
    before = list(session.messages)
    for wrong in (
        lambda: session.regenerate(temperature=-1),
        lambda: session.send("x", top_p=3),
        lambda: session.send("x", max_new_tokens=3),
        lambda: session.send("y" * 600),
    ):
        with pytest.raises(ch.ClearheadError):
            wrong()
        assert session.messages == before
    with pytest.raises(ch.ClearheadError, match="no answer"):
        model.chat_session().regenerate()


def test_one_stream_at_a_time_and_a_closed_one_keeps_its_text(model):
    session = model.chat_session(max_tokens=20)
    pieces = session.stream("Hello")
    answer = next(pieces).text
    with pytest.raises(ch.ClearheadError, match="still streaming"):
        session.send("And?")
    pieces.close()
    assert session.messages == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": answer},
    ]
    session.send("Go on.")
    assert len(session.messages) == 4


def test_long_conversations_may_slide(model):
    session = model.chat_session(max_tokens=30, overflow="slide")
    assert session.send("y" * 600).text
    with pytest.raises(ch.ClearheadError, match="fill the context"):
        model.chat_session(max_tokens=30).send("y" * 600)


def test_sessions_need_a_decoder():
    with pytest.raises(ch.ClearheadError, match="not a language model"):
        ch.new("tiny-encoder").chat_session()


def test_each_turn_has_its_own_seed():
    model = ch.new(
        "tiny-decoder",
        vocab_size=256,
        tokenizer=ch.Tokenizer.bytes(),
        inference__chat_template="{{ '' }}x",
    )
    messages = [{"role": "user", "content": "Hello"}]
    first = model.chat(messages, max_tokens=20, temperature=1.0, seed=3).text
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "Hello"}]
    assert (
        model.chat(messages, max_tokens=20, temperature=1.0, seed=3).text != first
    )  # the model reads the same: x
    assert (
        model.chat(messages, max_tokens=20, temperature=1.0, seed=3).text
        == model.chat(messages, 20, temperature=1.0, seed=3).text
    )


def test_turn_seeds_wrap_around(model):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "a"},
    ]
    assert len(model.chat(messages, max_tokens=5, seed=2**64 - 1).tokens) == 5
    for seed in (-1, 2**64):
        with pytest.raises(ch.ClearheadError, match="seed must be an integer"):
            model.chat(messages, max_tokens=5, seed=seed)


def test_interleaved_streams_are_refused(model):
    session = model.chat_session(max_tokens=10)
    first = session.stream("x")
    second = session.stream("y")  # neither has started
    next(first)
    with pytest.raises(ch.ClearheadError, match="still streaming"):
        next(second)
    answer = "".join(chunk.text for chunk in first)
    assert session.messages[0]["content"] == "x"
    assert session.messages[-1]["content"].endswith(answer)


def test_max_tokens_none_means_the_default(model):
    assert model.chat_session(max_tokens=5).send("x", max_tokens=None).text


def test_regenerate_does_not_change_the_seed_of_the_session(model):
    first = model.chat_session(max_tokens=12, seed=3)
    second = model.chat_session(max_tokens=12, seed=3)
    for session in (first, second):
        session.send("Hello")
    answers = {first.regenerate().text, first.regenerate().text, first.messages[-1]["content"]}
    assert len(answers) == 2
    assert first.config == second.config
    first.messages = list(second.messages)
    assert first.send("And?", temperature=0).text == second.send("And?", temperature=0).text


def test_chat_stream_joins_to_chat(model):
    messages = [{"role": "user", "content": "Hello"}]
    chunks = model.chat_stream(messages, max_tokens=9, seed=2)
    assert "".join(chunk.text for chunk in chunks) == model.chat(messages, 9, seed=2).text
