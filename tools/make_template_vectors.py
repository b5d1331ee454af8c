#!/usr/bin/env python3
"""Renders snippets and conversations with Jinja2, the way Transformers sets it up, as vectors for the template tests.

Usage: make_template_vectors.py [tests/data/template]

Writes snippets.json (small templates and their outputs) and conversations.json (random conversations under each of
styles/*.jinja). Cases that raise have "error" in place of "text": the message for raise_exception, true for others.
"""

import copy
import datetime
import json
import pathlib
import random
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2026, 3, 5, 7, 8, 9)


class Raised(jinja2.exceptions.TemplateError):
    """raise_exception of a template, told apart from errors of Jinja2."""


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller):
        return caller()


def make_environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise Raised(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment


ENVIRONMENT = make_environment()


def outcome(source, variables):
    try:
        # A copy, since the indent filter extends a list that it is given.
        return {"text": ENVIRONMENT.from_string(source).render(**copy.deepcopy(variables))}
    except Raised as error:
        return {"error": str(error)}
    except Exception:  # any error of Jinja2 or Python
        return {"error": True}


CONTEXT = {
    "s": "Hello, World", "u": "naïve – Ünïcödé 🙂 ok", "b": "  pad\n", "empty": "", "n": 7, "neg": -3, "big": 9007199254740993,
    "f": 2.5, "yes": True, "no": False, "nil": None, "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "e": [],
    "d": {"b": 1, "a": [1, 2], "C": {"x": "y"}}, "lines": "one\ntwo\n\nthree\r\nfour",
    "msgs": [{"role": "system", "content": "S"}, {"role": "user", "content": "U1", "n": 1},
             {"role": "assistant", "content": "A", "tool_calls": [{"function": {"name": "f", "arguments": {"k": "v"}}}]},
             {"role": "user", "content": "U2", "n": 2}],
    "think": "<think>\nwhy\n</think>\n\nanswer", "quote": "it's \"so\" \\ \t\x01 é", "html": "<a href='x'>&</a>",
}

# One snippet a line, in which \\n\\ stands for a line end and \\r\\ for a carriage return.
SNIPPETS = pathlib.Path(__file__).with_name("template_snippets.txt")


def read_snippets():
    for line in SNIPPETS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("##"):
            yield line.replace("\\n\\", "\n").replace("\\r\\", "\r")


ATOMS = ["s", "u", "b", "empty", "n", "neg", "f", "yes", "no", "nil", "l", "w", "e", "d", "missing", "msgs[1]", "msgs",
         "'abc'", "''", "0", "1", "-2", "3.0", "[1, 'x', none]", "{'k': 'v', 'z': 2}", "(1, 2)", "range(4)", "lines",
         "d.a", "d['C'].x", "l[0]", "w[-1]", "s[1:4]", "u[::-1]", "think", "quote", "true", "none", "1e3", "2 ** 5"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = ["trim", "upper", "lower", "title", "capitalize", "length", "string", "int", "float", "list", "first", "last",
           "join('-')", "tojson", "default('D')", "default('D', true)", "abs", "round", "sort", "reverse | list",
           "unique | list", "items | list", "sum", "min", "max", "replace('l', 'L')", "indent(2)", "dictsort",
           "select | list", "reject('none') | list", "map('string') | list", "batch(2) | list", "wordcount", "count",
           "tojson(indent=1)", "truncate(9)", "center(9)", "selectattr('role', 'eq', 'user') | list",
           "map(attribute='role') | join(',')"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence",
         "iterable", "callable", "true", "false", "odd", "even", "divisibleby 2", "eq(1)", "in [1, 'abc', none]", "lower",
         "upper", "gt 1", "sameas none", "not none", "not string"]
METHODS = ["strip()", "lstrip()", "rstrip()", "split()", "split('l')", "rsplit('l', 1)", "upper()", "title()", "swapcase()",
           "startswith('H')", "endswith('d')", "find('o')", "rfind('o')", "count('l')", "replace('o', '0', 1)",
           "splitlines()", "partition(',')", "rpartition('o')", "isdigit()", "isalpha()", "islower()", "istitle()",
           "zfill(15)", "center(16, '*')", "join(['a', 'b'])", "get('b')", "get('q', 5)", "keys() | list",
           "values() | list", "items() | list", "index(1)", "removeprefix('He')", "append(1)", "x", "role", "capitalize()"]
SLICES = ["[0]", "[-1]", "[1:]", "[:-1]", "[::2]", "[::-1]", "[2:1]", "[-3:-1]", "['b']", "[9]", "[:5:2]", "[5::-2]"]


def random_expression(rng, depth):
    if depth == 0:
        return rng.choice(ATOMS)
    inner = lambda: random_expression(rng, depth - 1)
    kind = rng.randrange(9)
    if kind <= 1:
        return f"({inner()} {rng.choice(BINARY)} {inner()})"
    if kind <= 3:
        return f"({inner()}) | {rng.choice(FILTERS)}"
    if kind == 4:
        return f"({inner()} is {rng.choice(TESTS)})"
    if kind == 5:
        return f"({inner()}).{rng.choice(METHODS)}"
    if kind == 6:
        # Not constant, since Jinja2's constant folding makes undefined values of slices that are errors otherwise.
        return f"({inner()} if yes else n){rng.choice(SLICES)}"
    if kind == 7:
        return f"({inner()} if {inner()} else {inner()})"
    return rng.choice([f"not {inner()}", f"-{inner()}", f"[{inner()}, {inner()}]", f"{{'q': {inner()}}}",
                       f"({inner()} < {inner()} <= {inner()})", f"{inner()} ~ {inner()} ~ {inner()}"])


PIECES = ["a", "b", " ", "  ", "\n", "\n", "\n\n", "\t", "{{ n }}", "{{- n }}", "{{ n -}}", "{{- n -}}", "{# c #}", "{#- c #}",
          "{# c -#}", "{#+ c +#}", "{% raw %} {{ r }} {% endraw %}", "{%- raw -%} r {%- endraw -%}", "{%+ set q = 1 %}",
          "{% set q = 2 -%}", "{%- set q = 3 +%}", "{% set q = 4 %}", "{% if yes %}", "{%- if no -%}", "{%+ if yes +%}",
          "{% else %}", "{%- else -%}", "{% endif %}", "{%- endif %}", "{% endif -%}", "{%+ endif +%}", "{{+ n }}", "\u3000", "{", "%"]


def random_layout(rng):
    """Text and tags in any order, mostly with as many ifs as endifs."""
    pieces, depth = [], 0
    for _ in range(rng.randint(3, 14)):
        piece = rng.choice(PIECES)
        if "if " in piece and "endif" not in piece:
            depth += 1
        elif "endif" in piece:
            if depth == 0:
                continue
            depth -= 1
        elif "else" in piece and depth == 0:
            continue
        pieces.append(piece)
    return "".join(pieces) + "{% endif %}" * depth


def random_layouts(rng, count):
    made = []
    while len(made) < count:
        template = random_layout(rng)
        result = outcome(template, CONTEXT)
        if "error" not in result:
            made.append({"template": template, **result})
    return made


def is_stable(text):
    """Whether an output is free of addresses and of the names of Python's own objects."""
    return not any(word in text for word in (" at 0x", "<built-in", "<bound", "<function", "Undefined", "<class"))


def random_snippets(rng, count):
    made, errors = [], 0
    while len(made) < count:
        template = "{{ " + random_expression(rng, rng.choice([1, 1, 2, 2, 3])) + " }}"
        result = outcome(template, CONTEXT)
        if len(str(result.get("text", ""))) > 200 or not is_stable(str(result.get("text", ""))):
            continue
        if "error" in result:
            errors += 1
            if errors * 4 > count:
                continue
        made.append({"template": template, **result})
    return made


WORDS = ["bank", "river", "Ünder", "naïve", "日本語", "🙂", "a < b && c", "it's", '"quoted"', "back\\slash", "tab\there",
         "<|im_end|>", "<|im_start|>system", "</think>", "<think>", "<tool_call>", "{{ 7 * 7 }}", "{% raw %}", "line\nbreak",
         "  spaced  ", "null", "42", "\r\n", "<tool_response>", "[INST]"]


def random_text(rng, low=0):
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, 6)))
    return rng.choice(["", "", " ", "\n"]) + text + rng.choice(["", "", " ", "\n\n"])


