"""Adapters of frameworks, by the methods that their objects have: nothing of them is imported.

Each denial is the framework's own error where the framework has one, which the caller passes as
error, and otherwise Denied. The errors have the attribute decision.
"""

from __future__ import annotations

import copy
import json
from typing import Any, Callable, Iterator
from contextlib import contextmanager

from . import Decision, Denied, Mesh, _failure

__all__ = ["Governor", "langchain_tool", "mcp_client", "openai_guardrail", "openai_tool"]


@contextmanager
def _as(error: Callable[[str], Exception] | None) -> Iterator[None]:
    try:
        yield
    except Denied as e:
        if error is None:
            raise
        x = error(str(e))
        x.decision = e.decision  # type: ignore[attr-defined]
        raise x from e


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def openai_tool(mesh: Mesh, tool: Any, error: Callable[[str], Exception] | None = None) -> Any:
    """OpenAI Agents SDK: returns a copy of a FunctionTool whose on_invoke_tool runs only if its call is allowed.

    The model receives the reason of a denial as the tool's output, or, with error (for example
    agents.exceptions.UserError), the run ends with it.
    """
    inner = tool.on_invoke_tool

    async def invoke(context: Any, arguments: str) -> Any:
        try:
            return (await mesh.arun(tool.name, _parsed(arguments), lambda: inner(context, arguments))).output
        except Denied as e:
            if error is None:
                return str(e)
            with _as(error):
                raise e

    out = copy.copy(tool)
    out.on_invoke_tool = invoke
    return out


def openai_guardrail(mesh: Mesh, output: Callable[..., Any]) -> Callable[..., Any]:
    """OpenAI Agents SDK: returns the function of an input guardrail that decides a run.

    output is agents.GuardrailFunctionOutput. A denial triggers its tripwire, so that the run ends
    with InputGuardrailTripwireTriggered. The call is that of the tool run:AGENT, with the input's
    digest in its receipt.
    """

    async def guardrail(context: Any, agent: Any, input: Any) -> Any:
        try:
            r = await mesh.arun("run:" + agent.name, input, lambda: None)
            return output(output_info=r.decision, tripwire_triggered=False)
        except Denied as e:
            return output(output_info=e.decision, tripwire_triggered=True)

    return guardrail


def langchain_tool(mesh: Mesh, tool: Any, error: Callable[[str], Exception] | None = None) -> Any:
    """LangChain: returns a copy of a tool whose _run and _arun run only if the call is allowed.

    With error langchain_core.tools.ToolException, a tool with handle_tool_error returns a denial
    to the model.
    """
    out = copy.copy(tool)
    run, arun = getattr(tool, "_run", None), getattr(tool, "_arun", None)

    def given(a: tuple[Any, ...], k: dict[str, Any]) -> Any:
        k = {n: v for n, v in k.items() if n not in ("config", "run_manager")}
        return k if not a else {"args": list(a), **k} if k or len(a) > 1 else a[0]

    def call(*a: Any, **k: Any) -> Any:
        with _as(error):
            return mesh.run(tool.name, given(a, k), lambda: run(*a, **k)).output

    async def acall(*a: Any, **k: Any) -> Any:
        with _as(error):
            return (await mesh.arun(tool.name, given(a, k), lambda: arun(*a, **k))).output

    if run:
        object.__setattr__(out, "_run", call)
    if arun:
        object.__setattr__(out, "_arun", acall)
    return out


class Governor:
    """LangChain and LangGraph: a callback handler that decides every tool that runs below it.

    Make a class of it and of langchain_core.callbacks.BaseCallbackHandler:

        class Handler(Governor, BaseCallbackHandler): pass

    and pass callbacks=[Handler(mesh)] in the config of a tool, chain or graph. A tool that is not
    allowed raises error(reason), or Denied, before it runs.
    """

    raise_error = True
    run_inline = True

    def __init__(self, mesh: Mesh, error: Callable[[str], Exception] | None = None):
        super().__init__()
        self._mesh, self._error = mesh, error
        self._running: dict[Any, tuple[str, Decision]] = {}

    def on_tool_start(self, serialized: dict[str, Any], input_str: str, *, run_id: Any, inputs: Any = None, **_: Any) -> None:
        name = (serialized or {}).get("name") or "tool"
        with _as(self._error):
            self._running[run_id] = name, self._mesh.permit(name, _parsed(input_str) if inputs is None else inputs)

    def on_tool_end(self, output: Any, *, run_id: Any, **_: Any) -> None:
        if run_id in self._running:
            name, d = self._running.pop(run_id)
            failed = getattr(output, "status", None) == "error"
            text = getattr(output, "content", output)
            self._mesh.close(name, d, **self._mesh._success(None, {"isError": True, "content": text} if failed else text))

    def on_tool_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        if run_id in self._running:
            name, d = self._running.pop(run_id)
            self._mesh.close(name, d, **_failure(error))


def mcp_client(mesh: Mesh, session: Any, server: str, error: Callable[[str], Exception] | None = None) -> Any:
    """MCP SDK: replaces call_tool of a ClientSession by one that sends only allowed calls, and returns the session.

    The calls have the kind client.mcp.SERVER.TOOL.
    """
    inner = session.call_tool

    async def call_tool(name: str, arguments: Any = None, *a: Any, **k: Any) -> Any:
        input = arguments or {}
        with _as(error):
            return (await mesh.arun(name, input, lambda: inner(name, arguments, *a, **k), f"client.mcp.{_token(server)}.{_token(name)}", {"input": input, "server": server, "tool": name})).output

    session.call_tool = call_tool
    return session


def _token(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name) or "_"
