"""Sentence vectors over HTTP, requests of many clients computed together.

    pip install -c constraints.txt ".[serve]"
    python examples/http_server.py --model all-MiniLM-L6-v2 --port 8000
    curl -d '{"texts": ["A sentence.", "Another one."]}' http://127.0.0.1:8000/embed

POST /embed takes ``{"texts": [...]}`` and answers ``{"dim": H, "vectors": [[...], ...]}``; GET /health says how much is
waiting. While one batch is computed the requests that arrive wait, and go together in the next: fastbert lays sequences
end to end, so texts of any lengths share a batch without padding. What waits is bounded: beyond that a request gets a
503 at once. On SIGTERM or Ctrl-C the server takes no more requests, answers those that it has, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np

from fastbert import SentenceEncoder
from fastbert.errors import FastbertError, InputError

# Of a body that is too large so many times the allowed size is read, and not kept: a client that still sends when the
# connection is closed gets a reset in place of the answer.
READ_ANYWAY = 64


class OverloadedError(Exception):
    """More waits already than the queue may hold."""


class Batcher:
    """Texts of concurrent callers, encoded together.

    Args:
        encode: texts to (N, H) vectors; called in a thread of its own, one call at a time.
        max_batch: texts that are encoded together at most. A request with more is computed in parts, each of which
            waits behind what others have asked meanwhile.
        max_wait: seconds that a batch which is not full waits for company.
        max_queue: texts that may wait.
    """

    def __init__(
        self, encode: Callable[[list[str]], np.ndarray], *, max_batch: int, max_wait: float, max_queue: int
    ) -> None:
        self.encode, self.max_batch, self.max_wait, self.max_queue = encode, max_batch, max_wait, max_queue
        self.waiting = 0
        self.batches = 0
        self._jobs: deque[tuple[list[str], asyncio.Future]] = deque()
        self._arrived = asyncio.Event()
        self._closing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._task: asyncio.Task | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Computes what waits, then ends."""
        self._closing = True
        self._arrived.set()
        await self._task
        self._thread.shutdown()

    async def submit(self, texts: list[str]) -> np.ndarray:
        """(N, H), once its batch is computed.

        Raises:
            OverloadedError: the queue is full, or the batcher is being stopped.
        """
        if self._closing or self.waiting + len(texts) > self.max_queue:
            raise OverloadedError(f"{self.waiting} texts are waiting, at most {self.max_queue} may")
        parts = deque(texts[begin : begin + self.max_batch] for begin in range(0, len(texts), self.max_batch))
        self.waiting += len(texts)
        vectors = []
        try:
            while parts:
                vectors.append(await self._computed(parts.popleft()))
        finally:
            self.waiting -= sum(len(part) for part in parts)
            self._arrived.set()
        return np.concatenate(vectors)

    async def _computed(self, texts: list[str]) -> np.ndarray:
        """The vectors of texts that are counted as waiting, and that fit a batch."""
        future = asyncio.get_running_loop().create_future()
        job = texts, future
        self._jobs.append(job)
        self._arrived.set()
        try:
            return await future
        finally:
            if job in self._jobs:  # the client hung up; its place is free for others
                self._jobs.remove(job)
                self.waiting -= len(texts)

    async def _run(self) -> None:
        while self.waiting or not self._closing:
            if not self._jobs:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            await self._company()
            await self._compute(self._take())
            await asyncio.sleep(0)  # a request that has more parts hands over the next

    async def _company(self) -> None:
        """Until the batch is full, or has waited long enough."""
        clock = asyncio.get_running_loop().time
        end = clock() + self.max_wait
        while self.waiting < self.max_batch and not self._closing and clock() < end:
            self._arrived.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), end - clock())

    def _take(self) -> list[tuple[list[str], asyncio.Future]]:
        taken, size = [], 0
        while self._jobs and (not taken or size + len(self._jobs[0][0]) <= self.max_batch):
            texts, future = self._jobs.popleft()
            self.waiting -= len(texts)
            if not future.done():  # its client hung up a moment ago
                taken.append((texts, future))
                size += len(texts)
        return taken

    async def _compute(self, jobs: list[tuple[list[str], asyncio.Future]]) -> None:
        if not jobs:
            return
        texts = [text for job, _ in jobs for text in job]
        self.batches += 1
        try:
            vectors = await asyncio.get_running_loop().run_in_executor(self._thread, self.encode, texts)
        except Exception as error:  # its caller is told; the server goes on
            if len(jobs) > 1:  # one of them is the reason: apart, only that one fails
                for job in jobs:
                    await self._compute([job] if not job[1].done() else [])
            elif not jobs[0][1].done():
                jobs[0][1].set_exception(error)
            return
        start = 0
        for job, future in jobs:
            if not future.done():
                future.set_result(vectors[start : start + len(job)])
            start += len(job)


