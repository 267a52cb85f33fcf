// The official Anthropic SDK through the mesh, with the wire format of every provider.
import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'

const client = new Anthropic({ baseURL: process.env.URL, apiKey: process.env.BINNACLE_TOKEN, maxRetries: 0 })
const tools = [{ name: 'upper', description: 'Upper-cases', input_schema: { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] }, cache_control: { type: 'ephemeral' } }]
const data = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='

for (const p of ['anthropic', 'openai', 'azure', 'openrouter', 'ollama', 'vllm', 'gemini', 'bedrock']) {
  const base = (m, content, more = {}) => ({ model: `${p}/m-${m}`, max_tokens: 1000, messages: [{ role: 'user', content }], ...more })
  try {
    const r = await client.messages.create(base('good', 'hello there', { system: [{ type: 'text', text: 'be brief', cache_control: { type: 'ephemeral' } }] }))
    assert.equal(r.content[0].text, 'You said: hello there')
    assert.equal(r.stop_reason, 'end_turn')
    assert.deepEqual([r.usage.input_tokens, r.usage.cache_read_input_tokens, r.usage.output_tokens], [20, 5, 12])
    const s = await client.messages.stream(base('good', 'hello there')).finalMessage()
    assert.equal(s.content[0].text, 'You said: hello there')
    assert.equal(s.usage.output_tokens, 12)
    for (const model of p === 'gemini' ? ['good', 'think', 'gemini-3-pro-think'] : ['good', 'think']) {
      for (const stream of [false, true]) {
        const body = base(model, 'shout', { tools, tool_choice: { type: 'auto' }, ...(model.endsWith('think') ? { thinking: { type: 'enabled', budget_tokens: 1024 }, max_tokens: 3000 } : {}) })
        const m = stream ? await client.messages.stream(body).finalMessage() : await client.messages.create(body)
        assert.equal(m.stop_reason, 'tool_use')
        const use = m.content.find((b) => b.type === 'tool_use')
        assert.deepEqual(use.input, { text: 'x' })
        if (model.endsWith('think')) assert.equal(m.content.find((b) => b.type === 'thinking').thinking, 'Let me think about it.')
        if (p === 'gemini' && model === 'think') continue // the Messages API cannot carry the thought signature that this model needs on the call
        const end = await client.messages.create({ ...body, messages: [...body.messages, { role: 'assistant', content: m.content }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: 'X' }] }] })
        assert.equal(end.content.find((b) => b.type === 'text').text, 'The tool said: X')
      }
    }
    const braided = await client.messages.stream(base('braid', 'shout', { tools: [...tools, { ...tools[0], name: 'lower' }] })).finalMessage()
    assert.deepEqual(braided.content.filter((b) => b.type === 'tool_use').map((b) => [b.name, b.input]), [['upper', { text: 'x' }], ['lower', { text: 'x' }]])
    const img = await client.messages.create(base('good', [{ type: 'text', text: 'what is it' }, { type: 'image', source: { type: 'base64', media_type: 'image/png', data } }]))
    assert.equal(img.content[0].text, 'You said: what is it (with 1 image)')
    await assert.rejects(client.messages.create(base('limited', 'x')), (e) => e instanceof Anthropic.RateLimitError && e.headers.get('retry-after') === '3' && e.error.error.type === 'rate_limit_error')
    await assert.rejects(client.messages.create(base('missing', 'x')), (e) => e.status === 404 && e.error.error.type === 'not_found_error')
    let text = ''
    for (const broken of ['cut', 'fault']) {
      text = ''
      await assert.rejects(async () => {
        for await (const e of await client.messages.create({ ...base(broken, 'one two three four'), stream: true })) {
          if (e.type === 'content_block_delta') text += e.delta.text ?? ''
          assert.notEqual(e.type, 'message_stop')
        }
      })
      assert.ok(text.startsWith('You said'), `${broken} ${text}`)
    }
  } catch (e) {
    console.error('messages through', p)
    throw e
  }
}
assert.equal((await client.messages.countTokens({ model: 'anthropic/m-good', messages: [{ role: 'user', content: 'hello' }] })).input_tokens, 42)
assert.ok((await client.messages.countTokens({ model: 'openai/m-good', messages: [{ role: 'user', content: 'hello' }] })).input_tokens > 0)
await assert.rejects(client.messages.create({ model: 'unknown/x', max_tokens: 5, messages: [{ role: 'user', content: 'x' }] }), (e) => e.status === 404 && e.error.type === 'error')
const stranger = new Anthropic({ baseURL: process.env.URL, apiKey: 'wrong', maxRetries: 0 })
await assert.rejects(stranger.messages.create({ model: 'demo/echo', max_tokens: 5, messages: [{ role: 'user', content: 'x' }] }), (e) => e instanceof Anthropic.AuthenticationError)
const models = await client.models.list()
assert.ok(models.data.some((m) => m.id === 'demo/echo'))
console.log('anthropic matrix ok')
