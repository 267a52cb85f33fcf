// The OpenAI Agents SDK: an agent whose tools are decided by the mesh. A scripted model stands
// for a real one: without the option model, the agent uses OpenAI's.
import { Agent, Runner, Usage, tool } from '@openai/agents-core'
import { z } from 'zod'
import { Mesh } from '@binnacle/agents'
import { governed, guardrails } from '@binnacle/agents/openai'

const mesh = new Mesh({
  agent: 'openai-agents', onReceipt: (r) => console.log('receipt', r.status, r.attestedBy),
  kinds: (name, input) => name === 'open_page' ? { kind: 'client.web.fetch', args: { url: input.url, host: new URL(input.url).hostname } } : undefined,
})

const add = tool(governed(mesh, { name: 'add', description: 'Adds.', parameters: z.object({ a: z.number(), b: z.number() }), execute: ({ a, b }) => String(a + b) }))
const page = { name: 'open_page', description: 'Opens a page.', parameters: z.object({ url: z.string() }), execute: () => 'a page' }

/** Returns a model that calls a tool, and then answers with the tool's output. */
function scripted(name, args) {
  const response = (item) => ({ usage: new Usage(), output: [item] })
  return {
    async getResponse({ input }) {
      const result = input.find?.((i) => i.type === 'function_call_result')
      return result
        ? response({ type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: result.output.text ?? String(result.output) }] })
        : response({ type: 'function_call', callId: 'call_1', name, status: 'completed', arguments: JSON.stringify(args) })
    },
    async *getStreamedResponse() {},
  }
}

async function ask(label, tool, args) {
  const agent = new Agent({ name: 'crew', instructions: 'Use the tool.', model: scripted(tool.name, args), tools: [tool] })
  try {
    const { finalOutput } = await new Runner({ tracingDisabled: true }).run(agent, 'go')
    console.log(label, finalOutput.match(/DENY_\w+/)?.[0] ?? finalOutput)
  } catch (e) {
    console.log(label, e.constructor.name, e.error?.constructor.name)
  }
}

await ask('allowed', add, { a: 1, b: 2 })
await ask('denied', tool(governed(mesh, page)), { url: 'https://example.com/' })
await ask('thrown', tool(governed(mesh, { ...page, errorFunction: null })), { url: 'https://example.com/' })
await ask('guarded', tool({ ...page, ...guardrails(mesh) }), { url: 'https://example.com/' })
await ask('tripwire', tool({ ...page, ...guardrails(mesh, { deny: 'throw' }) }), { url: 'https://example.com/' })
await ask('passed', tool({ name: 'greet', description: 'Greets.', parameters: z.object({}), execute: () => 'ahoy', ...guardrails(mesh) }), {})
