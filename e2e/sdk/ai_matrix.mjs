// Vercel's AI SDK through the mesh, by its three kinds of provider, and
// LangChain: text, streams, tool loops, objects, embeddings.
import assert from 'node:assert/strict'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { createAnthropic } from '@ai-sdk/anthropic'
import { ChatOpenAI } from '@langchain/openai'
import { embed, generateText, Output, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

const baseURL = process.env.URL + '/v1'
const apiKey = process.env.BINNACLE_TOKEN
const kinds = {
  responses: createOpenAI({ baseURL, apiKey }),
  compatible: createOpenAICompatible({ name: 'binnacle', baseURL, apiKey, supportsStructuredOutputs: true }),
  messages: createAnthropic({ baseURL, apiKey }),
}
let calls = 0
const upper = tool({ description: 'Upper-cases', inputSchema: z.object({ text: z.string() }), execute: async ({ text }) => { calls++; return text.toUpperCase() } })

for (const [kind, make] of Object.entries(kinds)) {
  for (const p of ['openai', 'anthropic', 'gemini', 'bedrock', 'vllm']) {
    const model = (m) => make(`${p}/m-${m}`)
    try {
      assert.equal((await generateText({ model: model('good'), prompt: 'hello there', maxRetries: 0 })).text, 'You said: hello there')
      const s = streamText({ model: model('good'), prompt: 'hello there', maxRetries: 0 })
      let text = ''
      for await (const t of s.textStream) text += t
      assert.equal(text, 'You said: hello there')
      assert.ok((await s.usage).outputTokens === 12 || kind === 'compatible')
      calls = 0
      const loop = await generateText({ model: model('good'), prompt: 'shout', tools: { upper }, stopWhen: stepCountIs(3), maxRetries: 0 })
      assert.equal(calls, 1)
      assert.match(loop.text, /The tool said: .*X/)
      const streamed = streamText({ model: model('good'), prompt: 'shout', tools: { upper }, stopWhen: stepCountIs(3), maxRetries: 0 })
      assert.match(await streamed.text, /The tool said: .*X/)
      if (p !== 'bedrock' && kind !== 'messages') {
        const o = await generateText({ model: model('json'), prompt: 'yes?', output: Output.object({ schema: z.object({ answer: z.string() }) }), maxRetries: 0 })
        assert.deepEqual(o.output, { answer: 'yes' })
      }
      await assert.rejects(generateText({ model: model('limited'), prompt: 'x', maxRetries: 0 }), (e) => e.statusCode === 429)
    } catch (e) {
      console.error(kind, 'through', p)
      throw e
    }
  }
}
const e = await embed({ model: kinds.responses.textEmbeddingModel('gemini/e-good'), value: 'hello', maxRetries: 0 })
assert.deepEqual(e.embedding, [0.25, -1, 3])

// LangChain: text, tool calls, streams.
for (const p of ['openai', 'anthropic']) {
  const chat = new ChatOpenAI({ model: `${p}/m-good`, apiKey, maxRetries: 0, configuration: { baseURL } })
  assert.equal((await chat.invoke('hello there')).content, 'You said: hello there')
  const bound = await chat.bindTools([{ type: 'function', function: { name: 'upper', parameters: { type: 'object', properties: { text: { type: 'string' } } } } }]).invoke('shout')
  assert.deepEqual(bound.tool_calls[0].args, { text: 'x' })
  let text = ''
  for await (const c of await chat.stream('hello there')) text += c.content
  assert.equal(text, 'You said: hello there')
}
console.log('ai sdk matrix ok')