def random_value(rng, depth=0):
    kind = rng.randrange(8 if depth < 2 else 6)
    if kind <= 1:
        return random_text(rng)
    if kind == 2:
        return rng.choice([0, -1, 17, 2**40, 2**63, 2**64 - 1])
    if kind == 3:
        return rng.choice([0.5, 1.0, -2.75, 1e-7, 1e22, 3.141592653589793])
    if kind == 4:
        return rng.choice([True, False])
    if kind == 5:
        return None
    if kind == 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(["key", "items", "naïve", "x y"]) + str(i): random_value(rng, depth + 1) for i in range(rng.randrange(3))}


SCHEMAS = [
    {"type": "string", "description": "A word."}, {"type": "integer", "minimum": 0}, {"type": "number"}, {"type": "boolean"},
    {"type": "array", "items": {"type": "string"}}, {"type": "array"}, {"type": ["string", "null"]},
    {"type": "string", "enum": ["celsius", "fahrenheit"]}, {"oneOf": [{"type": "string"}, {"type": "number"}]},
    {"type": "object", "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
     "required": ["lat"]},
    {"type": "object"},
]


def random_tool(rng, index):
    names = rng.sample(["city", "unit", "days", "where", "query"], rng.randrange(4))
    function = {"name": rng.choice(["lookup", "get_weather", "search", "Zip"]) + str(index),
                "description": rng.choice(["Does things.", "Line one.\nLine two.", "Ünïcödé \"quoted\"", ""]),
                "parameters": {"type": "object", "properties": {name: rng.choice(SCHEMAS) for name in names},
                               "required": names[:1]}}
    if rng.random() < 0.2:
        function["strict"] = True
    return {"type": "function", "function": function}


