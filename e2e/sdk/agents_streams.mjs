// The adapters of @binnacle/agents leave streams unchanged: what a framework streams with the
// adapter is, byte for byte as JSON, what it streams without it, in the same order. A denial is an error of
// the framework's own class.
import assert from 'node:assert/strict'
import { AISDKError, isStepCount, streamText, tool as aiTool, wrapLanguageModel } from 'ai'
import { MockLanguageModelV4, simulateReadableStream } from 'ai/test'
import { Agent, AgentsError, Runner, Usage, tool as openaiTool } from '@openai/agents-core'
import { BaseCallbackHandler } from '@langchain/core/callbacks/base'
import { LangChainError } from '@langchain/core/errors'
import { AIMessage, AIMessageChunk } from '@langchain/core/messages'
import { tool as langchainTool } from '@langchain/core/tools'
import { FakeStreamingChatModel } from '@langchain/core/utils/testing'
import { MessagesAnnotation, StateGraph } from '@langchain/langgraph'
import { ToolNode } from '@langchain/langgraph/prebuilt'
import { MastraError } from '@mastra/core/error'
import { createTool } from '@mastra/core/tools'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { McpError } from '@modelcontextprotocol/sdk/types.js'
import { z } from 'zod'
import { Mesh } from '@binnacle/agents'
import { governed as governedAI, middleware } from '@binnacle/agents/ai'
import { governed as governedOpenAI, guardrails } from '@binnacle/agents/openai'
import { Governor } from '@binnacle/agents/langchain'
import { governed as governedMastra } from '@binnacle/agents/mastra'
import { governed as governedMCP } from '@binnacle/agents/mcp'

const decisions = []
const receipts = []
const mesh = new Mesh({ agent: 'streams', onDecision: (d) => decisions.push(d.verdict), onReceipt: (r) => receipts.push(r.status) })

/** Returns a part of a stream as JSON, without the ids and times that differ between runs. */
const bytes = (part) => JSON.stringify(part)?.replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, 'ID').replace(/"(callDate|timestamp)":"[^"]*"/g, '"$1":"TIME"').replace(/"call_1":[0-9.]+/g, '"call_1":"TIME"')

/** Checks that a stream is the same with and without an adapter, and that it had n governed calls. */
async function same(label, plain, governed, n) {
  const want = await plain()
  const before = receipts.length
  const got = await governed()
  assert.deepEqual(got.map(bytes), want.map(bytes), label)
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
  for await (const e of await new Runner({ tracingDisabled: true }).run(agent, 'go', { stream: true })) seen.push(e.type === 'raw_model_stream_event' ? e.data : [e.type, e.name, e.item?.rawItem, e.item?.output])
  return seen
}
const add = { name: 'add', description: 'Adds.', parameters: z.object({ a: z.number(), b: z.number() }), execute: ({ a, b }) => String(a + b) }
await same('openai', () => events(add), () => events(governedOpenAI(mesh, add)), 1)
await same('guardrails', () => events(add), () => events({ ...add, ...guardrails(mesh) }), 1)

// LangChain: the chunks of a model, which is no tool. LangGraph: what a graph streams, with parts that a
// tool writes before it ends.
const chunks = async (callbacks) => {
  const seen = []
  for await (const c of await new FakeStreamingChatModel({ chunks: ['steady ', 'as ', 'she goes'].map((content) => new AIMessageChunk({ content })) }).stream('go', { callbacks })) seen.push(c.toDict())
  return seen
}
/** A handler without methods: with any handler, LangChain gives the chunks of a model an id. */
class Without extends BaseCallbackHandler { name = 'without' }
const callbacks = [new Governor(mesh)]
await same('langchain', () => chunks([new Without()]), () => chunks(callbacks), 0)
const parts = async (callbacks) => {
  const count = langchainTool(async (_, config) => { config.writer('one'); config.writer('two'); return 'three' }, { name: 'count', description: 'Counts.', schema: z.object({}) })
  const graph = new StateGraph(MessagesAnnotation).addNode('tools', new ToolNode([count])).addEdge('__start__', 'tools').addEdge('tools', '__end__').compile()
  const seen = []
  const calls = [{ id: 'call_1', name: 'count', args: {}, type: 'tool_call' }]
  for await (const [mode, part] of await graph.stream({ messages: [new AIMessage({ content: '', tool_calls: calls })] }, { callbacks, streamMode: ['custom', 'updates'] })) seen.push([mode, part.tools?.messages[0].toDict() ?? part])
  return seen
}
await same('langgraph', () => parts([new Without()]), () => parts(callbacks), 1)

