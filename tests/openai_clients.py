"""Drives kadenced with the official `openai` package: KADENCED MODELS"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time

import openai

try:  # what the package is built on
    import httpx2 as httpx
except ImportError:
    import httpx

kadenced, models = sys.argv[1:]
folder = tempfile.TemporaryDirectory(prefix="kadence-openai-")
socket = os.path.join(folder.name, "s")
config = os.path.join(folder.name, "k.toml")
with open(config, "w") as f:
    f.write('model = "k3"\n')
    for name, file in {"k3": "k3-s-f16", "caller": "kl-h128-f16"}.items():
        f.write(f'[models.{name}]\npath = "{os.path.abspath(models)}/{file}.gguf"\n')
    f.write("[limits]\nper_user = 8\n")

daemon = subprocess.Popen([kadenced, "--config", config, "--socket", socket, "--state-dir", folder.name, "--log", "warn"])
hello = [{"role": "user", "content": "Hello"}]


def client(**options):
    http = httpx.Client(transport=httpx.HTTPTransport(uds=socket))
    return openai.OpenAI(base_url="http://kadence/v1", api_key="none", http_client=http, **options)


def models_are_listed():
    assert {m.id for m in client().models.list()} == {"k3", "caller"}
    assert client().models.retrieve("k3").owned_by == "kadence"


def chat_is_the_same_whole_and_streamed():
    ask = dict(model="k3", messages=hello, max_tokens=30, temperature=0, seed=1, logprobs=True, top_logprobs=3)
    whole = client().chat.completions.create(**ask)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert whole.usage.prompt_tokens > 0 and whole.usage.completion_tokens <= 30
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0
    assert len(choice.logprobs.content[0].top_logprobs) == 3
    text, usage, finish = "", None, None
    for chunk in client().chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for part in chunk.choices:
            text += part.delta.content or ""
            finish = part.finish_reason or finish
    assert (text, finish) == (choice.message.content, choice.finish_reason)
    assert usage.completion_tokens == whole.usage.completion_tokens


def what_was_said_is_not_read_again():
    chat = client().chat.completions.create
    messages = [{"role": "user", "content": "word " * 100}]
    first = chat(model="k3", messages=messages, max_tokens=9, temperature=0)
    messages += [first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "And?"}]
    second = chat(model="k3", messages=messages, max_tokens=9, temperature=0)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 1
    for turn in range(2):
        diary = {"session": "diary"}
        answer = chat(model="k3", messages=hello, max_tokens=9, extra_body=diary)
        assert answer.session["id"] == "diary" and answer.session["saved"]
        assert answer.session["reason"] == ("resumed" if turn else "new")


def chat_helper_puts_the_stream_together():
    ask = dict(model="caller", messages=hello, max_tokens=500, temperature=0)
    whole = client().chat.completions.create(**ask).choices[0]
    with client().chat.completions.stream(**ask) as stream:
        stream.until_done()
        final = stream.get_final_completion().choices[0]
    assert whole.finish_reason == final.finish_reason == "tool_calls"
    calls = whole.message.tool_calls
    assert calls and [c.function.arguments for c in calls] == [c.function.arguments for c in final.message.tool_calls]
    # And the conversation goes on with the results.
    answers = [{"role": "tool", "tool_call_id": c.id, "content": "42"} for c in calls]
    messages = hello + [whole.message.model_dump(exclude_none=True)] + answers
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    more = client().chat.completions.create(model="caller", messages=messages, tools=tools, max_tokens=3)
    assert more.usage.prompt_tokens > 0


def completions():
    ask = dict(model="k3", prompt="Hello", max_tokens=9, temperature=0)
    whole = client().completions.create(**ask)
    assert whole.choices[0].text == "".join(c.choices[0].text for c in client().completions.create(**ask, stream=True))


def an_answer_has_the_schema_that_is_asked_for():
    schema = {"type": "object", "required": ["kind", "legs"], "additionalProperties": False,
              "properties": {"kind": {"enum": ["fox", "hare"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 8}}}
    form = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": schema}}
    answer = client().chat.completions.create(model="k3", messages=hello, response_format=form, max_tokens=200, seed=1)
    animal = json.loads(answer.choices[0].message.content)
    assert animal["kind"] in ("fox", "hare") and 0 <= animal["legs"] <= 8


def errors_are_typed():
    def code(error, call):
        try:
            call()
        except error as e:
            return e.code
        raise AssertionError("no error")

    chat = client(max_retries=0).chat.completions.create
    assert code(openai.NotFoundError, lambda: chat(model="nope", messages=hello)) == "model_not_found"
    assert code(openai.BadRequestError, lambda: chat(model="k3", messages=hello, n=2)) == "unsupported_parameter"
    long = [{"role": "user", "content": "word " * 5000}]
    assert code(openai.BadRequestError, lambda: chat(model="k3", messages=long)) == "context_length_exceeded"


def many_at_once():
    async def ask():
        http = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=socket))
        many = openai.AsyncOpenAI(base_url="http://kadence/v1", api_key="none", http_client=http)
        one = lambda: many.chat.completions.create(model="k3", messages=hello, max_tokens=20, temperature=0)
        answers = await asyncio.gather(*(one() for _ in range(8)))
        assert len({a.choices[0].message.content for a in answers}) == 1

    asyncio.run(ask())


def leaving_a_stream_stops_the_model():
    stream = client().chat.completions.create(
        model="k3", messages=hello, stream=True, temperature=0, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    raw = httpx.Client(transport=httpx.HTTPTransport(uds=socket))
    deadline = time.monotonic() + 60
    while raw.get("http://kadence/v1/status").json()["totals"]["cancelled"] != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)


try:
    while not os.path.exists(socket):
        assert daemon.poll() is None, "kadenced has ended"
        time.sleep(0.01)
    tests = [
        models_are_listed, chat_is_the_same_whole_and_streamed, what_was_said_is_not_read_again,
        chat_helper_puts_the_stream_together, completions,
        an_answer_has_the_schema_that_is_asked_for, errors_are_typed, many_at_once, leaving_a_stream_stops_the_model,
    ]
    for test in tests:
        test()
        print(f"openai_clients: {test.__name__} ... ok")
    daemon.terminate()
    assert daemon.wait(60) == 0
    print(f"openai_clients: {len(tests)} passed with openai {openai.__version__}")
finally:
    daemon.kill()
