"""Asks a running kadenced with huggingface_hub's InferenceClient: SOCKET"""

import json
import sys

import huggingface_hub

try:  # what the package is built on
    import httpx2 as httpx
except ImportError:
    import httpx

socket = sys.argv[1]
huggingface_hub.set_client_factory(lambda: httpx.Client(transport=httpx.HTTPTransport(uds=socket)))
client = huggingface_hub.InferenceClient(base_url="http://kadence/v1", api_key="none")
ask = dict(model="k3-s-f16", messages=[{"role": "user", "content": "Hello"}], max_tokens=20, temperature=0)
whole = client.chat_completion(**ask)
assert whole.choices[0].message.content and whole.usage.completion_tokens <= 20
parts = [c.choices[0].delta.content or "" for c in client.chat_completion(**ask, stream=True) if c.choices]
assert "".join(parts) == whole.choices[0].message.content
# The package sends a schema in a form of its own, which kadenced doesn't know; a JSON object it does.
answer = client.chat_completion(**{**ask, "max_tokens": 200}, response_format={"type": "json_object"})
choice = answer.choices[0]
assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)
print(f"openai_clients: whole, streamed, json_object ... ok with huggingface_hub {huggingface_hub.__version__}")
