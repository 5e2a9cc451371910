"""`clearhead explore` before any page is opened: what it says when something is wrong, and where it listens."""

import re
import socket

import pytest
from fastapi.testclient import TestClient

import clearhead as ch
from clearhead.cli.explore import _default_models, _listen_on_free_port, _url_fragment
from clearhead.cli.main import app
from clearhead.errors import ClearheadError
from clearhead.serve import server
from clearhead.serve.server import bind_socket
from clearhead.weights import model_cards


def explore(*words):
    return app(["explore", *map(str, words)], standalone_mode=False)


@pytest.fixture
def folder(tmp_path):
    ch.save(
        ch.new("tiny-decoder", tokenizer=ch.Tokenizer.bytes(), vocab_size=256), tmp_path / "model"
    )
    return tmp_path / "model"


def test_without_a_model_it_takes_those_that_came_along(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(model_cards, "ROOT", tmp_path / "none")
    with pytest.raises(ClearheadError, match="clearhead explore PATH"):
        explore()
    vectors = tmp_path / "bundled" / "words"
    vectors.mkdir(parents=True)
    (vectors / "words.safetensors").touch()  # no model, so no page of it
    folder.rename(tmp_path / "bundled" / "story")
    monkeypatch.setattr(model_cards, "ROOT", tmp_path / "bundled")
    assert _default_models() == ["story"]


@pytest.mark.parametrize(
    ("host", "key"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)]
)
def test_others_get_in_with_the_key_of_the_printed_address_only(
    folder, monkeypatch, capsys, host, key
):
    monkeypatch.delenv("CLEARHEAD_API_KEY", raising=False)
    told = []

    def run(app, shelf, at, all_at_once, ready):
        with at:
            ready()
        client = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)
        told.append((client.get("/").status_code, client.get("/?key=guess").status_code))
        there = re.search(rf"http://{re.escape(host)}:\d+/(\S*)", capsys.readouterr().out)[1]
        assert client.get(f"/{there}").status_code == (303 if key else 200)

    monkeypatch.setattr(server, "run", run)
    explore(folder, "--host", host, "--port", 0, "--no-open")
    assert told == [(401, 401) if key else (200, 200)]


@pytest.mark.parametrize("option", ["--output", "--output"])
def test_a_page_is_saved_as_html_only(folder, tmp_path, option):
    with pytest.raises(ClearheadError, match=r"must end in \.html"):
        explore(folder, option, tmp_path / "page.pdf")


def test_the_saved_page_holds_its_text(folder, tmp_path, capsys):
    explore(folder, "--output", tmp_path / "page.html", "--text", "a <b> c")
    written = (tmp_path / "page.html").read_text()
    assert "saved" in capsys.readouterr().out
    assert '"text": "a \\u003cb> c"' in written or "a \\u003cb> c" in written
    assert "http://" not in written.split("<body>")[0].replace("http://www.w3.org", "")


def test_a_page_of_pictures_needs_one(tmp_path):
    ch.save(ch.new("tiny-images"), tmp_path / "eye")
    with pytest.raises(
        ClearheadError, match="no example came with eye; open the page, give it one"
    ):
        explore(tmp_path / "eye", "--output", tmp_path / "page.html")


def test_what_a_model_cannot_read_is_told_before_a_page_is_written(folder, tmp_path):
    with pytest.raises(ClearheadError, match="context"):
        explore(folder, "--output", tmp_path / "page.html", "--text", "a" * 500)
    assert not (tmp_path / "page.html").exists()


def test_the_next_port_is_taken_where_one_is_not_free():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with _listen_on_free_port("127.0.0.1", port, bind_socket) as found:
            assert port < found.getsockname()[1] < port + 10


@pytest.mark.parametrize(
    ("host", "port", "sentence"),
    [
        ("127.0.0.1", -5, "--port -5 is no port"),
        ("127.0.0.1", 70000, "--port 70000 is no port"),
        ("nowhere.invalid", 8800, "nowhere.invalid:8800 cannot be served on"),
    ],
)
def test_another_port_is_tried_only_where_one_is_taken(host, port, sentence):
    tried = []

    def once(host, port):
        tried.append(port)
        return bind_socket(host, port)

    with pytest.raises(ClearheadError, match=sentence):
        _listen_on_free_port(host, port, once)
    assert tried == [port]


def test_where_all_of_ten_ports_are_taken_that_is_said():
    def full(host, port):
        raise server.PortInUseError("taken")

    with pytest.raises(ClearheadError, match="port 8800 and the 9 after it are taken on localhost"):
        _listen_on_free_port("localhost", 8800, full)
    with pytest.raises(ClearheadError, match="port 65530 and the 5 after it"):
        _listen_on_free_port("localhost", 65530, full)


def test_a_model_that_is_nowhere_is_told_once(folder):
    with pytest.raises(
        ClearheadError, match=r"^nope is no clearhead model: there is no such folder or file"
    ):
        explore(folder, "nope")


def test_a_text_goes_into_the_address():
    assert _url_fragment("", "") == ""
    assert _url_fragment("a b&c", "") == "#text=a+b%26c"


def test_a_page_that_has_no_folder_is_told_before_any_work():
    with pytest.raises(
        ClearheadError, match=r"no folder nowhere to save page\.html in; make it first"
    ):
        explore("no/such/model", "--output", "nowhere/page.html")
