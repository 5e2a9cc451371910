"""Reading sentence pairs from parallel texts, tables, TMX and PO files, and their errors."""

import json
import re

import pytest
from compressed_files import write
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data import pairs
from clearhead.data.pairs import read_pairs
from clearhead.data.readers import DataReport
from clearhead.errors import ClearheadError


def read(paths, on_error="fail", **options):
    """The pairs, and the lines of skipped ones by reason."""
    report = DataReport(on_error)
    found = [(p.source, p.target, _line(p.location)) for p in read_pairs(paths, report, **options)]
    assert report.num_read == len(found)
    return found, {
        reason: [_line(location) for location in locations]
        for reason, locations in report.locations.items()
    }


def _line(location):
    """The line number of a location, or the number of a TMX unit."""
    return int(re.search(r"(?:, unit |:)(\d+)", location)[1])


@pytest.mark.parametrize("packed", ["", ".gz", ".xz", ".zst"])
def test_parallel_texts_are_paired_by_line(tmp_path, packed):
    a = write(tmp_path / f"t.en{packed}", "\ufeffa dog\r\na\u2028cat\nlast")
    b = write(tmp_path / f"t.de{packed}", "ein Hund \nKatze\nletzte\n")
    want = [("a dog", "ein Hund", 1), ("a\u2028cat", "Katze", 2), ("last", "letzte", 3)]
    assert read([a, b]) == (want, {})


def test_parallel_texts_need_the_same_number_of_lines(tmp_path):
    paths = [write(tmp_path / "t.en", "a\nb\nc\n"), write(tmp_path / "t.de", "a\n")]
    for given_paths, words in (
        (paths, r"3 lines and .*t\.de has 1"),
        (paths[::-1], r"1 lines and .*t\.en has 3"),
    ):
        with pytest.raises(ClearheadError, match=words):
            read(given_paths, "skip")


def test_invalid_lines_fail_or_are_skipped_by_number(tmp_path):
    a = write(tmp_path / "t.en", b"one\n\nthree\nf\xffur\nsame\n")
    b = write(tmp_path / "t.de", b"eins\nzwei\n \nvier\nsame\n")
    why = {
        "the source is empty": [2],
        "the target is empty": [3],
        "the source is not valid UTF-8": [4],
    }
    assert read([a, b], "skip") == ([("one", "eins", 1), ("same", "same", 5)], why)
    with pytest.raises(ClearheadError, match=r"t\.en:2: the source is empty; .*on_error=skip"):
        read([a, b])


def test_pairs_from_two_columns_of_a_table(tmp_path):
    path = write(tmp_path / "t.tsv.xz", 'deu\t"Hund\tdog\ndeu\tKatze\ndeu\tMaus\tmouse\n')
    found, skipped = read([path], "skip", columns=("2", "1"))
    assert found == [("dog", '"Hund', 1), ("mouse", "Maus", 3)]
    assert list(skipped.values()) == [[2]]
    with pytest.raises(ClearheadError, match=r"t\.tsv\.xz:2"):
        read([path], columns=("2", "1"))
    assert read([write(tmp_path / "u.tsv", "a\tb\n")] * 2)[0] == [("a", "b", 1)] * 2


def test_pairs_from_fields_of_json_lines(tmp_path):
    good = {"source": "a", "target": "b", "en": "c"}
    lines = [
        json.dumps(good),
        "{",
        '{"source": "a"}',
        '{"source": "a", "target": 3}',
        r'{"source":"\ud800","target":"b"}',
    ]
    path = write(tmp_path / "t.jsonl", "\n".join(lines))
    found, skipped = read([path], "skip")
    assert found == [("a", "b", 1)]
    assert sorted(line for at in skipped.values() for line in at) == [2, 3, 4, 5]
    assert read([write(tmp_path / "u.jsonl", lines[0])], columns=("en", "target"))[0] == [
        ("c", "b", 1)
    ]
    for number, line in enumerate(lines[1:]):
        with pytest.raises(ClearheadError, match=rf"v{number}\.jsonl:1"):
            read([write(tmp_path / f"v{number}.jsonl", line)])


