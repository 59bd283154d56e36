"""Writes tests/data/text/template_corpus.json: 30 conversations through every template of
tests/data/text/templates and SmolLM2's own, rendered by transformers.

Run: python tests/generate/template_corpus.py models/SmolLM2-135M-Instruct.Q4_1.gguf
Versions used: transformers 5.24.0, jinja2 3.1.6, gguf 0.19.0; no random numbers.

Real ones: python tests/generate/template_corpus.py --package llama_cpp_python-0.3.16.tar.gz corpus.json writes the
same for the 25 templates of models that this package of PyPI carries (pip download --no-deps --no-binary :all:).
Their licences differ, so they are not kept here: run HEXPORT_TEMPLATE_CORPUS=corpus.json text_golden_test on the
same day (some print the date).

The templates are written for this test with the constructs of the chat templates of the model families they
are named after; `language` collects corners of Jinja2. Messages pass through transformers' own
normalization (`_normalize_chat_messages`); on top of it, as hexport does, missing content is "" and a list
of text parts is joined for a template that does not walk over lists.

A rendering is {"text"}, or {"sha256", "bytes"} where it is long, or {"raised": text} of raise_exception, or
{"error": type} where Python itself refuses.
"""
import hashlib
import json
import pathlib
import re
import sys
import tarfile

import gguf
import jinja2
from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "data" / "text"
LONGEST_TEXT = 1200  # bytes of a rendering that is stored whole

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Météo <now> & \"later\" — it's free",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": " Name of the city "},
        "days": {"type": "integer", "default": 3},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "hours": {"type": "array", "items": {"type": "number"}},
        "exact": {"type": "boolean"},
        "either": {"type": ["string", "null"]},
        "nested": {"type": "object", "properties": {"deep": {"type": "array", "items": {"type": "object"}}}}}},
    "return": {"type": "string", "description": "A text"}}}
CLOCK = {"type": "function", "function": {"name": "now", "description": "The time",
         "parameters": {"type": "object", "properties": {}}}}
ARGUMENTS = {"city": "Zürich", "days": 2, "exact": True, "ratio": 0.5, "none": None, "list": [1, "b", {"c": 1e-7}]}


def call(name, arguments, identity="abcdef123"):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def tool(content, **more):
    return {"role": "tool", "content": content, "name": "get_weather", "tool_call_id": "abcdef123", **more}


