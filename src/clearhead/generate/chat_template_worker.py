"""The process that renders chat templates, with a limit on its memory (L5.5).

It reads a request as JSON from each line of its input, and writes the response as a line of JSON:
`python -P -m clearhead.generate.chat_template_worker`.
"""

import json
import resource
import signal
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_MEMORY_BYTES = 2**30
MAX_ORPHAN_SECONDS = 10  # of a template after whoever asked for it was killed
MAX_PROMPT_CHARS = 10_000_000
MAX_ERROR_CHARS = 1_000


class GenerationTag(Extension):
    """{% generation %}, which only marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 - jinja's interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message: str) -> None:
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=32)
def compile_template(template: str) -> Template:
    """Compile a template with the options and functions that transformers gives it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment.from_string(template)


def render(template: str, messages: list[dict[str, str]]) -> str:
    prompt = ""
    for piece in compile_template(template).generate(
        messages=messages, tools=None, documents=None, add_generation_prompt=True
    ):
        prompt += piece
        if len(prompt) > MAX_PROMPT_CHARS:
            raise TemplateError(f"it writes more than {MAX_PROMPT_CHARS:,} characters")
    return prompt


def limit_memory() -> None:
    """Limit this process's memory, where the system can."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, hard)
    with suppress(ValueError, OSError):  # macOS
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def main() -> None:
    limit_memory()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        signal.alarm(MAX_ORPHAN_SECONDS)
        try:
            response = {"prompt": render(**json.loads(line))}
        except MemoryError:
            response = {"error": f"it needs more than {MAX_MEMORY_BYTES // 2**20:,} MiB of memory"}
        except Exception as error:  # a template is a program, which can raise anything
            response = {"error": (str(error).strip() or type(error).__name__)[:MAX_ERROR_CHARS]}
        signal.alarm(0)
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