TMX = """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4"><header srclang="en"/><body>
<tu><prop type="x">no</prop>
  <tuv xml:lang="EN-us"><note>no</note>
    <seg>a &amp; <bpt i="1">{b}<sub>no</sub></bpt>big<ept i="1"/> <hi>dog</hi></seg></tuv>
  <tuv xml:lang="de"><seg>ein großer Hund</seg></tuv><tuv xml:lang="den"><seg>no</seg></tuv></tu>
<tu><tuv xml:lang="de"><seg>nur deutsch</seg></tuv></tu>
<tu><tuv lang="en_GB"><seg>cat</seg></tuv><tuv lang="de"><seg>Katze</seg></tuv></tu>
</body></tmx>"""


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16"])
def test_tmx_gives_the_text_of_two_languages(tmp_path, encoding):
    path = write(tmp_path / "t.tmx.gz", TMX.replace("UTF-8", encoding).encode(encoding))
    want = [("a & big dog", "ein großer Hund", 1), ("cat", "Katze", 3)]
    assert read([path], "skip", columns=("en", "de")) == (want, {"the source is empty": [2]})
    with pytest.raises(ClearheadError, match=r"t\.tmx\.gz, unit 2: the source is empty"):
        read([path], columns=("en", "de"))
    with pytest.raises(ClearheadError, match="choose two"):
        read([path])


def test_endless_tmx_units_are_refused_before_they_fill_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "MAX_RECORD_BYTES", 100_000)
    path = write(tmp_path / "t.tmx.gz", TMX.replace("<tu>", f"<tu><note>{'x' * 200_000}</note>", 1))
    with pytest.raises(ClearheadError, match="unit is longer than 100,000 bytes"):
        read([path], columns=("en", "de"))


def test_tmx_is_read_as_a_stream(tmp_path):
    unit = '<tu><tuv xml:lang="a"><seg>x</seg></tuv><tuv xml:lang="b"><seg>y</seg></tuv></tu>\n'
    path = write(tmp_path / "t.tmx", "<tmx>\n" + unit * 5000)  # never closed
    stream = read_pairs([path], DataReport(), columns=("a", "b"))
    assert [next(stream).location for _ in range(3)][-1] == f"{path}, unit 3"
    with pytest.raises(ClearheadError, match="is not valid XML: no element found: line 5002"):
        list(stream)


DOCTYPE = '<!DOCTYPE tmx SYSTEM "tmx14.dtd">'
ENTITIES = "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(9))
BILLION_LAUGHS = f'<!DOCTYPE tmx [<!ENTITY e0 "ha">{ENTITIES}]>'


def test_tmx_may_have_a_doctype(tmp_path):
    path = write(tmp_path / "t.tmx", TMX.replace("<tmx", f"{DOCTYPE}<tmx"))
    assert len(read([path], "skip", columns=("en", "de"))[0]) == 2


def test_xml_entities_are_not_expanded_to_gigabytes(tmp_path):
    text = f"{BILLION_LAUGHS}<tmx><tu><tuv><seg>&e9;</seg></tuv></tu></tmx>"
    with pytest.raises(ClearheadError, match="not valid XML"):
        read([write(tmp_path / "t.tmx", text)], "skip", columns=("a", "b"))


@pytest.mark.parametrize(
    "text", [b"<tmx>&b;</tmx>", b"<tmx>\xff</tmx>", b"<tmx><tu></tmx>", b'<!ENTITY a "b"><t/>', b""]
)
def test_invalid_xml_is_rejected(tmp_path, text):
    with pytest.raises(ClearheadError, match=r"t\.tmx is not valid XML: .*line"):
        read([write(tmp_path / "t.tmx", text)], "skip", columns=("a", "b"))


PO = r"""# header
#, fuzzy
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\n"

#: a.c:1
msgctxt "menu"
msgid "Open \"%s\"\n"
msgstr ""
"\xc3\226ffne\t"
"\"%s\"\\n"

#, c-format, fuzzy
#| msgid "old"
msgid "fuzzy"
msgstr "unscharf"

msgid "one"
msgid_plural "many"
msgstr[0] "eins"
msgstr[1] "viele"
msgid "todo"
msgstr ""
#~ msgid "gone"
#~ msgstr "weg"
msgid "close"
msgstr "zu"
"""


def test_po_gives_confirmed_translations(tmp_path):
    found, skipped = read([write(tmp_path / "t.po", PO)])
    assert found == [('Open "%s"', 'Öffne\t"%s"\\n', 7), ("close", "zu", 26)]
    reasons = {
        "the entry is fuzzy": [15],
        "the entry has plural forms": [18],
        "the entry is not translated": [22],
    }
    assert skipped == reasons


