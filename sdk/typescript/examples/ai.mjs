// The Vercel AI SDK: tools and a model whose calls are decided by the mesh. A scripted model
// stands for a real one.
import { generateText, isStepCount, streamText, tool, wrapLanguageModel } from 'ai'
import { MockLanguageModelV4, simulateReadableStream } from 'ai/test'
import { z } from 'zod'
import { Mesh } from '@binnacle/agents'
import { governed, middleware } from '@binnacle/agents/ai'

const mesh = new Mesh({
  agent: 'vercel-ai', onReceipt: (r, action) => console.log('receipt', action.tool, r.status, r.attestedBy),
  kinds: (name, input) => name === 'open_page' ? { kind: 'client.web.fetch', args: { url: input.url, host: new URL(input.url).hostname } } : undefined,
})

const tools = governed(mesh, {
  add: tool({ description: 'Adds.', inputSchema: z.object({ a: z.number(), b: z.number() }), execute: ({ a, b }) => a + b }),
  count: tool({ description: 'Counts.', inputSchema: z.object({}), async *execute() { yield 'one'; yield 'one, two' } }),
  open_page: tool({ description: 'Opens a page.', inputSchema: z.object({ url: z.string() }), execute: () => 'a page' }),
})

const usage = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } }
const finish = (unified) => ({ finishReason: { unified, raw: undefined }, usage, warnings: [] })

/** Returns a model that calls a tool, and then says done. */
function scripted(name, input) {
  let step = 0
  return new MockLanguageModelV4({
    doGenerate: async () => step++ === 0
      ? { content: [{ type: 'tool-call', toolCallId: 'call_1', toolName: name, input: JSON.stringify(input) }], ...finish('tool-calls') }
      : { content: [{ type: 'text', text: 'done' }], ...finish('stop') },
    doStream: async () => ({
      stream: simulateReadableStream({ chunks: [
        { type: 'text-start', id: 't' }, ...'steady as she goes'.split(/(?<= )/).map((delta) => ({ type: 'text-delta', id: 't', delta })), { type: 'text-end', id: 't' },
        { type: 'finish', ...finish('stop') }] }),
    }),
  })
}

for (const [name, input] of [['add', { a: 1, b: 2 }], ['count', {}], ['open_page', { url: 'https://example.com/' }]]) {
  const { steps } = await generateText({ model: scripted(name, input), tools, prompt: 'go', stopWhen: isStepCount(3) })
  for (const part of steps[0].content) {
    if (part.type === 'tool-result') console.log('result', part.output)
    if (part.type === 'tool-error') console.log('error', part.error.name, part.error.decision.reasonCode)
  }
}

const model = wrapLanguageModel({ model: scripted('add', {}), middleware: middleware(mesh) })
let chunks = 0
for await (const text of streamText({ model, prompt: 'go' }).textStream) chunks += text.length > 0
console.log('chunks', chunks)
