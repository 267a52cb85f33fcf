// A client of an MCP server whose calls are decided by the mesh before they are sent.
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { z } from 'zod'
import { Mesh } from '@binnacle/agents'
import { governed } from '@binnacle/agents/mcp'

const mesh = new Mesh({ agent: 'mcp-client', onReceipt: (r) => console.log('receipt', r.status, r.attestedBy) })

// The server of this example is in the same process.
const server = new McpServer({ name: 'tracker', version: '1.0.0' })
server.registerTool('add', { description: 'Adds.', inputSchema: { a: z.number(), b: z.number() } }, ({ a, b }) => ({ content: [{ type: 'text', text: String(a + b) }] }))
server.registerTool('fail', { description: 'Fails.', inputSchema: {} }, () => ({ isError: true, content: [{ type: 'text', text: 'no' }] }))
server.registerTool('drop', { description: 'Drops a table.', inputSchema: {} }, () => { console.log('dropped'); return { content: [] } })
const [here, there] = InMemoryTransport.createLinkedPair()
await server.connect(there)

const client = governed(mesh, new Client({ name: 'crew', version: '1.0.0' }))
await client.connect(here)
console.log('added', (await client.callTool({ name: 'add', arguments: { a: 1, b: 2 } })).content[0].text)
console.log('failed', (await client.callTool({ name: 'fail' })).isError)
await client.callTool({ name: 'drop' }).catch((e) => console.log('denied', e.constructor.name, e.code, e.data.reasonCode))
await client.close()
