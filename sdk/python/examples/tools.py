"""Tools of an agent that the mesh decides: functions, coroutines and generators."""

import asyncio

from binnacle_agents import Denied, Mesh

mesh = Mesh(
    agent="crew-python",
    on_receipt=lambda receipt, tool: print("receipt", tool, receipt.status, receipt.attested_by),
    kinds=lambda tool, input: ("client.web.fetch", {"url": input["url"], "host": "example.com"}) if tool == "open_page" else None,
)


@mesh.tool
def add(a: int, b: int = 2) -> int:
    """Adds."""
    return a + b


@mesh.tool
async def greet(name: str) -> str:
    return "ahoy " + name


@mesh.tool
def count(n: int):
    yield from range(n)


@mesh.tool
def open_page(url: str) -> str:
    return "a page"


print("added", add(1))
print("greeted", asyncio.run(greet("ann")))
print("counted", list(count(3)))
try:
    open_page("https://example.com/")
except Denied as e:
    print("denied", e.decision.reason_code, e.decision.receipt_id != "")
