"""Tools of agents that a Binnacle mesh decides before they run.

A tool runs only after the mesh has allowed it, and its outcome becomes a receipt that the
caller attests. The module adapters connects frameworks. Both use the standard library alone.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import http.client
import inspect
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping
from urllib.parse import quote

__all__ = ["Decision", "Denied", "Mesh", "MeshError", "Receipt", "Result"]


@dataclass(frozen=True)
class Decision:
    """What policy decided about a call."""

    verdict: str  #: ALLOW, DENY or ESCALATE
    reason_code: str = ""
    message: str = ""  #: why the call was not allowed, for the model or a person
    call_id: str = ""
    session_id: str = ""
    receipt_id: str = ""  #: that of an allowed call exists once its outcome is recorded
    intent_id: str = ""  #: of an allowed call: the permission to run it once
    args_digest: str = ""
    report_by: str = ""
    signed: Any = field(default=None, repr=False)  #: of an allowed call: the decision as policy signed it


@dataclass(frozen=True)
class Receipt:
    """The recorded outcome of a call."""

    receipt_id: str
    call_id: str
    session_id: str
    status: str  #: unknown if the report arrived after its deadline
    attested_by: str  #: caller, since the caller ran the tool


@dataclass(frozen=True)
class Result:
    """The output of a call with its decision and receipt."""

    output: Any
    decision: Decision
    receipt: Receipt | None  #: None if the outcome could not be recorded, or the output is a stream that has not ended


class MeshError(Exception):
    """The request was not answered, or was refused for a reason other than policy. The tool did not run."""

    def __init__(self, message: str, code: str, status: int = 0):
        super().__init__(message)
        self.code = code
        self.status = status


class Denied(Exception):
    """Policy denied the call, or it still waits for a person's approval. The tool did not run."""

    def __init__(self, decision: Decision):
        super().__init__(decision.message)
        self.decision = decision


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None  # a redirect would send the token to another host