// Vercel AI SDK: every part of a run, in which the model calls a tool whose outputs are preliminary before
// the last, and then streams a text.
const usage = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } }
const finish = (unified) => ({ type: 'finish', finishReason: { unified, raw: undefined }, usage })
const turns = [
  [{ type: 'tool-call', toolCallId: 'call_1', toolName: 'count', input: '{}' }, finish('tool-calls')],
  [{ type: 'text-start', id: 't' }, ...['steady ', 'as ', 'she goes'].map((delta) => ({ type: 'text-delta', id: 't', delta })), { type: 'text-end', id: 't' }, finish('stop')],
]
const ran = async (wrapTools, wrapModel) => {
  let step = 0
  const model = wrapModel(new MockLanguageModelV4({ doStream: async () => ({ stream: simulateReadableStream({ chunks: turns[step++] }) }) }))
  const count = aiTool({ description: 'Counts.', inputSchema: z.object({}), async *execute() { yield 'one'; yield 'one, two' } })
  const seen = []
  for await (const part of streamText({ model, tools: wrapTools({ count }), prompt: 'go', stopWhen: isStepCount(2), _internal: { generateId: () => 'ID', now: () => 0, currentDate: () => new Date(0) } }).fullStream) seen.push(part)
  return seen
}
await same('ai', () => ran((t) => t, (m) => m), () => ran((t) => governedAI(mesh, t), (model) => wrapLanguageModel({ model, middleware: middleware(mesh) })), 3)

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

// Each tool is denied: it does not run, and the error is one of the framework's own class with the reason.
const strict = new Mesh({ agent: 'streams', kinds: () => ({ kind: 'client.web.fetch', args: { host: 'example.com', url: 'https://example.com/' } }) })
const execute = () => assert.fail('ran')
const denied = (label, error, type) => {
  assert.ok(error instanceof type, `${label}: ${error?.stack}`)
  console.log('denied', label, type.name, (error.error ?? error).message.match(/DENY_\w+/)?.[0] ?? error.error.result.output.outputInfo.reasonCode)
}
const rejected = (promise) => promise.then(() => assert.fail('not rejected'), (e) => e)
for (const options of [{ ...governedOpenAI(strict, { ...add, execute }), errorFunction: null }, { ...add, execute, ...guardrails(strict, { deny: 'throw' }) }]) {
  denied('openai', await rejected(events(options)), AgentsError)
}
const call = new MockLanguageModelV4({ doStream: async () => ({ stream: simulateReadableStream({ chunks: turns[0] }) }) })
for await (const part of streamText({ model: call, tools: governedAI(strict, { count: aiTool({ description: 'Counts.', inputSchema: z.object({}), execute }) }), prompt: 'go' }).fullStream) {
  if (part.type === 'tool-error') denied('ai', part.error, AISDKError)
}
const asked = streamText({ model: wrapLanguageModel({ model: new MockLanguageModelV4({ doStream: execute }), middleware: middleware(strict) }), prompt: 'go', onError: () => {} })
for await (const part of asked.fullStream) if (part.type === 'error') denied('ai model', part.error, AISDKError)
const page = langchainTool(execute, { name: 'page', description: 'Opens a page.', schema: z.object({}) })
denied('langchain', await rejected(page.invoke({}, { callbacks: [new Governor(strict)] })), LangChainError)
const graph = new StateGraph(MessagesAnnotation).addNode('tools', new ToolNode([page], { handleToolErrors: false })).addEdge('__start__', 'tools').addEdge('tools', '__end__').compile()
denied('langgraph', await rejected(graph.invoke({ messages: [new AIMessage({ content: '', tool_calls: [{ id: 'call_1', name: 'page', args: {}, type: 'tool_call' }] })] }, { callbacks: [new Governor(strict)] })), LangChainError)
denied('mastra', await rejected(governedMastra(strict, createTool({ id: 'page', description: 'Opens a page.', inputSchema: z.object({}), execute })).execute({}, {})), MastraError)
denied('mcp', await rejected(governedMCP(mesh.with({}), Object.assign(new Client({ name: 'crew', version: '1.0.0' }), { getServerVersion: () => ({ name: 'tracker' }), callTool: execute })).callTool({ name: 'drop' })), McpError)
