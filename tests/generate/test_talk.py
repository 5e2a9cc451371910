"""A conversation goes on as if it were read from the beginning each time, and what fails leaves it as it was."""

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


def test_what_is_said_is_what_chat_answers(model):
    talk = model.talk("Be brief.", max_tokens=12, temperature=0.9)
    messages = [{"role": "system", "content": "Be brief."}]
    for text in ("Hello", "And now?", "Bye"):
        messages.append({"role": "user", "content": text})
        expected = model.chat(messages, max_tokens=12, temperature=0.9).text
        assert talk.say(text) == expected
        messages.append({"role": "assistant", "content": expected})
    assert talk.messages == messages


def test_only_what_is_new_is_read(model):
    talk = model.talk(max_tokens=6)
    read = []
    inner = talk.engine.desk.read

    def watched(texts, row=0, common=0):
        read.append((len(texts[0]), common))
        return inner(texts, row, common)

    talk.engine.desk.read = watched
    talk.say("How are you today?")
    talk.say("Fine.")
    first, second = read
    assert first[1] == 0
    assert second[1] >= first[0]


def test_another_answer_takes_the_place_of_the_last(model):
    talk = model.talk(max_tokens=12)
    first = talk.say("Hello")
    second = talk.again()
    assert first != second
    assert [m["content"] for m in talk.messages] == ["Hello", second]


def test_what_fails_changes_nothing(model):
    talk = model.talk(max_tokens=6)
    talk.say("Hello")
    before = list(talk.messages)
    for wrong in (
        lambda: talk.again(temperature=-1),
        lambda: talk.say("x", top_p=3),
        lambda: talk.say("y" * 600),
    ):
        with pytest.raises(ch.ClearheadError):
            wrong()
        assert talk.messages == before
    with pytest.raises(ch.ClearheadError, match="no answer yet"):
        model.talk().again()


def test_one_answer_at_a_time_and_a_closed_one_stays(model):
    talk = model.talk(max_tokens=20)
    pieces = talk.stream("Hello")
    heard = next(pieces).text
    with pytest.raises(ch.ClearheadError, match="an answer is being written"):
        talk.say("And?")
    pieces.close()
    assert talk.messages == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": heard},
    ]
    talk.say("Go on.")
    assert len(talk.messages) == 4


def test_a_long_conversation_may_slide(model):
    talk = model.talk(max_tokens=30, overflow="slide")
    assert talk.say("y" * 600)
    with pytest.raises(ch.ClearheadError, match="leave no room in the context"):
        model.talk(max_tokens=30).say("y" * 600)


def test_models_that_do_not_write_do_not_talk():
    with pytest.raises(ch.ClearheadError, match="does not write text"):
        ch.new("tiny-encoder").chat_session()


def test_each_answer_has_noise_of_its_own():
    model = ch.new(
        "tiny-decoder",
        vocab_size=256,
        tokenizer=ch.Tokenizer.bytes(),
        inference__chat_template="{{ '' }}x",
    )
    said = [{"role": "user", "content": "Hello"}]
    first = model.chat(said, max_tokens=20, temperature=1.0, seed=3).text
    said += [{"role": "assistant", "content": first}, {"role": "user", "content": "Hello"}]
    assert (
        model.chat(said, max_tokens=20, temperature=1.0, seed=3).text != first
    )  # the model reads the same: x
    assert (
        model.chat(said, max_tokens=20, temperature=1.0, seed=3).text
        == model.chat(said, 20, 1.0, seed=3).text
    )


def test_any_seed_has_a_next_one_and_no_other_becomes_one(model):
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "a"},
    ]
    assert len(model.chat(said, max_tokens=5, seed=2**64 - 1).tokens) == 5
    for seed in (-1, 2**64):
        with pytest.raises(ch.ClearheadError, match=f"seed = {seed} must be a whole number"):
            model.chat(said, max_tokens=5, seed=seed)
