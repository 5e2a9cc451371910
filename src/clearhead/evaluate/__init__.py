"""What a model can do, and whether its laws hold. The module itself can be called, and tells how good a model is:

    found = clearhead.evaluate(model, "test.txt")
    found.value("bits per byte"), found["loss"].low, found["loss"].high
    print(found)

The second argument is a file or a list of files of the kind that the model is trained on. Also stride=64 (of a
language model on long texts), beam=5 (of a translator), seed=0, and columns as in training: field="text", second="",
label="label", sides=("en", "de"), broken="skip". Beside `figures`, `table()` and `json()` there is `each`: what came of
every document, sentence or row; and of classes `views`: confusion, classes, reliability. docs/evaluating.md tells more.
"""

from clearhead.called import make_callable

make_callable(__name__, "clearhead.evaluate.evaluate")
