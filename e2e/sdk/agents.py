# The package binnacle_agents against the mesh, without a framework: decisions, receipts, streams,
# failures, threads, and a mesh that is away.
import asyncio
import http.server
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from binnacle_agents import Denied, Mesh, MeshError

receipts = []
mesh = Mesh(session="s-agents-python", wait=0, on_receipt=lambda r, tool: receipts.append(r.status),
            kinds=lambda tool, input: ("client.web.search", {"query": input}) if tool == "search" else None)


def never():
    raise AssertionError("ran")


def raises(error, function, *a, **k):
    try:
        function(*a, **k)
    except error as e:
        return e
    raise AssertionError(f"{error.__name__} was not raised")


# A function, with the decision and the receipt as values.
r = mesh.run("add", {"a": 1, "b": 2}, lambda: 3)
assert (r.output, r.decision.verdict, r.receipt.status, r.receipt.attested_by) == (3, "ALLOW", "succeeded", "caller")
assert r.receipt.receipt_id == r.decision.receipt_id and r.decision.signed["intent"]["args_digest"] == r.decision.args_digest
session = r.decision.session_id


# A stream passes item by item, and ends when its reader leaves.
@mesh.tool
def items(n):
    yield from range(n)


before = len(receipts)
for i in items(3):
    assert len(receipts) == before
assert len(receipts) == before + 1 and receipts[-1] == "succeeded"
stream = items(3)
next(stream)
stream.close()
assert receipts[-1] == "cancelled", receipts


@mesh.tool
async def aitems(n):
    for i in range(n):
        yield i


async def read():
    return [i async for i in aitems(2)]


assert asyncio.run(read()) == [0, 1] and receipts[-1] == "succeeded"


async def cancel():
    started = asyncio.Event()

    async def long():
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(mesh.arun("long", {}, long))
    await started.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return


asyncio.run(cancel())
assert receipts[-1] == "cancelled"

# A failure is recorded without its text, and raised unchanged.
failure = ValueError("the text of a secret file")


def fails():
    raise failure


assert raises(ValueError, mesh.run, "fail", {}, fails) is failure and receipts[-1] == "failed"

# An input that changes between the decision and the call does not run.
path = {"path": "a"}
sly = Mesh(session="s-agents-python", on_decision=lambda d, tool: path.update(path="b"))
assert raises(MeshError, sly.run, "delete", path, never).code == "input_changed"

# A call that needs an approval is denied with its id at the end of the wait.
e = raises(Denied, mesh.run, "search", "ships", never)
assert e.decision.verdict == "ESCALATE" and e.decision.call_id in str(e)

# Several threads use one Mesh.
with ThreadPoolExecutor(4) as pool:
    assert sorted(pool.map(lambda n: mesh.run("n", n, lambda: n).output, range(12))) == list(range(12))

# Without a decision nothing runs; a redirect, which would send the token elsewhere, is not followed.
assert raises(MeshError, Mesh(url="http://127.0.0.1:9").run, "x", {}, never).code == "mesh_away"
assert raises(MeshError, Mesh(token="wrong").run, "x", {}, never).status == 401
seen = []


class Other(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        seen.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/redirect"):
            self.send_response(307)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            return
        if self.path.endswith("/outcome"):
            code, body = 400, {"error": {"message": "no", "code": "x"}}
        elif self.path.startswith("/deaf"):
            code, body = 200, {"verdict": "ALLOW", "intent_id": "i-x", "call_id": "c-x"}
        else:
            code, body = 200, {}
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *a):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other)
threading.Thread(target=server.serve_forever, daemon=True).start()
other = f"http://127.0.0.1:{server.server_port}"
raises(MeshError, Mesh(url=other).run, "x", {}, never)
raises(MeshError, Mesh(url=other + "/redirect").run, "x", {}, never)
assert not any(p.startswith("/elsewhere") for p in seen), seen

# An outcome that cannot be recorded does not fail the tool, which has run.
errors = []
assert Mesh(url=other + "/deaf", on_unreported=lambda e, d: errors.append(e)).run("deaf", {}, lambda: "ran").output == "ran"
assert len(errors) == 1
server.shutdown()
print("python ok", session)
