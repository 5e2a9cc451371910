"""The laws on models as people have them."""

import clearhead as ch
from clearhead.model.int8 import quantize


def test_a_model_in_int8_is_told_of_all_laws():
    model = ch.new("tiny-decoder")
    quantize(model.net)
    results = {result.name: result for result in ch.verify(model)}
    saved = results.pop("saved and loaded is identical")
    assert saved.difference is None
    assert "int8 is not saved" in str(saved)
    assert all(result.passed for result in results.values())
    assert sum(result.difference is not None for result in results.values()) >= 8
