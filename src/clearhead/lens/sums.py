"""Sums of words, as people write them: `king - man + woman`."""

from clearhead.errors import ClearheadError

SIGNS = {"+": 1, "-": -1, "−": -1}
OTHERS = ("*", "×", "·", "/", "÷", "^", "=")  # signs of sums that are none
Terms = list[tuple[int, str]]  # a sign and a word each


def terms(written: str) -> Terms:
    """The words with their signs. + and - stand apart from words; words that follow each other are one name."""
    found: Terms = []
    sign, name = 1, list[str]()
    for number, part in enumerate(written.split()):
        if name and part in OTHERS:
            raise ClearheadError(f"{written!r} has {part!r} after a word; words are added (+) and taken away (-) only.")
        if part not in SIGNS:
            name.append(part)
            continue
        if name:
            found.append((sign, " ".join(name)))
        elif number:
            raise ClearheadError(f"{written!r} has no word before {part!r}; write it as king - man + woman.")
        sign, name = SIGNS[part], []
    if not name:
        raise ClearheadError(f"{written!r} ends without a word; write it as king - man + woman.")
    return [*found, (sign, " ".join(name))]
