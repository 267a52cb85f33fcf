// The official openai SDK with the base_url of the governing proxy.
import assert from 'node:assert/strict'
import OpenAI from 'openai'

const client = new OpenAI({ baseURL: process.env.PROXY, apiKey: process.env.KEY, maxRetries: 0, defaultHeaders: { 'X-Binnacle-Session': 's-proxy' } })
const messages = [{ role: 'user', content: 'go' }]
const tools = (...names) => names.map((name) => ({ type: 'function', function: { name, parameters: { type: 'object', properties: { text: { type: 'string' } } } } }))
const model = 'good'

if (process.argv[2] === 'frozen') {
  await assert.rejects(client.chat.completions.create({ model, messages }), (e) => e.status === 503 && e.error.reason_code === 'SYSTEM_FROZEN')
  console.log('frozen')
  process.exit(0)
}

const { data: text, response } = await client.chat.completions.create({ model, messages }).withResponse()
assert.equal(text.choices[0].message.content, 'You said: go')
assert.match(response.headers.get('x-binnacle-receipt-id'), /^r-c-/)

const one = (await client.chat.completions.create({ model, messages, tools: tools('upper') })).choices[0]
assert.equal(one.finish_reason, 'tool_calls')
assert.deepEqual(one.message.tool_calls, [{ id: 'call_1', type: 'function', function: { name: 'upper', arguments: '{"text":"x"}' } }])

const none = (await client.chat.completions.create({ model, messages, tools: tools('rm') })).choices[0]
assert.equal(none.finish_reason, 'stop')
assert.equal(none.message.tool_calls, undefined)
assert.match(none.message.refusal, /tool "rm" was refused: denied by policy: UNKNOWN_TOOL.*receipt r-c-/)

// The SDK assembles the streamed responses.
const streamed = async (...names) => {
  const s = client.chat.completions.stream({ model, messages, ...(names.length ? { tools: tools(...names) } : {}) })
  return (await s.finalChatCompletion()).choices[0]
}
assert.equal((await streamed()).message.content, 'You said: go')
const mixed = await streamed('rm', 'upper', 'mkfs')
assert.equal(mixed.finish_reason, 'tool_calls')
assert.deepEqual(mixed.message.tool_calls.map((t) => [t.id, t.function.name, t.function.arguments]), [['call_2', 'upper', '{"text":"x"}']])
assert.match(mixed.message.refusal, /"rm" was refused.*\n.*"mkfs" was refused/)
const refused = await streamed('rm')
assert.equal(refused.finish_reason, 'stop')
assert.equal(refused.message.tool_calls, undefined)
assert.match(refused.message.refusal, /"rm" was refused/)

// The same with the Responses API.
const functions = (...names) => names.map((name) => ({ type: 'function', name, parameters: { type: 'object', properties: { text: { type: 'string' } } }, strict: false }))
assert.equal((await client.responses.create({ model, input: 'go' })).output_text, 'You said: go')
const output = (r) => r.output.map((i) => (i.type === 'message' ? i.content[0].refusal ?? i.content[0].text : `${i.name} ${i.arguments}`))
const expected = [/^The call of tool "rm" was refused/, /^upper {"text":"x"}$/]
const whole = output(await client.responses.create({ model, input: 'go', tools: functions('rm', 'upper') }))
expected.forEach((e, i) => assert.match(whole[i], e))
const live = output(await client.responses.stream({ model, input: 'go', tools: functions('rm', 'upper') }).finalResponse())
expected.forEach((e, i) => assert.match(live[i], e))
assert.equal((await client.responses.stream({ model, input: 'go' }).finalResponse()).output_text, 'You said: go')
await assert.rejects(client.responses.retrieve('resp_1'), (e) => e.status === 404 && e.code === 'not_governed')
console.log('openai sdk behind the proxy ok')
