"""examples/http_server.py: the batcher by itself, and the server as a user runs it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tiny_bert import save

from fastbert import SentenceEncoder
from fastbert.errors import InputError

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "http_server.py"


def _module():
    spec = importlib.util.spec_from_file_location("http_server_example", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


server = _module()


class _Lengths:
    """Encodes a text as its length, notes its batches, and waits where it is told to."""

    def __init__(self):
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, texts):
        self.batches.append(list(texts))
        assert self.gate.wait(10)
        if "bad" in texts:
            raise ValueError("a bad text")
        return np.array([[len(text)] for text in texts], dtype=np.float32)


def with_batcher(scenario, **options):
    encode = _Lengths()

    async def run():
        options.setdefault("max_wait", 0.01)
        batcher = server.Batcher(encode, **{"max_batch": 8, "max_queue": 20, **options})
        batcher.start()
        try:
            return await scenario(batcher, encode)
        finally:
            encode.gate.set()
            await batcher.stop()

    return asyncio.run(run())


def test_callers_that_come_together_are_computed_together():
    async def scenario(batcher, encode):
        jobs = [["a"], ["bb", "ccc"], ["dddd"]]
        answers = await asyncio.gather(*(batcher.submit(job) for job in jobs))
        assert [answer.ravel().tolist() for answer in answers] == [[1], [2, 3], [4]]
        assert encode.batches == [["a", "bb", "ccc", "dddd"]]

    with_batcher(scenario)


def test_a_batch_is_not_exceeded():
    async def scenario(batcher, encode):
        jobs = [["x"] * n for n in (3, 4, 2, 12, 1)]
        answers = await asyncio.gather(*(batcher.submit(job) for job in jobs))
        assert [len(answer) for answer in answers] == [3, 4, 2, 12, 1]
        assert [len(batch) for batch in encode.batches] == [7, 2, 8, 5]

    with_batcher(scenario, max_queue=30)


def test_a_large_request_lets_the_others_through_between_its_parts():
    async def scenario(batcher, encode):
        encode.gate.clear()
        large = asyncio.create_task(batcher.submit(["x" * n for n in range(1, 21)]))
        while not encode.batches:
            await asyncio.sleep(0.001)
        small = [asyncio.create_task(batcher.submit(["small"])) for _ in range(2)]
        await asyncio.sleep(0)
        assert batcher.waiting == 12 + 2
        encode.gate.set()
        assert [(await job).tolist() for job in small] == [[[5]]] * 2
        assert not large.done()
        assert (await large).ravel().tolist() == list(range(1, 21))
        assert [len(batch) for batch in encode.batches] == [8, 2, 8, 4]
        assert batcher.waiting == 0

    with_batcher(scenario)


def test_a_failure_in_a_part_is_that_of_its_request():
    async def scenario(batcher, encode):
        with pytest.raises(ValueError, match="a bad text"):
            await batcher.submit(["x"] * 8 + ["bad"] * 8 + ["x"] * 4)
        assert [len(batch) for batch in encode.batches] == [8, 8]
        assert batcher.waiting == 0
        assert (await batcher.submit(["xyz"])).tolist() == [[3]]

    with_batcher(scenario)


def test_the_rest_of_a_large_request_is_left_where_its_client_has_gone():
    async def scenario(batcher, encode):
        encode.gate.clear()
        gone = asyncio.create_task(batcher.submit(["x"] * 20))
        while not encode.batches:
            await asyncio.sleep(0.001)
        gone.cancel()
        await asyncio.sleep(0)
        encode.gate.set()
        assert (await batcher.submit(["yy"])).tolist() == [[2]]
        assert [len(batch) for batch in encode.batches] == [8, 1]

    with_batcher(scenario)


def test_a_full_batch_waits_for_nobody():
    async def scenario(batcher, encode):
        jobs = [asyncio.create_task(batcher.submit(["x"] * 4)) for _ in range(2)]
        assert [len(answer) for answer in await asyncio.wait_for(asyncio.gather(*jobs), 30)] == [4, 4]
        last = asyncio.create_task(batcher.submit(["x"]))
        await asyncio.sleep(0.05)
        assert not last.done()
        await asyncio.wait_for(batcher.stop(), 30)  # and so does none once the server is to end
        assert len(await last) == 1

    with_batcher(scenario, max_wait=60)


def test_what_waits_is_bounded():
    async def scenario(batcher, encode):
        encode.gate.clear()
        first = asyncio.create_task(batcher.submit(["x"] * 8))
        while not encode.batches:
            await asyncio.sleep(0.001)
        waiting = [asyncio.create_task(batcher.submit(["x"] * 10)) for _ in range(2)]
        await asyncio.sleep(0)
        assert batcher.waiting == 20
        with pytest.raises(server.OverloadedError, match="20 texts are waiting, at most 20 may"):
            await batcher.submit(["x"])
        encode.gate.set()
        assert [len(await job) for job in (first, *waiting)] == [8, 10, 10]
        assert len(await batcher.submit(["x"])) == 1

    with_batcher(scenario)


def test_one_failure_is_told_to_its_caller_alone_and_ends_nothing():
    async def scenario(batcher, encode):
        submitted = [batcher.submit(texts) for texts in (["a"], ["x", "bad"], ["bb", "ccc"])]
        before, failed, after = await asyncio.gather(*submitted, return_exceptions=True)
        assert type(failed) is ValueError
        assert before.tolist() == [[1]]
        assert after.tolist() == [[2], [3]]
        assert (await batcher.submit(["xyz"])).tolist() == [[3]]

    with_batcher(scenario)


def test_who_hung_up_is_not_computed():
    async def scenario(batcher, encode):
        encode.gate.clear()
        first = asyncio.create_task(batcher.submit(["first"]))
        while not encode.batches:
            await asyncio.sleep(0.001)
        gone, kept = (asyncio.create_task(batcher.submit([text])) for text in ("gone", "kept"))
        await asyncio.sleep(0)
        gone.cancel()
        encode.gate.set()
        assert (await kept).tolist() == [[4]]
        assert (await first).tolist() == [[5]]
        assert encode.batches == [["first"], ["kept"]]
        assert batcher.waiting == 0

    with_batcher(scenario)


def test_who_hung_up_takes_nobodys_place():
    """Clients that time out during a long batch, and ask again, would fill the queue."""

    async def scenario(batcher, encode):
        encode.gate.clear()
        first = asyncio.create_task(batcher.submit(["first"]))
        while not encode.batches:
            await asyncio.sleep(0.001)
        gone = [asyncio.create_task(batcher.submit(["gone"])) for _ in range(batcher.max_queue)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        assert batcher.waiting == 0
        kept = asyncio.create_task(batcher.submit(["kept"]))
        await asyncio.sleep(0)
        encode.gate.set()
        assert (await kept).tolist() == [[4]]
        assert (await first).tolist() == [[5]]
        assert encode.batches == [["first"], ["kept"]]

    with_batcher(scenario)


def test_who_hangs_up_while_it_is_computed_leaves_the_others_their_own_vectors():
    async def scenario(batcher, encode):
        encode.gate.clear()
        gone, kept = (asyncio.create_task(batcher.submit(texts)) for texts in (["a", "bb"], ["ccc", "dddd"]))
        while not encode.batches:
            await asyncio.sleep(0.001)
        gone.cancel()
        await asyncio.sleep(0)
        encode.gate.set()
        assert (await kept).tolist() == [[3], [4]]
        assert encode.batches == [["a", "bb", "ccc", "dddd"]]

    with_batcher(scenario)


def test_stopping_answers_what_waits_and_takes_no_more():
    async def scenario(batcher, encode):
        jobs = [asyncio.create_task(batcher.submit(["x"] * n)) for n in (5, 20, 5)]
        await asyncio.sleep(0)
        stopping = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0)
        with pytest.raises(server.OverloadedError):
            await batcher.submit(["y"])
        assert [len(job) for job in await asyncio.gather(*jobs)] == [5, 20, 5]
        await stopping
        assert batcher.waiting == 0

    with_batcher(scenario, max_wait=0.2, max_queue=30)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"[]", r"with one string at least, got '\[\]'"),
        (b'{"input": ["a"]}', 'got \'{"input": '),
        (b'{"texts": []}', "one string at least"),
        (b'{"texts": ["a", null]}', "text 1: expected a string, got NoneType"),
        (b'{"texts": ["a"], "prompt_name": "query"}', "alone, got 'prompt_name' too"),
        (b'{"texts": ["a", "b", "c", "d"]}', "at most 3 texts a request, got 4"),
        (b'{"texts": ["a", "\\ud800"]}', "text 1: expected Unicode text"),
    ],
)
def test_a_request_that_is_none_is_refused_in_one_sentence(body, said):
    with pytest.raises(InputError, match=said):
        server.parse_texts(body, 3)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--max-batch", "0", "--max-batch must be at least 1, got 0"),
        ("--max-queue", "-1", "--max-queue must be at least 1, got -1"),
        ("--max-bytes", "0", "--max-bytes must be at least 1, got 0"),
        ("--max-wait-ms", "nan", "--max-wait-ms must be at least 0 and finite, got nan"),
        ("--port", "99999", "--port must be between 0 and 65535, got 99999"),
    ],
)
def test_an_option_out_of_range_is_refused_at_once(option, value, said, capsys):
    with pytest.raises(SystemExit):
        server.main(["--model", "model", option, value])
    assert said in capsys.readouterr().err


def test_a_client_that_hangs_up_while_it_waits_is_not_computed():
    pytest.importorskip("starlette")
    encode, sent = _Lengths(), []
    encoder = types.SimpleNamespace(dim=1, encode=lambda texts, batch_invariant: encode(texts))

    async def request(app, text: str, gone: asyncio.Event) -> None:
        messages = [{"type": "http.request", "body": json.dumps({"texts": [text]}).encode()}]

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append((text, message.get("status")))

        scope = {"type": "http", "method": "POST", "path": "/embed", "headers": [], "query_string": b""}
        await app(scope, receive, send)

    async def run():
        app = server.make_app(encoder, server.parse(["--model", "model"]))
        async with app.router.lifespan_context(app):
            encode.gate.clear()
            gone = [asyncio.Event() for _ in range(3)]
            first = asyncio.create_task(request(app, "first", gone[0]))
            while not encode.batches:
                await asyncio.sleep(0.001)
            left = asyncio.create_task(request(app, "left", gone[1]))
            stays = asyncio.create_task(request(app, "stays", gone[2]))
            await asyncio.sleep(0.01)
            gone[1].set()
            await asyncio.sleep(0.01)
            encode.gate.set()
            await asyncio.wait_for(asyncio.gather(first, left, stays), 30)

    asyncio.run(run())
    assert encode.batches == [["first"], ["stays"]]
    assert ("first", 200) in sent
    assert ("stays", 200) in sent
    assert ("left", 200) not in sent


def test_half_a_request_is_answered_when_the_server_ends():
    """uvicorn cancels what is not done in time, and logs a traceback of what does not take it."""
    pytest.importorskip("starlette")
    encoder, sent = types.SimpleNamespace(dim=1, encode=None), []

    async def run():
        app = server.make_app(encoder, server.parse(["--model", "model"]))
        messages = [{"type": "http.request", "body": b'{"tex', "more_body": True}]
        read = asyncio.Event()

        async def receive():
            if messages:
                return messages.pop()
            read.set()
            return await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/embed", "headers": [], "query_string": b""}
        async with app.router.lifespan_context(app):
            task = asyncio.create_task(app(scope, receive, send))
            await asyncio.wait_for(read.wait(), 30)
            task.cancel()
            await asyncio.wait_for(task, 30)

    asyncio.run(run())
    assert sent[0]["status"] == 503
    assert "the server ended" in json.loads(sent[1]["body"])["error"]


def test_a_model_that_fails_is_told_as_json():
    """As every other refusal, and without what the error says: it may hold another client's text."""
    pytest.importorskip("starlette")
    encode, sent = _Lengths(), []
    encoder = types.SimpleNamespace(dim=1, encode=lambda texts, batch_invariant: encode(texts))

    async def run():
        app = server.make_app(encoder, server.parse(["--model", "model"]))
        messages = [{"type": "http.request", "body": b'{"texts": ["bad"]}'}]

        async def receive():
            return messages.pop() if messages else await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/embed", "headers": [], "query_string": b""}
        async with app.router.lifespan_context(app):
            with pytest.raises(ValueError, match="a bad text"):  # for the server's log
                await asyncio.wait_for(app(scope, receive, send), 30)

    asyncio.run(run())
    start, body = sent
    assert start["status"] == 500
    assert "ValueError" in json.loads(body["body"])["error"]
    assert b"a bad text" not in body["body"]


