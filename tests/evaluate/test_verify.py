"""`verify` on quantized models."""

import clearhead as ch
from clearhead.model.int8 import quantize


def test_verify_int8_model():
    model = ch.new("tiny-decoder")
    quantize(model.net)
    results = {result.name: result for result in ch.verify(model)}
    saved = results.pop("saved and loaded model is identical")
    assert saved.difference is None
    assert "int8" in str(saved)
    assert all(result.passed for result in results.values())
    assert sum(result.difference is not None for result in results.values()) >= 8