THOUGHT = "<think>\nLet me see: 2 < 3.\n</think>\n\n"
PROMPT = {"add_generation_prompt": True}
TOOLS = {"extra": {"tools": [WEATHER, CLOCK]}}
CONVERSATIONS = [
    # C09: no system message, an empty one, a late one.
    {"messages": [user("Hello")]},
    {"messages": [user("Hello")], **PROMPT},
    {"messages": [system(""), user("Hello")], **PROMPT},
    {"messages": [system("  Be brief.\n"), user("Hi"), assistant("Hi!"), user("Bye")], **PROMPT},
    {"messages": [user("Hi"), system("Late."), user("Go")], **PROMPT},
    {"messages": [system("One."), system("Two."), user("Hi")], **PROMPT},
    # Text that looks like markup, Unicode, white space.
    {"messages": [user("{{ 7 * 7 }}{% if x %}<|im_end|></s>[INST]")], **PROMPT},
    {"messages": [user("日本語 😀 e\u0301 \u200b\ufeff ｜ ▁"), assistant("  spaced\t\n\n"), user("\n\n lead")], **PROMPT},
    {"messages": [user(""), assistant(""), user("\\n is not \n")], **PROMPT},
    {"messages": [user("a\r\nb\x0bc\u2028d"), assistant("\"quoted\" 'text' \\ /")]},
    # Several turns, with and without the last answer.
    {"messages": [user("1"), assistant("one"), user("2"), assistant("two"), user("3"), assistant("three")]},
    {"messages": [user(str(i)) if i % 2 == 0 else assistant(str(i)) for i in range(21)], **PROMPT},
    {"messages": [user("a"), user("b")], **PROMPT},
    {"messages": [assistant("I speak first."), user("ok")], **PROMPT},
    # C02: content null or absent; null fields.
    {"messages": [user("W?"), assistant(None, tool_calls=[call("get_weather", ARGUMENTS)]), tool("21 °C")],
     **PROMPT, **TOOLS},
    {"messages": [user("W?"), {"role": "assistant", "tool_calls": [call("now", {})]}, tool("12:00"),
                  assistant("Noon.", tool_calls=None)], **TOOLS},
    # C03: content as parts.
    {"messages": [user([{"type": "text", "text": "hi"}]), assistant([{"type": "text", "text": "a"},
                                                                  {"type": "text", "text": "b"}]), user("c")],
     **PROMPT},
    # Tools: unused, called with a dict, with a JSON string, several calls and results in a row.
    {"messages": [system("Use tools."), user("W?")], **PROMPT, **TOOLS},
    {"messages": [user("W?")], **PROMPT, "extra": {"tools": [CLOCK]}},
    {"messages": [user("W?")], **PROMPT, "extra": {"tools": []}},
    {"messages": [user("W?"), assistant("Looking.", tool_calls=[call("get_weather", json.dumps(ARGUMENTS))]),
                  tool('{"t": 21}'), assistant("21.")], **TOOLS},
    {"messages": [user("W?"), assistant("", tool_calls=[call("get_weather", {"city": "Bern"}),
                                                       call("now", {}, "zyxwvu987")]),
                  tool("3 °C"), tool("noon", tool_call_id="zyxwvu987"), assistant("3 °C at noon."), user("Thanks")],
     **PROMPT, **TOOLS},
    # C06: old reasoning; C05: the switch.
    {"messages": [user("1+1"), assistant(THOUGHT + "2"), user("2+2"), assistant(THOUGHT + "4"), user("3+3")],
     **PROMPT},
    {"messages": [user("1+1"), assistant("2", reasoning_content="easy"), user("2+2"),
                  assistant("4", reasoning_content="\nharder\n")]},
    {"messages": [user("W?"), assistant("", reasoning_content="must look",
                                       tool_calls=[call("get_weather", {"city": "Bern"})]), tool("3 °C")],
     **PROMPT, **TOOLS},
    {"messages": [user("think")], **PROMPT, "extra": {"enable_thinking": False}},
    {"messages": [user("think")], **PROMPT, "extra": {"enable_thinking": True}},
    {"messages": [system("/no_think"), user("a"), assistant("<think>\n\n</think>\n\nb"), user("c")], **PROMPT,
     "extra": {"enable_thinking": 0}},
    # Other variables; an unknown role.
    {"messages": [user("d")], **PROMPT, "extra": {
        "documents": [{"title": "T", "text": "Text of T"}, {"title": "U", "text": "<U>"}], "controls": {
            "length": "long", "citations": True}, "date_string": "1 Jan 2030", "reasoning_effort": "low"}},
    {"messages": [{"role": "narrator", "content": "Once"}, user("go")], **PROMPT},
]


def walks_parts(template):
    """As ChatTemplate decides it: one message of one text part comes out as its text, not as a list."""
    text = "hexport part probe"
    try:
        rendered = render_jinja_template([[user([{"type": "text", "text": text}])]], chat_template=template,
                                         bos_token="<s>", eos_token="</s>")[0][0]
    except Exception:
        return False
    return text in rendered and "'type'" not in rendered and '"type"' not in rendered


def prepare(messages, keep_parts):
    filled = []
    for message in messages:
        content = "" if message.get("content") is None else message["content"]
        if isinstance(content, list) and not keep_parts:
            content = "".join(part["text"] for part in content)
        filled.append({**message, "content": content})  # where it stands, or at the end
    return _normalize_chat_messages(filled)


def render(template, conversation):
    variables = dict(conversation.get("extra", {}))
    messages = prepare(conversation["messages"], walks_parts(template))
    try:
        text = render_jinja_template(
            [messages], chat_template=template, tools=variables.pop("tools", None),
            documents=variables.pop("documents", None), bos_token="<s>", eos_token="</s>",
            add_generation_prompt=conversation.get("add_generation_prompt", False), **variables)[0][0]
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:  # raise_exception
            return {"raised": str(error)}
        return {"error": type(error).__name__}
    except Exception as error:
        return {"error": type(error).__name__}
    data = text.encode("utf-8")
    if len(data) <= LONGEST_TEXT:
        return {"text": text}
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