@pytest.mark.parametrize(
    ("entry", "line", "why"),
    [
        ('msgid "a"\nmsgstr b', 4, "invalid PO syntax"),
        ('msgid "a"\nmsgstr "b\\"', 4, "invalid PO syntax"),
        ('msgid "a"\nmsgstr "b"\nmsgstr "c"', 5, "invalid PO syntax"),
        ('# next\n"a"', 4, "invalid PO syntax"),
        ('msgid "a"', 3, "msgstr is missing"),
        ('msgid "a"\nmsgstr "\\xff"', 3, "the target is not valid UTF-8"),
        ('msgid " "\nmsgstr "b"', 3, "the source is empty"),
    ],
)
def test_invalid_po_entries_fail_or_are_skipped_by_line(tmp_path, entry, line, why):
    whole = 'msgid "x"\nmsgstr "y"\n'
    path = write(tmp_path / "t.po", f"{whole}{entry}\n{whole}")
    found, skipped = read([path], "skip")
    assert [pair[:2] for pair in found] == [("x", "y")] * 2
    assert [at for reason, at in skipped.items() if why in reason] == [[line]]
    with pytest.raises(ClearheadError, match=rf"t\.po:{line}: .*{why}"):
        read([path])


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), max_size=8))
def test_po_round_trip(tmp_path_factory, texts):
    def quoted(text):
        for plain, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
            text = text.replace(plain, escape)
        return f'"{text}"'

    texts = [(a, b) for a, b in texts if a.strip() and b.strip() and (a + b).isprintable()]
    content = "".join(f"msgid {quoted(a)}\nmsgstr {quoted(b)}\n\n" for a, b in texts)
    path = write(tmp_path_factory.mktemp("po") / "t.po", content)
    assert [pair[:2] for pair in read([path])[0]] == [(a.strip(), b.strip()) for a, b in texts]


@pytest.mark.parametrize(
    ("paths", "options", "words"),
    [
        ("t.tsv", {}, "must be a list"),
        (["none.en", "none.de"], {}, "none.en cannot be read: no such file"),
        (["none.po"], {}, "none.po cannot be read: no such file"),
        (["none.tmx"], {"columns": ("a", "b")}, "none.tmx cannot be read"),
        (["one.txt"], {}, "one.txt does not contain pairs"),
        (["a.en", "b.tsv"], {}, "a.en does not contain pairs"),
        (["a.en", "b.de", "c.fr"], {}, "two parallel texts, .* got 3 files: a.en b.de c.fr"),
        (["a.en", "b.de"], {"columns": ("0", "1")}, "has no columns"),
        (["a.po"], {"columns": ("0", "1")}, "has no columns"),
    ],
)
def test_invalid_paths_are_rejected(paths, options, words):
    with pytest.raises(ClearheadError, match=words):
        read(paths, "skip", **options)


@pytest.mark.parametrize("name", ["t.en.gz", "t.en.xz", "t.en.zst"])
def test_truncated_parallel_texts_are_rejected(tmp_path, name):
    path = tmp_path / name
    other = tmp_path / f"other.{name}"
    write(tmp_path / name, "".join(f"{i * i} lines\n" for i in range(9000)))
    path.write_bytes(path.read_bytes()[:-40])
    other.write_bytes(path.read_bytes())
    with pytest.raises(
        ClearheadError, match=r"cannot be read: (Compressed file ended|the file is truncated)"
    ):
        read([str(path), str(other)], "skip")


FRAGMENTS = [
    b"<tmx>",
    b"<tu>",
    b"<tuv lang='0'>",
    b"<seg>",
    b"</seg>",
    b"</tuv>",
    b"</tu>",
    b"</tmx>",
    b"<ph>",
    b"</ph>",
]
FRAGMENTS += [
    b'msgid "a"\n',
    b'msgstr "b"\n',
    b"#, fuzzy\n",
    b"msgid_plural",
    b'"\\',
    b"\t",
    b"\n",
    b"\xff",
    b"\0",
    b"{",
    b"[" * 9,
]


@given(
    st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=9)),
    st.sampled_from(["tsv", "jsonl", "tmx", "po", "en"]),
)
def test_any_bytes_are_read_or_rejected(tmp_path_factory, fragments, kind):
    path = str(write(tmp_path_factory.mktemp("any") / f"t.{kind}", b"".join(fragments)))
    options = {} if kind in ("po", "en") else {"columns": ("0", "1")}
    for on_error in ("skip", "fail"):
        found = []
        mistake = path
        try:
            found = read([path, path], on_error, **options)[0]
        except ClearheadError as error:
            mistake = str(error)
        assert path in mistake
        assert all(source.strip() and target.strip() for source, target, _ in found)


def test_source_and_target_must_be_different_files(tmp_path):
    (tmp_path / "a.en").write_text("one\n")
    (tmp_path / "b.en").symlink_to(tmp_path / "a.en")
    for second in ("a.en", "b.en"):
        with pytest.raises(ClearheadError, match=r"a\.en is both source and target"):
            list(read_pairs([tmp_path / "a.en", tmp_path / second], DataReport()))
