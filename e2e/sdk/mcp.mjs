// An unmodified MCP client (the official TypeScript SDK) against the mesh.
import assert from 'node:assert/strict'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'

// Over HTTP, or over binnacle mcp serve with the argument "stdio".
const transport = process.argv[2] === 'stdio' ? new StdioClientTransport({ command: 'binnacle', args: ['mcp', 'serve'], env: process.env }) : new StreamableHTTPClientTransport(new URL(process.env.URL + '/mcp'), { requestInit: { headers: { Authorization: 'Bearer ' + process.env.BINNACLE_TOKEN } } })
const client = new Client({ name: 'sdk-test', version: '1.0.0' })
await client.connect(transport)
assert.equal(client.getServerVersion().name, 'binnacle')

const { tools } = await client.listTools()
const upper = tools.find((t) => t.name === 'cmd.upper')
assert.equal(upper.description, 'Returns the text in upper case.')
assert.deepEqual(upper.inputSchema.required, ['text'])

const good = await client.callTool({ name: 'cmd.upper', arguments: { text: 'ahoy' } })
assert.ok(!good.isError)
assert.deepEqual(good.structuredContent, { text: 'AHOY' })
assert.match(good._meta['binnacle/receipt_id'], /^r-c-/)
const session = good._meta['binnacle/session_id']
assert.match(session, /^s-x[a-z2-7]{26}$/)
assert.match(good._meta['binnacle/session'], /^s-mcp-/)

const unknown = await client.callTool({ name: 'no_such_tool', arguments: {} })
assert.equal(unknown.isError, true)
assert.equal(unknown._meta['binnacle/reason_code'], 'UNKNOWN_TOOL')

const extra = await client.callTool({ name: 'cmd.upper', arguments: { text: 'x', more: 1 } })
assert.equal(extra.isError, true)
assert.equal(extra._meta['binnacle/reason_code'], 'ARGS_UNKNOWN_FIELD')
assert.equal(extra._meta['binnacle/error_code'], 'invalid_input')
assert.equal(extra._meta['binnacle/pointer'], '/args/more')
assert.match(extra.content[0].text, /^invalid_input: /)

// An aborted request cancels the call, which is recorded as cancelled.
const abort = new AbortController()
const long = client.callTool({ name: 'cmd.spin', arguments: { how: 'sleep' } }, undefined, { signal: abort.signal })
setTimeout(() => abort.abort('enough'), 300)
await assert.rejects(long)
let cancelled
for (let i = 0; i < 40 && !cancelled; i++) {
  await new Promise((r) => setTimeout(r, 50))
  const r = await fetch(process.env.URL + `/api/v1/proofgraph/sessions/${session}/receipts`, { headers: { Authorization: 'Bearer ' + process.env.BINNACLE_TOKEN } })
  if (r.status !== 200) continue
  cancelled = (await r.json()).find((x) => x.status === 'cancelled')
}
assert.ok(cancelled, 'the cancelled call has no receipt that says so')

// The calls of one MCP session have one chain of receipts.
const receipts = await (await fetch(process.env.URL + `/api/v1/proofgraph/sessions/${session}/receipts`, { headers: { Authorization: 'Bearer ' + process.env.BINNACLE_TOKEN } })).json()
assert.equal(receipts.length, 4)
receipts.forEach((r, i) => assert.equal(r.index, i + 1))
await client.close()
console.log('mcp sdk ok')
