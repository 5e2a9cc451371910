"""Where chat templates are run: they come with models of strangers, and may write, but make nothing huge."""

import json
from collections.abc import Iterable, Sized
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import ImmutableSandboxedEnvironment

LONGEST = 10_000_000  # characters of a conversation, and of every text on the way to it
LARGEST = 2**63
WIDEST = 32  # characters that each line of JSON is moved by
GROWING = {"center", "expandtabs", "format", "format_map", "ljust", "rjust", "to_bytes", "translate", "zfill"}
UNNEEDED = ("batch", "center", "format", "indent", "pprint", "round", "slice", "sum", "urlize", "wordwrap", "xmlattr")


class Joining(CodeGenerator):
    """Lets the sandbox see a ~ b, which is no operator to it."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - the name is jinja's
        self.write("environment.join('', (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox of jinja, in which nothing can be added, multiplied or filled up into something huge."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = Joining

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.filters = {name: work for name, work in self.filters.items() if name not in UNNEEDED}
        self.filters |= {"join": self._joined, "replace": self.replace, "tojson": _json}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" or not (numbers or operator == "+"):
            raise TemplateError(f"{left!r:.20} {operator} {right!r:.20} is no work for a template")
        if not numbers and isinstance(left, Sized) and isinstance(right, Sized):
            _check(len(left) + len(right))
        found = self.binop_table[operator](left, right)
        if numbers and not abs(found) <= LARGEST:
            raise TemplateError(f"{operator} gives a number beyond {LARGEST}, which is no work for a template")
        return found

    def wrap_str_format(self, value: Any) -> None:
        """No text is filled in; jinja would give a method of its own before it asks the next."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in GROWING and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Any, obj: Any, /, *given: Any, **named: Any) -> Any:
        """What a template calls; texts are joined and replaced by what looks at their size before."""
        name, text = getattr(obj, "__name__", ""), getattr(obj, "__self__", None)
        if isinstance(text, str) and name in ("join", "replace"):
            return getattr(self, name)(text, *given)  # no names: those in `named` are jinja's own
        return super().call(context, obj, *given, **named)

    def join(self, between: str, parts: Iterable[Any]) -> str:
        texts = [str(part) for part in parts]
        _check(sum(map(len, texts)) + len(between) * len(texts))
        return between.join(texts)

    def _joined(self, parts: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        return self.join(str(d), (part if attribute is None else self.getitem(part, attribute) for part in parts))

    def replace(self, text: Any, old: str, new: str, count: int | None = None) -> str:
        text, times = str(text), -1 if count is None else count
        _check(len(text) + text.count(old) * len(new))
        return text.replace(old, new, times)


def _check(size: int) -> None:
    if size > LONGEST:
        raise TemplateError(f"a text of more than {LONGEST:,} characters is no work for a template")


def _json(value: Any, **options: Any) -> str:
    if len(str(options)) > 200 or (options.get("indent") or 0) > WIDEST:
        raise TemplateError(f"JSON is moved by at most {WIDEST} characters")
    return json.dumps(value, **{"ensure_ascii": False, **options})