class Mesh:
    """Access to a mesh for one session. It can be used by several threads.

    url: address of the mesh; BINNACLE_ADDR or http://127.0.0.1:8080 if None.
    token: bearer token with the scopes calls:decide and tools:call, or a function that returns
        it; BINNACLE_TOKEN if None.
    session: name of the session, s-…; a random one if None.
    agent, workspace: members of the args of its calls; workspace is the current folder if None.
    wait: seconds for which a call may wait for a person's approval.
    report_within: seconds in which a tool must end.
    content: record outputs themselves, and not only their digests.
    kinds: returns the kind and the args of a tool's calls, or None for client.other.
    on_decision, on_receipt: receive each decision and each recorded outcome, with the tool's name.
    on_unreported: receives the error if the outcome of a tool that ran could not be recorded;
        it is written to standard error if None.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | Callable[[], str] | None = None,
        session: str | None = None,
        agent: str = "sdk",
        workspace: str | None = None,
        wait: float = 300,
        report_within: float = 600,
        content: bool = False,
        kinds: Callable[[str, Any], tuple[str, Mapping[str, Any]] | None] | None = None,
        on_decision: Callable[[Decision, str], None] | None = None,
        on_receipt: Callable[[Receipt, str], None] | None = None,
        on_unreported: Callable[[Exception, Decision], None] | None = None,
    ):
        url = url or os.environ.get("BINNACLE_ADDR") or "http://127.0.0.1:8080"
        self.url = (url if "://" in url else "http://" + url).rstrip("/")
        self.session = session or f"s-{re.sub('[^A-Za-z0-9_-]', '_', agent)}-{uuid.uuid4()}"
        self.agent, self.workspace = agent, workspace
        self.wait, self.report_within, self.content = wait, report_within, content
        self._token, self._kinds = token, kinds
        self._on_decision, self._on_receipt, self._on_unreported = on_decision, on_receipt, on_unreported
        self._opener = urllib.request.build_opener(_NoRedirect)

    # Decisions and outcomes.

    def decide(self, tool: str, input: Any, kind: str | None = None, args: Mapping[str, Any] | None = None) -> Decision:
        """Decides a call.

        If a person must approve it, decide waits for at most wait seconds, and then returns
        ESCALATE. It raises a MeshError if there is no decision.
        """
        until = time.monotonic() + self.wait
        kind, args = self._named(tool, input, kind, args)
        body = {"kind": kind, "args": args, "report_within_ms": int(self.report_within * 1000)}
        d = self._ask(body, {"Idempotency-Key": str(uuid.uuid4()), "Prefer": "respond-async"}, 10)
        while d.verdict == "ESCALATE" and until - time.monotonic() >= 1:
            d = self._ask({"call_id": d.call_id}, {}, min(until - time.monotonic(), 60))
        if self._on_decision:
            self._on_decision(d, tool)
        return d

    def permit(self, tool: str, input: Any, kind: str | None = None, args: Mapping[str, Any] | None = None) -> Decision:
        """Returns the decision of an allowed call. It raises Denied if policy does not allow the call."""
        proposed = _text([input, args])
        d = self.decide(tool, input, kind, args)
        if d.verdict != "ALLOW":
            raise Denied(d)
        if _text([input, args]) != proposed:
            self.close(tool, d, "cancelled", error_code="input_changed", error_message="the input changed after its decision; nothing ran")
            raise MeshError(f"{tool}: the input changed after its decision; pass an object that is not modified", "input_changed")
        return d

    def report(self, decision: Decision, status: str, output: Any = None, error_code: str = "", error_message: str = "") -> Receipt:
        """Records the outcome of an allowed call: succeeded, failed, timed_out or cancelled. The same outcome can be reported again."""
        body: dict[str, Any] = {"args_digest": decision.args_digest, "status": status}
        if error_code:
            body["error_code"] = error_code
        if error_message:
            body["error_message"] = error_message.encode("utf-8", "replace")[:1000].decode("utf-8", "ignore")
        if status == "succeeded" and output is not None:
            body["output"] = output
        code, b = self._post(f"/api/v1/intents/{quote(decision.intent_id, safe='')}/outcome", body, {}, 10)
        if code != 200:
            raise _refusal(code, b)
        return Receipt(b["receipt_id"], b["call_id"], b["session_id"], b["status"], b["attested_by"])

    def close(self, tool: str, decision: Decision, status: str, output: Any = None, error_code: str = "", error_message: str = "") -> Receipt | None:
        """Records an outcome, and returns None if that is not possible: the tool has run, so that an error would make an agent repeat it."""
        for attempt in range(4):
            try:
                r = self.report(decision, status, output, error_code, error_message)
            except MeshError as e:
                if attempt < 3 and (e.status == 0 or e.status == 429 or e.status >= 500):
                    time.sleep(0.1 * 2**attempt)
                    continue
                if self._on_unreported:
                    self._on_unreported(e, decision)
                else:
                    print(f"binnacle: the outcome of {decision.call_id} was not recorded, and will be unknown: {e}", file=sys.stderr)
                return None
            if self._on_receipt:
                self._on_receipt(r, tool)
            return r
        return None

    # Running tools.

    def run(self, tool: str, input: Any, execute: Callable[[], Any], kind: str | None = None, args: Mapping[str, Any] | None = None) -> Result:
        """Decides a call, runs it if it is allowed, and records its outcome.

        It raises Denied if policy does not allow the call, and what execute raises. If the output
        is an iterator, its items pass unchanged, and the outcome is recorded at its end.
        """
        d = self.permit(tool, input, kind, args)
        try:
            output = execute()
        except BaseException as e:
            self.close(tool, d, **_failure(e))
            raise
        if inspect.isgenerator(output):
            return Result(self._follow(tool, d, output), d, None)
        return Result(output, d, self.close(tool, d, **self._success(kind, output)))

    async def arun(self, tool: str, input: Any, execute: Callable[[], Any], kind: str | None = None, args: Mapping[str, Any] | None = None) -> Result:
        """As run, for an execute that returns an awaitable or an async iterator. Requests to the mesh use threads."""
        d = await asyncio.to_thread(self.permit, tool, input, kind, args)
        try:
            output = execute()
            if inspect.isawaitable(output):
                output = await output
        except BaseException as e:
            outcome = _failure(e)
            await asyncio.shield(asyncio.to_thread(lambda: self.close(tool, d, **outcome)))
            raise
        if inspect.isasyncgen(output):
            return Result(self._afollow(tool, d, output), d, None)
        return Result(output, d, await asyncio.to_thread(lambda: self.close(tool, d, **self._success(kind, output))))

    def tool(self, function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
        """Decorates a function: it runs only if its call is allowed. The input is its arguments by name.

        Coroutines, generators and asynchronous generators remain such. The signature and the
        documentation are kept, since frameworks derive a tool's schema from them.
        """
        if function is None:
            return lambda f: self.tool(f, name=name)
        tool = name or getattr(function, "__name__", "tool")
        signature = inspect.signature(function)

        def given(a: tuple[Any, ...], k: dict[str, Any]) -> dict[str, Any]:
            bound = signature.bind(*a, **k)
            bound.apply_defaults()
            return {n: _plain(v) for n, v in bound.arguments.items() if n != "self"}

        if inspect.isasyncgenfunction(function):
            @functools.wraps(function)
            async def wrapped(*a: Any, **k: Any) -> Any:
                async for item in (await self.arun(tool, given(a, k), lambda: function(*a, **k))).output:
                    yield item
        elif inspect.iscoroutinefunction(function):
            @functools.wraps(function)
            async def wrapped(*a: Any, **k: Any) -> Any:
                return (await self.arun(tool, given(a, k), lambda: function(*a, **k))).output
        elif inspect.isgeneratorfunction(function):
            @functools.wraps(function)
            def wrapped(*a: Any, **k: Any) -> Any:
                yield from self.run(tool, given(a, k), lambda: function(*a, **k)).output
        else:
            @functools.wraps(function)
            def wrapped(*a: Any, **k: Any) -> Any:
                return self.run(tool, given(a, k), lambda: function(*a, **k)).output
        return wrapped

    def _success(self, kind: str | None, output: Any) -> dict[str, Any]:
        text = _text(output).encode()
        digest = "sha256:" + hashlib.sha256(text).hexdigest()
        if kind and not kind.startswith("client."):
            return {"status": "succeeded", "output": output}
        if getattr(output, "isError", None) is True or isinstance(output, Mapping) and output.get("isError") is True:
            return {"status": "failed", "error_code": "agent_tool_failed", "error_message": "the tool failed; its output has the digest " + digest}
        doc: dict[str, Any] = {"bytes": len(text), "output_digest": digest}
        if self.content:
            doc["content"] = json.loads(text)
        return {"status": "succeeded", "output": doc}

    def _follow(self, tool: str, d: Decision, items: Any) -> Any:
        seen = _Items()
        outcome: dict[str, Any] = _LEFT
        try:
            for item in items:
                seen.add(item)
                yield item
            outcome = seen.outcome()
        except GeneratorExit:
            raise
        except BaseException as e:
            outcome = _failure(e)
            raise
        finally:
            items.close()
            self.close(tool, d, **outcome)

    async def _afollow(self, tool: str, d: Decision, items: Any) -> Any:
        seen = _Items()
        outcome: dict[str, Any] = _LEFT
        try:
            async for item in items:
                seen.add(item)
                yield item
            outcome = seen.outcome()
        except GeneratorExit:
            raise
        except BaseException as e:
            outcome = _failure(e)
            raise
        finally:
            await items.aclose()
            await asyncio.shield(asyncio.to_thread(lambda: self.close(tool, d, **outcome)))

    # Requests.

    def _named(self, tool: str, input: Any, kind: str | None, args: Mapping[str, Any] | None) -> tuple[str, Any]:
        if kind and not kind.startswith("client."):
            return kind, input if args is None else args
        if kind is None:
            named = self._kinds(tool, input) if self._kinds else None
            kind, args = named if named else ("client.other", None)
        common = {"agent": self.agent, "workspace": self.workspace or os.getcwd()}
        return kind, {**common, **({"input": input, "tool": tool} if args is None else args)}

    def _ask(self, body: Any, headers: dict[str, str], within: float) -> Decision:
        headers = {**headers, "X-Binnacle-Timeout": str(max(1, int(within)))}
        try:
            code, b = self._post("/api/v1/decide", body, headers, within + 5)
        except MeshError as e:
            if e.code != "mesh_away":
                raise
            code, b = self._post("/api/v1/decide", body, headers, within + 5)  # the key names the call, so that it is decided once
        ids = {"call_id": b.get("call_id") or "", "session_id": b.get("session_id") or "", "receipt_id": b.get("receipt_id") or ""}
        if code == 200 and b.get("verdict") == "ALLOW" and b.get("intent_id"):
            return Decision("ALLOW", b.get("reason_code") or "", intent_id=b["intent_id"], args_digest=b.get("args_digest") or "", report_by=b.get("report_by") or "", signed=b.get("decision"), **ids)
        if code == 202 and ids["call_id"]:
            call = ids["call_id"]
            return Decision("ESCALATE", b.get("reason_code") or "", f"the call waits for approval as {call}: a person grants it with `binnacle approvals grant {call} --reason WHY`; then try again", **ids)
        e = b.get("error")
        if isinstance(e, dict) and e.get("reason_code") and e.get("receipt_id"):
            reason, text = e["reason_code"], str(e.get("message"))
            prefix = "" if reason in text else f"denied by policy: {reason}: "
            return Decision("DENY", reason, f"{prefix}{text} (receipt {e['receipt_id']})", e.get("call_id") or "", ids["session_id"], e["receipt_id"])
        raise _refusal(code, b)

    def _post(self, path: str, body: Any, headers: Mapping[str, str], within: float) -> tuple[int, dict[str, Any]]:
        token = self._token() if callable(self._token) else self._token or os.environ.get("BINNACLE_TOKEN")
        if not token:
            raise MeshError("there is no token: set the parameter token or BINNACLE_TOKEN", "no_token")
        data = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        request = urllib.request.Request(self.url + path, data, {
            "Content-Type": "application/json", "X-Binnacle-Session": self.session, **headers, "Authorization": "Bearer " + token}, method="POST")
        try:
            try:
                response = self._opener.open(request, timeout=within)
            except urllib.error.HTTPError as e:
                response = e
            with response:
                code, text = response.status, response.read()
        except (OSError, http.client.HTTPException) as e:
            raise MeshError(f"the mesh cannot be reached at {self.url}; `binnacle up` runs one", "mesh_away") from e
        try:
            doc = json.loads(text)
        except ValueError:
            doc = None
        if not isinstance(doc, dict):
            raise MeshError(f"the response of {self.url} is not that of a mesh (status {code})", "mesh_away", code)
        return code, doc


_LEFT = {"status": "cancelled", "error_code": "stream_left", "error_message": "the reader left the stream before its end"}


class _Items:
    """The digest of a stream: that of a line of JSON for each item."""

    def __init__(self) -> None:
        self._hash, self._bytes = hashlib.sha256(), 0

    def add(self, item: Any) -> None:
        line = _text(item).encode() + b"\n"
        self._hash.update(line)
        self._bytes += len(line)

    def outcome(self) -> dict[str, Any]:
        return {"status": "succeeded", "output": {"bytes": self._bytes, "output_digest": "sha256:" + self._hash.hexdigest()}}


def _failure(e: BaseException) -> dict[str, Any]:
    """Returns the outcome of a tool that raised e. The text of e can hold what the tool read, so it is not recorded."""
    if isinstance(e, (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)):
        return {"status": "cancelled", "error_code": "aborted", "error_message": "the tool was aborted"}
    return {"status": "failed", "error_code": "agent_tool_failed", "error_message": "the tool raised " + type(e).__name__}


def _refusal(code: int, body: dict[str, Any]) -> MeshError:
    e = body.get("error")
    e = e if isinstance(e, dict) else {}
    return MeshError(e.get("message") or f"the mesh responded with status {code}", e.get("code") or "unexpected_response", code)


def _plain(v: Any) -> Any:
    """Returns a value as JSON values: objects with model_dump (Pydantic) or attributes become objects."""
    try:
        json.dumps(v, allow_nan=False)
        return v
    except (TypeError, ValueError):
        pass
    if hasattr(v, "model_dump"):
        return v.model_dump(mode="json")
    if isinstance(v, Mapping):
        return {str(k): _plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple, set, frozenset)):
        return [_plain(x) for x in v]
    return str(v)


def _text(v: Any) -> str:
    return json.dumps(_plain(v), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
