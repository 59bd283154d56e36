"""Writes tests/data/text/template_golden.json: chat templates rendered by transformers itself.

Run: python tests/generate/template_golden.py models/SmolLM2-135M-Instruct.Q4_1.gguf
Versions used: transformers 5.24.0, jinja2 3.1.6, gguf 0.19.0; no random numbers.

SmolLM2's template comes from the GGUF; the others are written for this test and use the constructs of the
Llama 3, Qwen 2, Qwen 3, Mistral and Gemma families, plus one template for each corner of the language.
"""
import json
import pathlib
import sys

import gguf
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent / "data" / "text" / "template_golden.json"

LLAMA3_STYLE = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{#- A comment that trims. -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN2_STYLE = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a careful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a careful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3_STYLE = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system") %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if (loop.first and content) or (not loop.first) %}
                {{- '\\n' }}
            {%- endif %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}
                {{- tool_call.arguments }}
            {%- else %}
                {{- tool_call.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

MISTRAL_STYLE = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length < 3 %}
                {{- raise_exception("Tool call IDs should be at least 3 characters!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id[-9:] + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user, assistant and tool roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA_STYLE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

# Line layout, scopes, macros, loop controls, generation, Python methods and printing.
FEATURES = """{% macro show(name, value, quote="'") -%}
{{ name }}={{ quote }}{{ value }}{{ quote }};
{%- endmacro %}
  {% for message in messages if message.role != 'tool' %}
    {% if loop.index > 4 %}{% break %}{% endif %}
    {% if message.role == 'system' %}
      {% continue %}
    {% endif %}
    {% generation %}
      {{- loop.index }}/{{ loop.revindex }} {{ loop.cycle('odd', 'even') }} {{ show('role', message.role) }}
    {%- endgeneration %}
    {% for key, value in message.items() %}
[{{ key }}:{{ value }}]
    {% endfor %}
    {% else %}
nothing
  {% endfor %}
{{ true }} {{ none }} {{ false }} {{ 1.0 }} {{ 1e-7 }} {{ 12345678901234567890.0 }} {{ 0.1 + 0.2 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ -7 % 3 }}
{{ [1, 'a', "it's", none, true, {'k': 'v', 'n': [1.5]}] }} {{ ('x', 2) | list }} {{ 'é\\n'|tojson }} {{ "<&'>"|tojson }}
{{ {'b': 1, 'a': [1, {'z': none}], 'e': {}, 'f': []} | tojson(indent=2) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }} {{ 'ü😀'|tojson(ensure_ascii=true) }}
{{ ' a  b c '.split() }} {{ 'a,b,,c'.split(',', 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ 'x=1'.partition('=')|list }} {{ 'pre-x'.removeprefix('pre-') }} {{ 'héllo'.find('l') }} {{ ''.isdigit() }} {{ 'ab\\ncd\\r\\n'.splitlines() }}
{{ 'abcdef'[::-1] }} {{ 'abcdef'[-3:] }} {{ [3, 1, 2]|sort }} {{ [1, 2, 3][::-1] }} {{ [1,2,3,4][1:][0] }} {{ 'Title case'.title() }} {{ 'x'.upper() ~ 1 ~ true ~ none }} {{ 'a' in 'abc' }} {{ 'k' in {'k': 1} }}
{{ missing }}|{{ missing is defined }}|{{ missing|default('d') }}|{{ ''|default('d', true) }}|{{ 'a' if missing }}|{{ none|trim }}|{{ 'str' is sequence }}|{{ {} is iterable }}|{{ 5 is iterable }}|{{ true is number }}|{{ false == 0 }}|{{ 0 is false }}
{{ messages|map(attribute='role')|join(', ') }} {{ messages|rejectattr('role', 'in', ['user'])|list|length }} {{ '12x'|int }} {{ '12'|int + 1 }} {{ 'a\\nb\\n\\nc'|indent(2) }} {{ 'a\\nb'|indent(1, true) }} {{ "%s-%d"|format('q', 3) }} {{ 'r'|replace('r', 's') }} {{ range(3)|list }} {{ dict(a=1) }}
{% set text %}block {{ messages|length }}{% endset %}{{ text|upper }}
{%+ if true %} kept{% endif %}

{% raw %}{{ raw }}{% endraw %} {# gone #}
{%- filter upper %} loud {% endfilter %}
{% call(x) show2() is defined %}{% endcall %}
last line
"""
FEATURES = FEATURES.replace("{% call(x) show2() is defined %}{% endcall %}\n", "")

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Météo <now> & \"later\"",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
CALL = {"id": "call_1234567890", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 3, "exact": False, "p": 0.5}}}

CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Hello"}]},
    {"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": " spaces \n"}],
     "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "日本語 😀"},
                  {"role": "assistant", "content": "  ok\n"}, {"role": "user", "content": "{{ not a template }}"}],
     "add_generation_prompt": True},
    {"messages": [{"role": "user", "content": "Weather?"},
                  {"role": "assistant", "content": "", "tool_calls": [CALL]},
                  {"role": "tool", "content": "21 °C", "name": "get_weather"},
                  {"role": "assistant", "content": "It is 21 °C."}], "extra": {"tools": [TOOL]}},
    {"messages": [{"role": "user", "content": "1+1"},
                  {"role": "assistant", "content": "<think>\neasy\n</think>\n\n2"},
                  {"role": "user", "content": "2+2"},
                  {"role": "assistant", "content": "4", "reasoning_content": "also easy"}]},
    {"messages": [{"role": "user", "content": "think?"}], "add_generation_prompt": True,
     "extra": {"enable_thinking": False}},
    {"messages": [{"role": "user", "content": "think?"}], "add_generation_prompt": True,
     "extra": {"enable_thinking": 0, "date_string": "1 Jan 2030"}},
    {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"},
                  {"role": "system", "content": "late"}]},
    {"messages": [{"role": "user", "content": "two"},
                  {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}]},
]


def render(template, conversation):
    variables = dict(conversation.get("extra", {}))
    try:
        rendered, _ = render_jinja_template(
            [conversation["messages"]], chat_template=template, tools=variables.pop("tools", None),
            add_generation_prompt=conversation.get("add_generation_prompt", False), bos_token="<s>",
            eos_token="</s>", **variables)
        return {"text": rendered[0]}
    except Exception as error:  # raise_exception, or an operation that Python refuses
        return {"error": str(error)}


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    templates = {"smollm2": reader.fields["tokenizer.chat_template"].contents(), "llama3_style": LLAMA3_STYLE,
                 "qwen2_style": QWEN2_STYLE, "qwen3_style": QWEN3_STYLE, "mistral_style": MISTRAL_STYLE,
                 "gemma_style": GEMMA_STYLE, "features": FEATURES}
    golden = {"bos_token": "<s>", "eos_token": "</s>", "conversations": CONVERSATIONS, "templates": [
        {"name": name, "source": source, "rendered": [render(source, c) for c in CONVERSATIONS]}
        for name, source in templates.items()]}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