def test_what_is_not_served_is_told_as_json():
    pytest.importorskip("starlette")
    encoder = types.SimpleNamespace(dim=1, encode=None)

    async def ask(app, method: str, path: str) -> tuple[int, dict, dict]:
        sent = []

        async def receive():
            return {"type": "http.request", "body": b""}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
        await app({**scope, "server": ("127.0.0.1", 80), "scheme": "http"}, receive, send)
        return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])

    async def run():
        app = server.make_app(encoder, server.parse(["--model", "model"]))
        status, headers, body = await ask(app, "GET", "/embed")
        assert (status, headers[b"allow"]) == (405, b"POST")
        assert body == {"error": "expected POST /embed or GET /health, got GET /embed"}
        for path in ("/v1/embed", "/embed/"):
            told = {"error": f"expected POST /embed or GET /health, got POST {path}"}
            assert (await ask(app, "POST", path))[::2] == (404, told)

    asyncio.run(run())


def post(port: int, body: bytes, path: str = "/embed") -> tuple[int, dict]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def health(port: int) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("model"), "BertModel")


@pytest.fixture
def start(model):
    """Starts servers with options and ends them; returns their ports."""
    for library in ("starlette", "uvicorn"):
        pytest.importorskip(library)
    running = []

    def run(*options) -> tuple[int, subprocess.Popen]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, SCRIPT, "--model", model, "--port", port, *options]
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
        running.append(process)
        for _ in range(600):
            try:
                assert health(port)["status"] == "ok"
                return port, process
            except urllib.error.URLError:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.1)
        raise AssertionError("the server did not begin to answer")

    yield run
    for process in running:
        process.kill()
        process.communicate()