# More single expressions, each a template of its own; `people`, `one` and `messages` are set. Left out is what is
# known to differ: tuples print as lists, and minijinja folds operators between constants by its own rules
# (`7 // -2`), which is why `one` is a variable.
EXPRESSIONS = """{{ none.x }}|{{ none.x is defined }}
{{ missing.x }}
{{ missing['x'] }}
{{ missing + 'x' }}
{{ missing ~ 'x' }}
{{ missing | length }}
{{ missing | upper }}
{{ missing | join }}
{{ missing | list }}
{{ missing | trim }}
{{ missing() }}
{{ missing < 1 }}
{{ -missing }}
{{ none | length }}
{{ none + 1 }}
{{ none < one }}
{{ 'a' < one }}
{{ [1] < [2] }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ [1] + 'a' }}
{{ {} + {} }}
{{ 'x' in 5 }}
{{ one in 'x1' }}
{{ people[0].nope in 'none' }}
{{ missing in 'x' }}
{{ one / 0 }}
{{ one // 0 }}
{{ one % 0 }}
{{ 'abc'.nope() }}
{{ 'abc'.nope }}
{{ {}.nope() }}
{{ [1, 2].append(3) }}
{{ {'a': 1}.update({'b': 2}) }}
{{ 5() }}
{{ 'abc'['x'] }}
{{ [1]['x'] }}
{{ [1].x }}
{{ {'a': 1}['b'] }}
{{ {1: 'x'}[1] }}
{{ {'items': 5}['items'] }}
{{ {'keys': 5}.keys is defined }}
{{ {'get': 5}['get'] }}
{{ people[0].items is defined }} {{ people[0]['items'] is defined }} {{ 'yes' if people[0].values else 'no' }}
{{ {'a': {'b': [1, 2]}}.a.b[1] }}
{% for x in none %}{{ x }}{% endfor %}
{% for x in 5 %}{{ x }}{% endfor %}
{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}
{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}
{% for k in {'a': 1}.keys() %}{{ k }}{% endfor %}{% for v in {'a': 1}.values() %}{{ v }}{% endfor %}
{% set x = 1 %}{% for i in range(2) %}{% set x = 5 %}{% endfor %}{{ x }}
{% set x = 1 %}{% if true %}{% set x = 5 %}{% endif %}{{ x }}
{% set ns = namespace(x=1) %}{% macro bump() %}{% set ns.x = ns.x + 1 %}{% endmacro %}{{ bump() }}{{ ns.x }}{{ ns.y is defined }}
{% set d = dict(a=1, b='x') %}{{ d }}{{ d.a }}
{{ range(3) | list }}{{ range(1, 4) | join(',') }}{{ range(0) | length }}
{{ raise_exception('stop') }}
{{ raise_exception('a', 'b') }}
{{ cycler('a', 'b').next() }}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}
{% set j = joiner(', ') %}{{ j() }}a{{ j() }}b
{{ lipsum is defined }} {{ cycler is defined }} {{ joiner is defined }} {{ namespace is defined }} {{ strftime_now is defined }}
{{ messages[0].content | upper | replace('B', 'C') | trim | length }}
{{ (messages | map(attribute='content') | select('string') | list)[1] }}
{{ messages | selectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | unique | join('/') }}
{{ messages | selectattr('role', 'ne', 'user') | list | length }} {{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }}
{{ messages | selectattr('tool_calls', 'defined') | list }} {{ messages | selectattr('tool_calls') | list }}
{{ (messages | last).content }} {{ messages[-1]['role'] }} {{ messages | length - 1 }} {{ messages|length > 2 }}
{{ messages[1:] | map(attribute='role') | list }} {{ messages[:0] }} {{ messages[5:] | length }} {{ (messages[1:])[0].role }}
{{ messages[::2] | length }} {{ (messages | reverse | first).role }} {{ (messages | reverse | list)[0].role }}
{{ 'system' in messages | map(attribute='role') }}
{{ messages | tojson | length }} {{ messages[0] | tojson }} {{ messages[0] | tojson(indent=2) }}
{{ {'a': missing} | tojson }}
{{ missing | tojson }}
{{ messages | map(attribute='role') | tojson }}
{{ messages | map(attribute='role') | list | tojson }} {{ {'a': 1}.items() | list | length }} {{ messages[1:] | tojson | length }}
{{ 'some' if messages | selectattr('nope') else 'none' }} {{ 'some' if messages | selectattr('nope') | list else 'none' }}
{% set roles = messages | map(attribute='role') %}{{ roles | join }}|{{ roles | join }}|{{ roles | list }}
{{ "<a>" | safe + "<b>" }} {{ "<a>" + "<b>" | safe }} {{ "<a>" | safe ~ "<b>" }} {{ ("<" | e) + "&" }} {{ "<" | e | e }}
{{ range(3) | tojson }}
{{ 'a' if messages[9] is defined else 'b' }}
{{ 1.0 * 3 }} {{ 10 / 4 }} {{ 2 ** 0.5 }} {{ (2 ** 62) * 4 }} {{ 9007199254740993 }} {{ 1e22 }} {{ 1.5e300 * 1e10 }} {{ 100000000000000000000 + 1 }}
{{ 5.0 * one // 2 }} {{ -5.5 * one % 2 }} {{ 5 * one % -3 }} {{ 5.5 * one // -2 }} {{ 1 - 0.9 }} {{ - 3 }} {{ --3 }}
{{ true and false or true }} {{ not true == false }} {{ 1 if true else 2 if false else 3 }} {{ (1 if false) is undefined }} {{ 1 == true }} {{ 0 == false }} {{ '' == false }} {{ [] == false }}
{{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ 1 + 2 | string }} {{ 'x' ~ 1 + 2 }} {{ 2 * 3 ~ 'x' }} {{ -1 | abs }} {{ 'a' in 'abc' | upper }}
{{ [1, 'a', none, true, 1.5, [2], {'k': [1, 2]}] }} {{ [] }} {{ {} }} {{ {'a': {'b': []}} }}
{{ 'tab\there' }} {{ 'uni\u00e9' }} {{ 'hex\x41' }} {{ 'nl\nx' }} {{ 'bs\\' }} {{ 'q\'' }} {{ "dq\"" }} {{ 'unknown\q' }}
{{ "a" "b" 'c' }}
{{- ' trimmed ' -}}   x
{%- set x = 'y' -%}   {{ x }}   {#- comment -#}   z
{{ x if x is defined and x else 'none' }}
{{ 'abc' | truncate(2) }} {{ 'hello world foo' | truncate(9) }}
{{ 'hello world' | wordwrap(5) }}
{{ [1, 2, 3] | slice(2) | list }}
{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }} {{ [{'a': {'b': 3}}] | map(attribute='a.b') | list }}
{{ 'a b c' | title }} {{ 'x' * 3 }} {{ ['x'] * 2 }} {{ 'abc' | list | join('-') }} {{ 'a-b' | replace('-', '') }}
{{ 1234567.891 | round(1) }} {{ 0.5 | round }} {{ 1.5 | round }} {{ 3 | round }} {{ '5' | int * 2 }} {{ 'abc' | int(7) }} {{ 3.99 | int }} {{ true | int }} {{ none | int }}
{{ '1.5' | float }} {{ 'x' | float(2.5) }} {{ 10 | filesizeformat }}
{{ [3, 1, 2] | sort | list }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ [1, 2] | sort(reverse=true) }} {{ {'b': 1, 'a': 2} | dictsort(by='value') | map('first') | join }}
{{ 'x' is filter }} {{ 'upper' is filter }} {{ 'odd' is test }}
{{ people | map('tojson') | join(';') }} {{ ['1', '2'] | map('int') | sum }} {{ ['a'] | map('replace', 'a', 'b') | list }}
{{ people[0] | dictsort | map('last') | list }} {{ people[0].tags | join }} {{ people | map(attribute='tags') | map('length') | list }}
{{ "%s" % "x" }} {{ "%s %s" % ("a", 1) }} {{ "%(k)s" % {"k": "v"} }} {{ "%5.1f|" % 2.25 }} {{ "%-5s|" % "ab" }} {{ "%%" % () }}
{{ "{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{!r}|{0}".format(1) }}
{{ "{0} {1} {0}".format('a', 'b') }} {{ "{a[0]} {b.c}".format(a=[1], b={'c': 2}) }} {{ "{:>5}|{:05d}|{:,}".format('ab', 42, 1234567) }}
{{ 'aéz'.encode('utf-8') is defined }} {{ 'abc'.find('z') }} {{ 'abc'.find('c', 1) }} {{ 'a,b'.split(',')[1] }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.count('') }}
{{ 'İ'.lower() | length }} {{ 'ΑΣ'.lower() }} {{ '１２'.isdigit() }} {{ '½'.isnumeric() }} {{ '²'.isdigit() }} {{ '½'.isdigit() }} {{ '٣'.isdecimal() }} {{ 'ab1'.isalnum() }} {{ 'A b'.istitle() }} {{ 'x_1'.isidentifier() }} {{ 'abc'.isascii() }} {{ ' \t'.isspace() }} {{ '\x1f'.isspace() }} {{ '\x1f a \x85'.strip() }}
{{ 'a\x0bb\x1cc\u2028d\re\r\nf'.splitlines() }} {{ 'a\nb'.splitlines(true) }} {{ 'one\n\ntwo'.split('\n') }} {{ ''.split() }} {{ ''.split(',') }}
{% if messages[0].role == 'system' and messages | length > 1 %}{% set first, rest = messages[0], messages[1:] %}{{ first.role }}{{ rest | length }}{% endif %}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m() }}|{{ m(a='x') }}|{{ m.name }}
{% macro m() %}{{ outer }}{% endmacro %}{% set outer = 'late' %}{{ m() }}
{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}b{% endmacro %}{{ a() }}
{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{{ loop.parent is defined }}{% endfor %}{% set outer_loop = loop %}{{ outer_loop.index }}{% endfor %}
{% for item in [1, [2, [3]]] recursive %}{% if item is sequence %}<{{ loop(item) }}>{% else %}{{ item }}{% endif %}{% endfor %}
{% for i in [1, 2, 3] %}{% if loop.nextitem is defined %}{{ loop.nextitem }}{% endif %}{{ loop.previtem | default('-') }}{% endfor %}
{% for i in [1, 1, 2] %}{% if loop.changed(i) %}{{ i }}{% endif %}{% endfor %}
{% block title %}in a block{% endblock %}
{% autoescape true %}{{ '<' }}{% endautoescape %}
{% do messages.append(1) %}x
{% include 'other' %}
{% set x %}{% for i in range(2) %}{{ i }}{% endfor %}{% endset %}{{ x }}{{ x | length }}
{% generation %}a{% endgeneration %}{%- generation -%} b {%- endgeneration -%} c
{{ [1,2,3] | first }}{{ [] | first }}{{ [] | last }}{{ [] | max }}|{{ [] | sum }}
{{ '<a href="x">&</a>' | escape }} {{ '<' | forceescape }} {{ '<b>x</b>' | striptags }}
{{ [1, 2, 3] | random is defined }} {{ 'a' | pprint }} {{ {'x': 1} | xmlattr }}
 {{ [1, 1].count(1) }} {{ (1, 2)[0] }}
{{ {'a': 1}.copy() }} {{ {'a': 1} | length }} {{ {'a': 1, 'b': 2} | list }} {{ {'a': 1} | first }} {{ {'a': none}.get('a', 'd') }} {{ {'a': 1}.pop('a') }}
{{ not messages }} {{ messages and 'some' }} {{ messages is sequence }} {{ messages is mapping }} {{ messages[0] is mapping }} {{ messages[0] is iterable }} {{ messages[0] is sequence }} {{ messages[0].content is string }} {{ missing is string }} {{ missing is mapping }} {{ missing is iterable }} {{ missing is none }} {{ none is defined }} {{ raise_exception is callable }} {{ 'x' is callable }}
{{ 3 is divisibleby(3) }} {{ 5 is odd and 4 is even }} {{ 5 is not even }} {{ 'a' is eq('a') }} {{ [1] is in([[1]]) }} {{ 1 is lt 2 }} {{ 1.0 is integer }} {{ true is integer }} {{ 1 is boolean }} {{ 1.0 is float }} {{ none is number }}
""".splitlines()