def random_call(rng, index):
    call = {"type": "function", "function": {"name": rng.choice(["lookup", "search"]),
                                             "arguments": {f"arg{i}": random_value(rng) for i in range(rng.randrange(4))}}}
    if rng.random() < 0.5:
        call["id"] = f"call{index:05d}"
    return call


def random_content(rng):
    if rng.random() < 0.85:
        return random_text(rng)
    parts = []
    for _ in range(rng.randint(1, 3)):
        parts.append(rng.choice([{"type": "text", "text": random_text(rng)}, {"type": "image"},
                                 {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "video"}]))
    return parts


def random_messages(rng):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": random_text(rng)})
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": random_content(rng)})
        if rng.random() < 0.4:
            calls = rng.choice([1, 1, 2])
            messages.append({"role": "assistant", "content": rng.choice(["", "", random_text(rng), None]),
                             "tool_calls": [random_call(rng, i) for i in range(calls)]})
            for i in range(calls):
                messages.append({"role": "tool", "content": random_text(rng), "tool_call_id": f"call{i:05d}"})
        if rng.random() < 0.7:
            message = {"role": "assistant", "content": random_text(rng, 1)}
            if rng.random() < 0.5:
                message["reasoning_content"] = random_text(rng)
            messages.append(message)
    if rng.random() < 0.12:
        fault = rng.randrange(4)
        if fault == 0:
            messages = messages[1:]
        elif fault == 1:
            messages.insert(rng.randrange(len(messages) + 1), {"role": "system", "content": "late"})
        elif fault == 2:
            messages.append({"role": rng.choice(["developer", "tool"]), "content": "who"})
        else:
            messages.append({"role": "user", "content": rng.choice([5, {"type": "text"}, None])})
    return messages


def random_conversation(rng):
    extra = {}
    if rng.random() < 0.4:
        extra["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.5:
        extra["reasoning_effort"] = rng.choice(["xhigh", "medium", "low", "high", None])
    if rng.random() < 0.5:
        extra["preserve_thinking"] = rng.random() < 0.4
    if rng.random() < 0.2:
        extra["add_vision_id"] = True
    if rng.random() < 0.2:
        extra["default_system"] = "Be kind."
    case = {"messages": random_messages(rng), "add_generation_prompt": rng.random() < 0.5, "extra": extra}
    if rng.random() < 0.4:
        case["tools"] = [random_tool(rng, i) for i in range(rng.randint(1, 3))]
    return case


def render_conversation(source, case):
    return outcome(source, {"messages": case["messages"], "tools": case.get("tools"), "documents": None,
                            "add_generation_prompt": case["add_generation_prompt"], "bos_token": "<s>", "eos_token": "</s>",
                            **case["extra"]})


def conversations(folder, rng):
    cases = []
    for path in sorted((folder / "styles").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        count, errors = (48, 0) if path.stem == "demo" else (12, 0)
        while count > 0:
            case = random_conversation(rng)
            result = render_conversation(source, case)
            if result.get("error") is not None:
                if errors >= (12 if path.stem == "demo" else 4):
                    continue
                errors += 1
            cases.append({"style": path.stem, **case, **result})
            count -= 1
    return cases


def write(path, cases):
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    path.write_text("[\n" + lines + "\n]\n", encoding="utf-8")
    print(f"{path}: {len(cases)} cases, {path.stat().st_size} bytes")


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/data/template")
    snippets = []
    for template in read_snippets():
        result = outcome(template, CONTEXT)
        assert is_stable(str(result.get("text", ""))), template
        snippets.append({"template": template, **result})
    snippets += random_snippets(random.Random(20260305), 400)
    snippets += random_layouts(random.Random(11), 150)
    write(folder / "snippets.json", [{"context": CONTEXT}] + snippets)
    write(folder / "conversations.json", conversations(folder, random.Random(7)))


if __name__ == "__main__":
    main()
