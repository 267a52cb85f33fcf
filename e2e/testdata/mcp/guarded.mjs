// An MCP server on standard input and output that needs the network and secrets.
import { readFileSync, statSync, writeFileSync, existsSync } from "node:fs";
import { request } from "node:http";
import { createInterface } from "node:readline";

const tools = ["get", "elsewhere", "direct", "file", "count"].map((name) => ({ name, description: name, inputSchema: { type: "object", properties: { url: { type: "string" } } } }));
const send = (m) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...m }) + "\n");
const text = (id, s) => send({ id, result: { content: [{ type: "text", text: s }] } });

// get sends a request through the proxy that the environment names, with the token of the environment.
const get = (id, url, proxy) => {
  const { host, hostname, port, pathname } = new URL(url);
  const to = proxy ? { host: "127.0.0.1", port: 3128, path: url } : { host: hostname, port, path: pathname };
  const r = request({ ...to, headers: { host, authorization: "Bearer " + process.env.TOKEN }, timeout: 5000 }, (res) => {
    let body = "";
    res.on("data", (b) => (body += b));
    res.on("end", () => text(id, `${process.env.HTTP_PROXY} ${process.env.TOKEN} ${res.statusCode} ${body}`));
  });
  r.on("error", (e) => text(id, "no connection: " + e.code));
  r.end();
};

const calls = {
  get: (id, a) => get(id, a.url, true),
  elsewhere: (id) => get(id, "http://other.example/", true),
  direct: (id, a) => get(id, a.url, false),
  file: (id) => {
    const path = process.env.KEY_FILE;
    text(id, `${path} ${(statSync(path).mode & 0o777).toString(8)} ${readFileSync(path, "utf8").length} ${readFileSync(path, "utf8")} ${JSON.stringify(process.env).includes(readFileSync(path, "utf8"))}`);
  },
  count: (id) => {
    text(id, existsSync("/work/n") ? "again" : "first");
    writeFileSync("/work/n", "1");
  },
};

createInterface({ input: process.stdin }).on("line", (line) => {
  const m = JSON.parse(line);
  if (m.method === "initialize") send({ id: m.id, result: { protocolVersion: m.params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "guarded", version: "1" } } });
  else if (m.method === "tools/list") send({ id: m.id, result: { tools } });
  else if (m.method === "tools/call") calls[m.params.name](m.id, m.params.arguments ?? {});
  else if (m.id !== undefined) send({ id: m.id, error: { code: -32601, message: "no such method" } });
});