def pieces(source):
    """The `{{ }}` of each line of language.jinja that holds no statement, and the other lines whole."""
    head, *lines = source.split("\n")[1:]
    head = head.removesuffix("-%}") + "%}{% set one = people | length - 2 %}"
    for line in lines + EXPRESSIONS:
        if "{%" in line or "{#" in line or "|{{" in line:
            yield head + line
        else:
            for piece in re.findall(r"\{\{.*?\}\}(?!\})", line):
                yield head + piece


def expressions():
    source = (DATA / "templates" / "language.jinja").read_text(encoding="utf-8")
    conversation = CONVERSATIONS[3]
    return [{"source": piece, **render(piece, conversation)} for piece in pieces(source)]


def write(path, templates, sources, expressions):
    golden = {"bos_token": "<s>", "eos_token": "</s>", "sources": sources, "conversations": CONVERSATIONS,
              "expressions": expressions,
              "rendered": {name: [render(source, c) for c in CONVERSATIONS]
                           for name, source in templates.items()}}
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        json.dump(golden, file, ensure_ascii=False, indent=1)
        file.write("\n")
    kinds = [next(iter(r)) for rows in golden["rendered"].values() for r in rows]
    print(len(templates), "templates,", len(CONVERSATIONS), "conversations:",
          {kind: kinds.count(kind) for kind in sorted(set(kinds))})


def from_package(archive):
    with tarfile.open(archive) as package:
        return {pathlib.Path(member.name).stem: package.extractfile(member).read().decode("utf-8")
                for member in package if member.name.endswith(".jinja")}


def main():
    if sys.argv[1] == "--package":
        real = from_package(sys.argv[2])
        write(sys.argv[3], real, real, [])
        return
    templates = {path.stem: path.read_text(encoding="utf-8")
                 for path in sorted((DATA / "templates").glob("*.jinja"))}
    templates["smollm2"] = gguf.GGUFReader(sys.argv[1]).fields["tokenizer.chat_template"].contents()
    write(DATA / "template_corpus.json", templates, {"smollm2": templates["smollm2"]}, expressions())


if __name__ == "__main__":
    main()