def parse_texts(body: bytes, max_texts: int) -> list[str]:
    """The texts of a request.

    Raises:
        InputError: one sentence for the client.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected JSON, got something that cannot be read: {error}") from error
    texts = given.get("texts") if isinstance(given, dict) else None
    if not isinstance(texts, list) or not texts:
        got = body.decode(errors="replace")
        raise InputError(f'expected {{"texts": [...]}} with one string at least, got {got!r:.100}')
    if len(given) > 1:  # what is asked for and not done would be a wrong answer
        other = next(key for key in given if key != "texts")
        raise InputError(f'expected {{"texts": [...]}} alone, got {other!r:.50} too')
    if len(texts) > max_texts:
        raise InputError(f"expected at most {max_texts} texts a request, got {len(texts)}")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {number}: expected a string, got {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(f"text {number}: expected Unicode text, got half of a surrogate pair") from error
    return texts


def make_app(encoder: SentenceEncoder, args: argparse.Namespace):
    """The application, for any ASGI server."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    def encode(texts: list[str]) -> np.ndarray:
        return encoder.encode(texts, batch_invariant=args.batch_invariant)

    batcher = Batcher(encode, max_batch=args.max_batch, max_wait=args.max_wait_ms / 1000, max_queue=args.max_queue)

    def refused(status: int, message: str, **headers: str) -> JSONResponse:
        return JSONResponse({"error": message}, status, headers=headers)

    async def unless_hung_up(request: Request, answer: Coroutine) -> np.ndarray:
        """What ``answer`` comes to; a client that goes away meanwhile is not computed."""
        answer = asyncio.ensure_future(answer)
        gone = asyncio.ensure_future(request.receive())  # after the body nothing else comes from a client
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientDisconnect
            return answer.result()
        finally:
            answer.cancel()
            gone.cancel()

    async def embed(request: Request) -> JSONResponse:
        body, size = b"", 0
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size <= args.max_bytes:
                    body += chunk
                elif size > READ_ANYWAY * args.max_bytes:
                    break
            if size > args.max_bytes:
                return refused(413, f"expected a body of at most {args.max_bytes} bytes, got more")
            vectors = await unless_hung_up(request, batcher.submit(parse_texts(body, args.max_queue)))
        except asyncio.CancelledError:  # by the server, whose time to end is up
            return refused(503, "the server ended before this request was whole and answered")
        except ClientDisconnect:
            return refused(400, "the client hung up")
        except InputError as error:
            return refused(400, str(error))
        except OverloadedError as error:
            return refused(503, str(error), **{"Retry-After": "1"})
        return JSONResponse({"dim": encoder.dim, "vectors": vectors.tolist()})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse(
            {"status": "ok", "dim": encoder.dim, "waiting": batcher.waiting, "batches": batcher.batches}
        )

    async def failed(request: Request, error: Exception) -> JSONResponse:
        return refused(500, f"the model failed on this request: {type(error).__name__}; the server's log says more")

    async def unserved(request: Request, error: HTTPException) -> JSONResponse:
        ours = "expected POST /embed or GET /health"
        return refused(error.status_code, f"{ours}, got {request.method} {request.url.path}", **(error.headers or {}))

    @asynccontextmanager
    async def lifespan(app):
        batcher.start()
        yield
        await batcher.stop()

    routes = [Route("/embed", embed, methods=["POST"]), Route("/health", health)]
    handlers = {Exception: failed, HTTPException: unserved}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False  # an empty 307 for /embed/, which curl and urllib do not follow, says nothing
    return app


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a sentence-transformers or BERT directory")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--precision", choices=("fp32", "bf16", "int8"), default="fp32")
    parser.add_argument(
        "--batch-invariant", action="store_true", help="a text gets the same bits whatever other clients ask"
    )
    parser.add_argument("--max-batch", type=int, default=128, help="texts computed together")
    parser.add_argument(
        "--max-wait-ms", type=float, default=2.0, help="how long a batch that is not full waits for more texts"
    )
    parser.add_argument("--max-queue", type=int, default=2048, help="texts that may wait; more are answered with 503")
    parser.add_argument(
        "--max-bytes", type=int, default=1 << 20, help="of a request; larger ones are answered with 413"
    )
    args = parser.parse_args(arguments)
    for name in ("max_batch", "max_queue", "max_bytes"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    if not 0 <= args.max_wait_ms < float("inf"):
        parser.error(f"--max-wait-ms must be at least 0 and finite, got {args.max_wait_ms}")
    if not 0 <= args.port < 1 << 16:
        parser.error(f"--port must be between 0 and 65535, got {args.port}")
    return args


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    try:
        import uvicorn

        encoder = SentenceEncoder.from_pretrained(args.model, precision=args.precision)
        encoder.encode(["warm up"])  # weights are packed now, not under the first client
        app = make_app(encoder, args)
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed: pip install 'fastbert[serve]'", file=sys.stderr)
        return 2
    except FastbertError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    uvicorn.run(app, host=args.host, port=args.port, timeout_graceful_shutdown=30)
    return 0


if __name__ == "__main__":
    sys.exit(main())
