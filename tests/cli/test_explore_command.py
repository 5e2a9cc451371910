"""`clearhead explore` without a browser: default models, access, ports, saved pages and errors."""

import json
import re
import socket
import stat
from html import unescape
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

import pytest
import torch
from fastapi.testclient import TestClient

import clearhead as ch
from clearhead.cli.explore import _default_models, _listen_on_free_port, _url_fragment
from clearhead.cli.main import app
from clearhead.errors import ClearheadError
from clearhead.serve import server
from clearhead.weights import bundled
from clearhead.word_vectors.io import VectorTable, write_vectors


def explore(*words):
    return app(["explore", *map(str, words)], standalone_mode=False)


@pytest.fixture
def folder(tmp_path):
    model = ch.new("tiny-decoder", tokenizer=ch.Tokenizer.bytes(), vocab_size=256)
    ch.save(model, tmp_path / "model")
    return tmp_path / "model"


def test_default_models_are_bundled_ones_without_word_vectors(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "BUNDLED_DIR", tmp_path / "none")
    with pytest.raises(ClearheadError, match="no models are bundled"):
        explore()
    table = VectorTable(["cat", "dog"], torch.eye(2).half())
    write_vectors(tmp_path / "bundled" / "words", table)
    folder.rename(tmp_path / "bundled" / "story")
    monkeypatch.setattr(bundled, "BUNDLED_DIR", tmp_path / "bundled")
    assert _default_models() == ["story"]


def test_word_vectors_are_listed_apart_from_models(tmp_path, monkeypatch, capsys):
    write_vectors(tmp_path / "words", VectorTable(["cat", "dog"], torch.eye(2).half()))
    (tmp_path / "story").mkdir()
    (tmp_path / "story" / "model.safetensors").touch()
    for name, kind in {"story": "decoder", "words": "vectors"}.items():
        card = {"title": name, "description": f"About {name}.", "architecture": kind}
        card |= {key: [] for key in ("usage", "datasets", "training_commands", "limitations")}
        (tmp_path / name / "card.json").write_text(json.dumps(card))
    monkeypatch.setattr(bundled, "BUNDLED_DIR", tmp_path)
    app(["models"], standalone_mode=False)
    models, word_vectors = capsys.readouterr().out.split("Word vectors")
    assert ("story" in models, "words" in models, "words" in word_vectors) == (True, False, True)
    monkeypatch.setattr(server, "run_server", lambda *args: pytest.fail("the server was started"))
    with pytest.raises(ClearheadError, match="word vectors, not a model"):
        explore("words", "--no-open", "--port", 0)


@pytest.mark.parametrize(
    ("host", "is_public"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)]
)
def test_all_addresses_need_the_printed_key(folder, monkeypatch, capsys, host, is_public):
    monkeypatch.delenv("CLEARHEAD_API_KEY", raising=False)
    statuses = []

    def run_server(app, registry, listener, load_all, on_ready):
        with listener:
            on_ready()
        client = TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)
        statuses.append((client.get("/").status_code, client.get("/?key=guess").status_code))
        address, query = re.search(r"http://(.*):\d+/(\S*)", capsys.readouterr().out).groups()
        assert address != "0.0.0.0" if is_public else address == host
        assert client.get(f"/{query}").status_code == 303
        assert client.get("/").status_code == 200

    monkeypatch.setattr(server, "run_server", run_server)
    explore(folder, "--host", host, "--port", 0, "--no-open")
    assert statuses == [(401, 401)]


