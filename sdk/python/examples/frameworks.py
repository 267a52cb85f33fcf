"""Adapters of frameworks. Stand-ins with the same methods take the place of the frameworks'
classes here, so that the example runs without them; the comments name the real ones."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Callable

from binnacle_agents import Mesh
from binnacle_agents.adapters import Governor, langchain_tool, mcp_client, openai_guardrail, openai_tool

mesh = Mesh(
    agent="frameworks-python",
    on_receipt=lambda receipt, tool: print("receipt", tool, receipt.status),
    kinds=lambda tool, input: ("client.web.fetch", {"url": "https://example.com/", "host": "example.com"}) if tool in ("open_page", "run:surfer") else None,
)


# OpenAI Agents SDK: agents.FunctionTool, agents.GuardrailFunctionOutput, agents.Agent.
@dataclass
class FunctionTool:
    name: str
    on_invoke_tool: Callable[..., Any]


@dataclass
class GuardrailFunctionOutput:
    output_info: Any
    tripwire_triggered: bool


@dataclass
class Agent:
    name: str


class UserError(Exception):  # agents.exceptions.UserError
    pass


async def openai() -> None:
    async def invoke(context, arguments):
        return "ran with " + arguments

    print(await openai_tool(mesh, FunctionTool("add", invoke)).on_invoke_tool(None, '{"a":1}'))
    print("DENY_NO_WEB" in await openai_tool(mesh, FunctionTool("open_page", invoke)).on_invoke_tool(None, "{}"))
    try:
        await openai_tool(mesh, FunctionTool("open_page", invoke), error=UserError).on_invoke_tool(None, "{}")
    except UserError as e:
        print("UserError", e.decision.reason_code)
    guardrail = openai_guardrail(mesh, GuardrailFunctionOutput)
    print("tripwires", (await guardrail(None, Agent("crew"), "go")).tripwire_triggered, (await guardrail(None, Agent("surfer"), "go")).tripwire_triggered)


# LangChain: langchain_core.tools.BaseTool, ToolException, and the callbacks of a run.
class ToolException(Exception):
    pass


@dataclass
class Tool:
    name: str
    func: Callable[..., Any]
    callbacks: list = field(default_factory=list)

    def _run(self, *args, config=None, **kwargs):
        return self.func(*args, **kwargs)

    def invoke(self, **kwargs):
        for c in self.callbacks:
            c.on_tool_start({"name": self.name}, str(kwargs), run_id=1, inputs=kwargs)
        try:
            output = self._run(config={}, **kwargs)
        except Exception as e:
            for c in self.callbacks:
                c.on_tool_error(e, run_id=1)
            raise
        for c in self.callbacks:
            c.on_tool_end(output, run_id=1)
        return output


class BaseCallbackHandler:
    pass


class Handler(Governor, BaseCallbackHandler):
    pass


def fails():
    raise ValueError("a secret of the tool")


def langchain() -> None:
    print(langchain_tool(mesh, Tool("add", lambda a, b: a + b), ToolException).invoke(a=1, b=2))
    for tool in [langchain_tool(mesh, Tool("open_page", lambda: "a page"), ToolException), Tool("open_page", lambda: "a page", [Handler(mesh, ToolException)])]:
        try:
            print(tool.invoke())
        except ToolException as e:
            print("ToolException", e.decision.reason_code)
    print(Tool("add", lambda a: a, [Handler(mesh)]).invoke(a=4))
    try:
        Tool("fails", fails, [Handler(mesh)]).invoke()
    except ValueError:
        print("ValueError")


# MCP SDK: mcp.ClientSession, mcp.shared.exceptions.McpError.
class ClientSession:
    async def call_tool(self, name, arguments=None):
        return {"content": [], "isError": name == "fail"}


async def mcp() -> None:
    session = mcp_client(mesh, ClientSession(), "tracker", error=RuntimeError)
    print(await session.call_tool("add", {"a": 1}))
    print(await session.call_tool("fail"))
    try:
        await session.call_tool("drop")
    except RuntimeError as e:
        print("denied", e.decision.reason_code)


asyncio.run(openai())
langchain()
asyncio.run(mcp())
