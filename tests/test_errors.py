"""Which exceptions become errors of the user's input, and which stay bugs."""

import struct

import pytest
import torch

from clearhead.errors import ClearheadError, check_int, check_type, reraise_as, suggest


class LibraryError(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("bad"),
        EOFError("bad"),
        struct.error("bad"),
        Exception("bad"),  # what Rust extensions raise
        LibraryError("bad"),
    ],
)
def test_errors_of_data_are_reraised(error):
    raises = pytest.raises(ClearheadError, match=r"a\.bin is invalid: .*bad")
    with raises as raised, reraise_as("a.bin is invalid", LibraryError):
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        AssertionError("bug"),
        NameError("bug"),
        TypeError("bug"),
        AttributeError("bug"),
        ZeroDivisionError("bug"),
        NotImplementedError("bug"),
        LibraryError("of another library"),
        KeyboardInterrupt(),
        ClearheadError("already worded"),
    ],
)
def test_other_errors_pass_through(error):
    with pytest.raises(type(error)) as raised, reraise_as("model.bin is invalid"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (0, (1,), "n must be a positive integer, got 0"),
        (-1, (), "n must be a non-negative integer, got -1"),
        (1, (2,), "n must be an integer of at least 2, got 1"),
        (9, (1, 5), "n must be an integer from 1 to 5, got 9"),
        (True, (), "got True"),
        (1.0, (), "got 1.0"),
        pytest.param(10**5000, (0, 5), "got …", id="huge"),
    ],
)
def test_check_int_names_the_value(value, bounds, message):
    with pytest.raises(ClearheadError, match=message):
        check_int("n", value, *bounds)


def test_check_type_names_the_type():
    check_type("a", str, "a text")
    with pytest.raises(ClearheadError, match="expected a text, got int"):
        check_type(5, str, "a text")


@pytest.mark.parametrize(
    ("name", "known", "suggestion"),
    [
        ("rotray", ["rotary", "learned"], "did you mean 'rotary'?"),
        ("gpt2", ["gpt2-124m", "bert"], "did you mean 'gpt2-124m'?"),
        ("xyz", ["a", "b"], "known: a, b"),
        ("xyz", [str(i) for i in range(100)], "there are 100 to choose from"),
    ],
)
def test_suggest_finds_similar_names(name, known, suggestion):
    assert suggest(name, known) == suggestion
