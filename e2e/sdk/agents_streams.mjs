// The adapters of @binnacle/agents leave streams unchanged: what a framework streams with the
// adapter is what it streams without it, in the same order.
import assert from 'node:assert/strict'
import { Agent, Runner, Usage, tool as openaiTool } from '@openai/agents-core'
import { AIMessage, AIMessageChunk } from '@langchain/core/messages'
import { tool as langchainTool } from '@langchain/core/tools'
import { FakeStreamingChatModel } from '@langchain/core/utils/testing'
import { MessagesAnnotation, StateGraph } from '@langchain/langgraph'
import { ToolNode } from '@langchain/langgraph/prebuilt'
import { createTool } from '@mastra/core/tools'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { z } from 'zod'
import { Mesh } from '@binnacle/agents'
import { governed as governedOpenAI, guardrails } from '@binnacle/agents/openai'
import { Governor } from '@binnacle/agents/langchain'
import { governed as governedMastra } from '@binnacle/agents/mastra'
import { governed as governedMCP } from '@binnacle/agents/mcp'

const decisions = []
const receipts = []
const mesh = new Mesh({ agent: 'streams', onDecision: (d) => decisions.push(d.verdict), onReceipt: (r) => receipts.push(r.status) })

/** Checks that a stream is the same with and without an adapter, and that it had n governed calls. */
async function same(label, plain, governed, n) {
  const want = await plain()
  const before = receipts.length
  const got = await governed()
  assert.deepEqual(got, want, label)
  assert.ok(want.length > 1, label)
  assert.equal(receipts.length - before, n, label)
  assert.equal(decisions.length, receipts.length, label)
  console.log(label, got.length > 1, n)
}

// OpenAI Agents SDK: the events of a run, in which the model streams a call of a tool and a text.
const events = async (options) => {
  let step = 0
  const model = {
    async getResponse() { throw new Error('not streamed') },
    async *getStreamedResponse() {
      yield { type: 'response_started' }
      const call = step++ === 0
      if (!call) for (const delta of ['steady ', 'as ', 'she goes']) yield { type: 'output_text_delta', delta }
      yield { type: 'response_done', response: { id: 'r', usage: new Usage(), output: [call
        ? { type: 'function_call', callId: 'call_1', name: 'add', status: 'completed', arguments: '{"a":1,"b":2}' }
        : { type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: 'steady as she goes' }] }] } }
    },
  }
  const agent = new Agent({ name: 'crew', instructions: 'Use the tool.', model, tools: [openaiTool(options)] })
  const seen = []
  for await (const e of await new Runner({ tracingDisabled: true }).run(agent, 'go', { stream: true })) seen.push(e.type === 'raw_model_stream_event' ? [e.data.type, e.data.delta] : [e.type, e.name])
  return seen
}
const add = { name: 'add', description: 'Adds.', parameters: z.object({ a: z.number(), b: z.number() }), execute: ({ a, b }) => String(a + b) }
await same('openai', () => events(add), () => events(governedOpenAI(mesh, add)), 1)
await same('guardrails', () => events(add), () => events({ ...add, ...guardrails(mesh) }), 1)

// LangChain: the chunks of a model, which is no tool. LangGraph: what a graph streams, with parts that a
// tool writes before it ends.
const chunks = async (callbacks) => {
  const seen = []
  for await (const c of await new FakeStreamingChatModel({ chunks: ['steady ', 'as ', 'she goes'].map((content) => new AIMessageChunk({ content })) }).stream('go', { callbacks })) seen.push(c.content)
  return seen
}
const callbacks = [new Governor(mesh)]
await same('langchain', () => chunks(), () => chunks(callbacks), 0)
const parts = async (callbacks) => {
  const count = langchainTool(async (_, config) => { config.writer('one'); config.writer('two'); return 'three' }, { name: 'count', description: 'Counts.', schema: z.object({}) })
  const graph = new StateGraph(MessagesAnnotation).addNode('tools', new ToolNode([count])).addEdge('__start__', 'tools').addEdge('tools', '__end__').compile()
  const seen = []
  const calls = [{ id: 'call_1', name: 'count', args: {}, type: 'tool_call' }]
  for await (const [mode, part] of await graph.stream({ messages: [new AIMessage({ content: '', tool_calls: calls })] }, { callbacks, streamMode: ['custom', 'updates'] })) seen.push([mode, part.tools?.messages[0].content ?? part])
  return seen
}
await same('langgraph', () => parts(), () => parts(callbacks), 1)

// Mastra: what a tool writes to the stream of its agent.
const written = async (wrap) => {
  const seen = []
  const count = createTool({ id: 'count', description: 'Counts.', inputSchema: z.object({}), execute: async (_, { writer }) => { await writer.write('one'); await writer.write('two'); return 'three' } })
  seen.push(await wrap(count).execute({}, { writer: { write: async (part) => { seen.push(part) } } }))
  return seen
}
await same('mastra', () => written((t) => t), () => written((t) => governedMastra(mesh, t)), 1)

// MCP: the progress of a call, before its result.
const progress = async (wrap) => {
  const server = new McpServer({ name: 'tracker', version: '1.0.0' })
  server.registerTool('count', { description: 'Counts.', inputSchema: {} }, async (_, { sendNotification, _meta }) => {
    for (const progress of [1, 2]) await sendNotification({ method: 'notifications/progress', params: { progressToken: _meta.progressToken, progress } })
    return { content: [{ type: 'text', text: 'three' }] }
  })
  const [here, there] = InMemoryTransport.createLinkedPair()
  await server.connect(there)
  const client = wrap(new Client({ name: 'crew', version: '1.0.0' }))
  await client.connect(here)
  const seen = []
  seen.push((await client.callTool({ name: 'count' }, undefined, { onprogress: (p) => seen.push(p.progress) })).content)
  await client.close()
  return seen
}
await same('mcp', () => progress((c) => c), () => progress((c) => governedMCP(mesh, c)), 1)
assert.deepEqual([...new Set(receipts)], ['succeeded'])