def test_arguments_of_the_browser_do_not_contain_the_key(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLEARHEAD_API_KEY", "my <secret> key")
    monkeypatch.setenv("HOME", str(tmp_path))
    opened = []

    def open_browser(url):
        page = Path(url2pathname(urlsplit(url).path))
        opened.append(page)
        assert "secret" not in url
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        target = re.search(r'content="0; url=(.*)"', page.read_text())[1]
        assert unescape(target) in capsys.readouterr().out
        assert "<secret>" not in target

    def run_server(app, registry, listener, load_all, on_ready):
        with listener:
            on_ready()

    monkeypatch.setattr("webbrowser.open", open_browser)
    monkeypatch.setattr(server, "run_server", run_server)
    explore(folder, "--port", 0, "--text", "a & b")
    assert [page.exists() for page in opened] == [False]


def test_two_explorers_of_one_host_keep_their_keys(folder, monkeypatch, capsys):
    apps = []
    cookies = {}  # browsers share them between ports

    def run_server(app, registry, listener, load_all, on_ready):
        with listener:
            on_ready()
        query = re.search(r"http://.*:\d+/(\S*)", capsys.readouterr().out)[1]
        url = f"http://127.0.0.1:{8800 + len(apps)}"
        apps.append((app, url))
        opened = TestClient(app, base_url=url, cookies=cookies, follow_redirects=False)
        assert opened.get(f"/{query}").status_code == 303
        cookies.update(opened.cookies)
        for each, address in apps:
            client = TestClient(each, base_url=address, cookies=cookies)
            assert client.get("/").status_code == 200

    monkeypatch.setattr(server, "run_server", run_server)
    for _ in range(2):
        explore(folder, "--port", 0, "--no-open")


@pytest.mark.parametrize("name", ["my model", "mein mödel", "it's (new)!", "50%"])
def test_page_of_a_model_with_any_name_is_saved(folder, tmp_path, name):
    folder.rename(tmp_path / name)
    explore(tmp_path / name, "--output", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    key = quote(name, safe="!'()*")  # as encodeURIComponent
    assert f'"GET api/models/{key}"' in page
    assert f'"GET api/models/{key}/vocabulary"' in page


@pytest.mark.parametrize(("is_terminal", "has_code"), [(True, True), (False, False)])
def test_public_addresses_have_a_qr_code_in_terminals(
    folder, monkeypatch, capsys, is_terminal, has_code
):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)

    def run_server(app, registry, listener, load_all, on_ready):
        with listener:
            on_ready()

    monkeypatch.setattr(server, "run_server", run_server)
    explore(folder, "--host", "0.0.0.0", "--port", 0, "--no-open")
    assert ("▄▄▄▄▄" in capsys.readouterr().out) == has_code


def test_urls_name_an_address_in_the_network(monkeypatch):
    assert server.server_url("localhost", 80) == "http://localhost:80/"
    assert server.server_url("::1", 80) == "http://[::1]:80/"
    assert "0.0.0.0" not in server.server_url("0.0.0.0", 80)

    def no_network(self, address):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("socket.socket.connect", no_network)
    assert server.server_url("0.0.0.0", 80) == "http://127.0.0.1:80/"
    assert server.server_url("::", 80) == "http://[::1]:80/"


def test_output_must_be_html(folder, tmp_path):
    with pytest.raises(ClearheadError, match=r"must end in \.html"):
        explore(folder, "--output", tmp_path / "page.pdf")


def test_saved_page_contains_its_text(folder, tmp_path, capsys):
    explore(folder, "--output", tmp_path / "page.html", "--text", "a <b> c")
    page = (tmp_path / "page.html").read_text()
    assert "saved" in capsys.readouterr().out
    assert "a \\u003cb> c" in page
    assert "http://" not in page.split("<body>")[0].replace("http://www.w3.org", "")


def test_saved_page_of_images_needs_an_image(tmp_path):
    ch.save(ch.new("tiny-images"), tmp_path / "vision")
    with pytest.raises(ClearheadError, match="vision"):
        explore(tmp_path / "vision", "--output", tmp_path / "page.html")


def test_no_page_is_saved_for_unreadable_text(folder, tmp_path):
    with pytest.raises(ClearheadError, match="context"):
        explore(folder, "--output", tmp_path / "page.html", "--text", "a" * 500)
    assert not (tmp_path / "page.html").exists()


def test_next_free_port_is_used():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with _listen_on_free_port("127.0.0.1", port) as listener:
            assert port < listener.getsockname()[1] < port + 10


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [("127.0.0.1", -5, "-5"), ("127.0.0.1", 70000, "70000"), ("nowhere.invalid", 8800, "nowhere")],
)
def test_other_ports_are_tried_only_if_one_is_in_use(monkeypatch, host, port, message):
    bind_socket = server.bind_socket
    tried = []

    def bind(host, port):
        tried.append(port)
        return bind_socket(host, port)

    monkeypatch.setattr(server, "bind_socket", bind)
    with pytest.raises(ClearheadError, match=message):
        _listen_on_free_port(host, port)
    assert tried == [port]


@pytest.mark.parametrize(("port", "last_port"), [(8800, 8809), (65530, 65535)])
def test_used_ports_are_named_if_none_is_free(monkeypatch, port, last_port):
    def bind(host, port):
        raise server.PortInUseError("in use")

    monkeypatch.setattr(server, "bind_socket", bind)
    with pytest.raises(ClearheadError, match=f"ports {port} to {last_port}"):
        _listen_on_free_port("localhost", port)


def test_missing_model_is_named(folder):
    with pytest.raises(ClearheadError, match="nope"):
        explore(folder, "nope")


def test_url_fragment_is_escaped():
    assert _url_fragment("", "") == ""
    assert _url_fragment("a b&c", "") == "#text=a+b%26c"


def test_output_folder_is_checked_first():
    with pytest.raises(ClearheadError, match="no folder nowhere"):
        explore("no/such/model", "--output", "nowhere/page.html")
