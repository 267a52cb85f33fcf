// LangChain.js and LangGraph.js: one callback handler decides every tool below it.
import { AIMessage } from '@langchain/core/messages'
import { tool } from '@langchain/core/tools'
import { MessagesAnnotation, StateGraph } from '@langchain/langgraph'
import { ToolNode } from '@langchain/langgraph/prebuilt'
import { z } from 'zod'
import { Mesh } from '@binnacle/agents'
import { Governor } from '@binnacle/agents/langchain'

const mesh = new Mesh({
  agent: 'langchain', onReceipt: (r) => console.log('receipt', r.status, r.attestedBy),
  kinds: (name, input) => name === 'open_page' ? { kind: 'client.web.fetch', args: { url: input.url, host: new URL(input.url).hostname } } : undefined,
})
const callbacks = [new Governor(mesh)]

const add = tool(({ a, b }) => String(a + b), { name: 'add', description: 'Adds.', schema: z.object({ a: z.number(), b: z.number() }) })
const fail = tool(() => { throw new TypeError('a secret of the tool') }, { name: 'fail', description: 'Fails.', schema: z.object({}) })
const page = tool(() => 'a page', { name: 'open_page', description: 'Opens a page.', schema: z.object({ url: z.string() }) })

// LangChain: callbacks of one invocation.
console.log('added', await add.invoke({ a: 1, b: 2 }, { callbacks }))
await page.invoke({ url: 'https://example.com/' }, { callbacks }).catch((e) => console.log('denied', e.name, e.decision.reasonCode))
await fail.invoke({}, { callbacks }).catch((e) => console.log('failed', e.name))

// LangGraph: callbacks of a graph.
const graph = new StateGraph(MessagesAnnotation).addNode('tools', new ToolNode([add, page])).addEdge('__start__', 'tools').addEdge('tools', '__end__').compile()
for (const [name, args] of [['add', { a: 2, b: 3 }], ['open_page', { url: 'https://example.com/' }]]) {
  const { messages } = await graph.invoke({ messages: [new AIMessage({ content: '', tool_calls: [{ id: 'call_1', name, args, type: 'tool_call' }] })] }, { callbacks })
  const last = messages.at(-1)
  console.log('message', last.status ?? 'success', last.content.match(/DENY_\w+/)?.[0] ?? last.content)
}