def test_many_clients_at_once_and_an_orderly_end(start, model):
    port, process = start("--batch-invariant", "--max-wait-ms", 200, "--max-queue", 64, "--max-bytes", 200_000)
    texts = [" ".join(["the film is good"] * (1 + n % 5)) for n in range(24)]
    encoder = SentenceEncoder.from_pretrained(model)
    wanted = encoder.encode(texts, batch_invariant=True)
    assert health(port) == {"status": "ok", "dim": 32, "waiting": 0, "batches": 0}
    with ThreadPoolExecutor(24) as clients:
        answers = list(clients.map(lambda text: post(port, json.dumps({"texts": [text]}).encode()), texts))
        assert [status for status, _ in answers] == [200] * 24
        got = np.array([answer["vectors"][0] for _, answer in answers], dtype=np.float32)
        assert np.array_equal(got, wanted)
        assert 1 <= health(port)["batches"] <= 12
        assert post(port, b"no JSON")[0] == 400
        assert post(port, b" " * 200_001)[0] == 413
        assert post(port, b" " * 8_000_000)[0] == 413  # its client is still sending
        assert post(port, json.dumps({"texts": ["a"] * 65}).encode())[0] == 400
        # The end: a signal while requests wait for their batch.
        last = [clients.submit(post, port, json.dumps({"texts": [text] * 2}).encode()) for text in texts[:8]]
        for _ in range(1000):
            if health(port)["waiting"] == 16 or all(job.done() for job in last):
                break
        process.send_signal(signal.SIGTERM)
        assert [job.result()[0] for job in last] == [200] * 8
    assert process.wait(30) in (0, -signal.SIGTERM)


