"""Where sentences end: a plain rule, for texts that are longer than a translator reads at once."""

import re

ENDS = re.compile(r"""([.!?…]+["'”’»)\]]*)(\s+)|([。！？]+[」』”’）]*)(\s*)|(\s*\n\s*)""")
OPENS = frozenset("\"'“‘„«‹([{¿¡")
ABBREVIATIONS = re.compile(
    r"(mrs?|ms|dr|prof|rev|gen|col|capt|lt|sgt|st|jr|sr|hon|inc|ltd|co|corp|vs|etc|cf|al|figs?|vol|nos?|pp|eds?|dept|est"
    r"|approx|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|e\.?g|i\.?e|a\.m|p\.m|u\.[sk]|d\.c|ph\.d"
    r"|bzw|ca|usw|evtl|ggf|nr|str|tel|vgl|z\.b|d\.h|u\.a|o\.ä|s\.o|z\.t|hr|fr|dipl|ing"
    r"|mm|mme|mlle|sra|srta|uds?|art|av|bd|chap|env|p\.ex|sig|dott)",
    re.IGNORECASE,
)


def sentences(text: str) -> list[tuple[str, str]]:
    """Each sentence with the white space after it; joined, they are the text. A line's end always ends one."""
    found, start = [], 0
    for end in ENDS.finditer(text):
        mark, gap = end[1] or end[3] or "", end[2] or end[4] or end[5] or ""
        if end[1] and "\n" not in gap and not _ends(text[start : end.start()], mark, text[end.end() : end.end() + 1]):
            continue
        found.append((text[start : end.start()] + mark, gap))
        start = end.end()
    return [*found, (text[start:], "")] if start < len(text) or not found else found


def _ends(before: str, mark: str, after: str) -> bool:
    """Whether a mark between white space and what went before ends a sentence: not after `Dr.`, `J.` or `3.`."""
    if after and not (after in OPENS or (after.isalnum() and not after.islower())):
        return False
    word = re.split(r"""[\s("'“„«\[]""", before)[-1]
    return mark != "." or not (len(word) == 1 or word.isdigit() or ABBREVIATIONS.fullmatch(word))
