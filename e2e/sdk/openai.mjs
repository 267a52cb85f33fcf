// The official openai SDK against the mesh: plain, streamed, an error, models.
import assert from 'node:assert/strict'
import OpenAI from 'openai'

const client = new OpenAI({ baseURL: process.env.URL + '/v1', apiKey: process.env.BINNACLE_TOKEN, maxRetries: 0, defaultHeaders: { 'X-Binnacle-Session': 's-sdk-openai' } })
const messages = [{ role: 'user', content: 'steady as she goes' }]

const { data: plain, response } = await client.chat.completions.create({ model: 'demo/echo', messages }).withResponse()
assert.equal(plain.choices[0].message.content, 'steady as she goes')
assert.equal(plain.object, 'chat.completion')
assert.equal(plain.usage.total_tokens, 8)
assert.equal(response.headers.get('x-binnacle-verdict'), 'ALLOW')
assert.match(response.headers.get('x-binnacle-receipt-id'), /^r-c-/)
assert.match(response.headers.get('x-binnacle-decision-id'), /^d-c-/)
assert.match(response.headers.get('x-binnacle-call-id'), /^c-/)
assert.equal(response.headers.get('x-binnacle-session'), 's-sdk-openai')

const streamed = await client.chat.completions.create({ model: 'demo/echo', messages, stream: true, stream_options: { include_usage: true } }).withResponse()
assert.match(streamed.response.headers.get('x-binnacle-receipt-id'), /^r-c-/)
let text = '', finish, usage, chunks = 0
for await (const chunk of streamed.data) {
  chunks++
  text += chunk.choices[0]?.delta?.content ?? ''
  finish = chunk.choices[0]?.finish_reason ?? finish
  usage = chunk.usage ?? usage
}
assert.equal(text, 'steady as she goes')
assert.equal(finish, 'stop')
assert.equal(usage.completion_tokens, 4)
assert.ok(chunks >= 6)

const models = await client.models.list()
const demo = models.data.find((m) => m.id === 'demo/echo')
assert.equal(demo.owned_by, 'binnacle-demo')

await assert.rejects(client.chat.completions.create({ model: 'unknown/none', messages }), (e) => e.status === 404 && e.code === 'model_not_found')
await assert.rejects(client.chat.completions.create({ model: 'no-slash', messages }), (e) => e.status === 400 && e.param === '/model')
const stranger = new OpenAI({ baseURL: process.env.URL + '/v1', apiKey: 'wrong', maxRetries: 0 })
await assert.rejects(stranger.chat.completions.create({ model: 'demo/echo', messages }), (e) => e.status === 401)
console.log('openai sdk ok')