def test_options_reach_the_model(monkeypatch):
    asked, served, batchers = [], [], []

    class Encoder:
        dim = 1

        @classmethod
        def from_pretrained(cls, directory, **options):
            asked.append((directory, options))
            return cls()

        def encode(self, texts, **options):
            return texts, options

    pytest.importorskip("starlette")
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.setattr(server, "SentenceEncoder", Encoder)
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: served.append(options))
    monkeypatch.setattr(server, "Batcher", lambda encode, **options: batchers.append((encode, options)))
    given = ["--max-wait-ms", "50", "--max-batch", "7", "--max-queue", "8", "--batch-invariant"]
    assert server.main(["--model", "M", "--precision", "int8", "--port", "81", "--host", "::1", *given]) == 0
    assert asked == [(Path("M"), {"precision": "int8"})]
    [(encode, options)] = batchers
    assert options == {"max_batch": 7, "max_wait": 0.05, "max_queue": 8}
    assert encode(["a"]) == (["a"], {"batch_invariant": True})
    assert (served[0]["host"], served[0]["port"]) == ("::1", 81)


@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_without_the_library_there_is_a_sentence(library, model, monkeypatch, capsys):
    for name in ("starlette.applications", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, library if library == "uvicorn" else "starlette.applications", None)
    assert server.main(["--model", str(model)]) == 2
    assert capsys.readouterr().err.endswith("is not installed: pip install 'fastbert[serve]'\n")


def test_a_model_that_is_none_is_a_sentence(tmp_path, capsys):
    pytest.importorskip("uvicorn")
    assert server.main(["--model", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
