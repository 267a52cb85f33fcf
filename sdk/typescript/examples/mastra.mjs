// Mastra: a tool that runs only if the mesh allows its call.
import { createTool } from '@mastra/core/tools'
import { z } from 'zod'
import { Mesh } from '@binnacle/agents'
import { governed } from '@binnacle/agents/mastra'

const mesh = new Mesh({
  agent: 'mastra', onReceipt: (r) => console.log('receipt', r.status, r.attestedBy),
  kinds: (name, input) => name === 'open_page' ? { kind: 'client.web.fetch', args: { url: input.url, host: new URL(input.url).hostname } } : undefined,
})

const add = governed(mesh, createTool({ id: 'add', description: 'Adds.', inputSchema: z.object({ a: z.number(), b: z.number() }), execute: async ({ a, b }) => ({ sum: a + b }) }))
const page = governed(mesh, createTool({ id: 'open_page', description: 'Opens a page.', inputSchema: z.object({ url: z.string() }), execute: async () => 'a page' }))

console.log('added', JSON.stringify(await add.execute({ a: 1, b: 2 }, {})))
await page.execute({ url: 'https://example.com/' }, {}).catch((e) => console.log('denied', e.constructor.name, e.id, e.decision.reasonCode))
