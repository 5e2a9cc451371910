"""Chat templates are foreign programs: sandboxed, in a process with limits on time and memory."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clearhead.errors import ClearheadError
from clearhead.generate import chat_template_process, chat_template_worker
from clearhead.generate.chat_template_process import (
    ChatTemplatePool,
    ChatTemplateProcess,
    render_chat_template,
)
from serving import wait_until

HELLO = [{"role": "user", "content": "Hello"}]


def grow(start, step, count=99):
    """A template that computes a value again and again."""
    loop = f"{{% for i in range({count}) %}}{{% set n.x = {step} %}}{{% endfor %}}"
    return f"{{% set n = namespace({start}) %}}{loop}"


def run_python(code, **kwargs):
    """Run code in another process; its standard output."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, **kwargs
    ).stdout


@pytest.fixture
def process():
    process = ChatTemplateProcess()
    yield process
    process.close()


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'a' + 'b' ~ 1 ~ none }}", "ab1None"),
        ("{{ 7 % 2 * 3 + 1.5 }}", "4.5"),
        ("{{ messages | map(attribute='role') | join('+') }}", "user"),
        ("{{ '<é>' | tojson }}{{ [1] | tojson(indent=1) }}", '"<é>"[\n 1\n]'),
        ("{{ '{}-{:>3}'.format('a', 1) }}", "a-  1"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hello"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ strftime_now('%%') }}{{ add_generation_prompt }}", "%True"),
        ("{{ '\\ud800😀' }}", "\ud800😀"),
    ],
)
def test_templates_have_the_functions_of_transformers(template, text):
    assert render_chat_template(template, HELLO) == text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for %}", "Expected an expression"),
        ("{{ raise_exception('only users may speak.\nx') }}", r"only users may speak\.$"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ '{0.__class__.__mro__}'.format(1) | length }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ messages[0].content / 2 }}", "unsupported operand"),
        ("{% include 'x' %}", "no loader"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "recursion"),
        (
            "{% for i in range(9999) %}{% for j in range(9999) %}xxxxxxxxx{% endfor %}{% endfor %}",
            "more than 10,000,000 characters",
        ),
    ],
)
def test_templates_that_fail_are_reported(template, words):
    with pytest.raises(ClearheadError, match=words):
        render_chat_template(template, HELLO)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit memory")
@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 10**10 }}",
        "{{ '%09999999999d' % 5 }}",
        "{{ 'x' | center(4000000000) | length }}",
        "{{ (5).to_bytes(4000000000, 'big') | length }}",
        "{{ [1] | tojson(indent=4000000000) | length }}",
        grow("x='3'", "n.x ~ n.x"),
        grow("x=[3]", "n.x + n.x"),
        grow("x='33'", "n.x|replace('3', n.x)", 9),
    ],
)
def test_templates_cannot_fill_memory(template, process):
    with pytest.raises(ClearheadError, match="memory"):
        process.render(template, HELLO)
    assert process.render("{{ messages[0].content }}", HELLO) == "Hello"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{{ 10 ** 10 ** 9 }}{{ 10 ** (10 ** 9) }}",
        grow("x=3", "n.x * n.x"),
        "{{ lipsum(n=1000000) }}",
    ],
)
def test_slow_templates_are_stopped(template, process, monkeypatch):
    assert process.render("{{ messages[0].content }}", HELLO) == "Hello"
    monkeypatch.setattr(chat_template_process, "MAX_RENDER_SECONDS", 0.1)
    with pytest.raises(ClearheadError, match=r"longer than 0\.1 seconds"):
        process.render(template, HELLO)
    monkeypatch.undo()
    assert process.render("{{ messages[0].content }}", HELLO) == "Hello"


def test_threads_get_their_own_results(process):
    def render(index):
        return process.render("{{ messages[0].content }}", [{"content": f"{index} " * index}])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(render, range(200))) == [f"{i} " * i for i in range(200)]


def test_a_slow_template_does_not_delay_others():
    pool = ChatTemplatePool()
    first = pool.processes[-1]
    slow = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
    try:
        assert pool.render("one", HELLO) == "one"
        assert [process.process is None for process in pool.processes].count(False) == 1
        with ThreadPoolExecutor(1) as executor:
            late = executor.submit(pool.render, slow, HELLO)
            wait_until(first._lock.locked)
            assert pool.render("two", HELLO) == "two"
            assert not late.done()
            first.process.kill()
            assert isinstance(late.exception(), ClearheadError)
    finally:
        pool.close()


def test_a_killed_process_is_replaced(process):
    template = "{{ messages[0].content }}"
    for _ in range(2):
        assert process.render(template, HELLO) == "Hello"
        child = process.process
        child.kill()
        child.wait()


def test_an_interrupted_request_leaves_no_response_behind(process, monkeypatch):
    process.render("", HELLO)

    def interrupted(child, line):
        child.stdin.write(line + "\n")
        child.stdin.flush()
        raise KeyboardInterrupt

    monkeypatch.setattr(chat_template_process, "_exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.render("old", HELLO)
    monkeypatch.undo()
    assert process.render("new", HELLO) == "new"


def test_a_template_is_compiled_once():
    compiled = chat_template_worker.compile_template
    compiled.cache_clear()
    for text in ("Hello", "Bye"):
        assert chat_template_worker.render("{{ messages[0].content }}", [{"content": text}]) == text
    assert compiled.cache_info().misses == 1


def test_the_process_does_not_import_torch():
    code = """
        import sys
        import clearhead.generate.chat_template_process
        import clearhead.generate.chat_template_worker
        print("torch" in sys.modules)
    """
    assert run_python(code) == "False\n"


def test_the_process_does_not_run_code_in_the_working_folder(tmp_path, process, monkeypatch):
    (tmp_path / "jinja2.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert process.render("x", HELLO) == "x"
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_starts_its_own():
    code = """
        import os
        from clearhead.generate import chat_template_process
        render = chat_template_process.render_chat_template
        last = chat_template_process.RENDERER.processes[-1]
        render("x", [])
        if child := os.fork():
            os.waitpid(child, 0)
            print(last.process.pid, render("parent", []), flush=True)
        else:
            render("x", [])
            print(last.process.pid, render("child", []), flush=True)
    """
    child, parent = map(str.split, run_python(code).splitlines())
    assert (child[1], parent[1]) == ("child", "parent")
    assert child[0] != parent[0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "is_busy", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["idle", "busy"]
)
def test_the_process_ends_when_its_parent_is_killed(is_busy):
    code = f"""
        import os, signal, threading, time
        from clearhead.generate import chat_template_process
        chat_template_process.render_chat_template("x", [])
        print(chat_template_process.RENDERER.processes[-1].process.pid, flush=True)
        loop = "{{% for i in range(99999) %}}{{{{ range(99999) | list | length }}}}{{% endfor %}}"
        if {is_busy}:
            render = chat_template_process.render_chat_template
            threading.Thread(target=render, args=(loop, [])).start()
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with pytest.raises(subprocess.CalledProcessError) as error:
        run_python(code)
    process = Path("/proc", error.value.stdout.strip())
    wait_until(lambda: not process.exists() or "State:\tZ" in (process / "status").read_text())
