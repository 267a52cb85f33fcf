// The official openai SDK through the mesh, with the wire format of every provider: tool loop,
// structured output, streaming, images, files, reasoning, errors, cancellation.
import assert from 'node:assert/strict'
import OpenAI from 'openai'

const client = new OpenAI({ baseURL: process.env.URL + '/v1', apiKey: process.env.BINNACLE_TOKEN, maxRetries: 0 })
const providers = ['openai', 'azure', 'openrouter', 'ollama', 'vllm', 'anthropic', 'gemini', 'bedrock']
const say = (content) => [{ role: 'user', content }]
const tools = [{ type: 'function', function: { name: 'upper', description: 'Upper-cases', parameters: { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] } } }]
const png = 'data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='

async function collect(stream) {
  const out = { text: '', think: '', calls: [], finish: null, usage: null, ids: new Set(), n: 0 }
  for await (const c of stream) {
    out.n++
    out.ids.add(c.id)
    out.usage = c.usage ?? out.usage
    const ch = c.choices[0]
    if (!ch) continue
    out.text += ch.delta.content ?? ''
    out.think += ch.delta.reasoning_content ?? ''
    out.finish = ch.finish_reason ?? out.finish
    for (const t of ch.delta.tool_calls ?? []) {
      const have = (out.calls[t.index] ??= { id: '', type: 'function', function: { name: '', arguments: '' } })
      if (t.id) have.id = t.id
      if (t.extra_content) have.extra_content = t.extra_content
      have.function.name += t.function?.name ?? ''
      have.function.arguments += t.function?.arguments ?? ''
    }
  }
  return out
}

for (const p of providers) {
  const at = (m) => `${p}/${m}`
  try {
    // plain
    const plain = await client.chat.completions.create({ model: at('m-good'), messages: [{ role: 'system', content: 'be brief' }, ...say('hello there')], temperature: 0.5, max_tokens: 100, stop: ['END'] })
    assert.equal(plain.choices[0].message.content, 'You said: hello there')
    assert.equal(plain.choices[0].finish_reason, 'stop')
    assert.equal(plain.object, 'chat.completion')
    assert.deepEqual([plain.usage.prompt_tokens, plain.usage.completion_tokens, plain.usage.prompt_tokens_details.cached_tokens], [25, 12, 5], JSON.stringify(plain.usage))
    // stream, with usage and without
    const s = await collect(await client.chat.completions.create({ model: at('m-good'), messages: say('hello there'), stream: true, stream_options: { include_usage: true } }))
    assert.equal(s.text, 'You said: hello there')
    assert.equal(s.finish, 'stop')
    assert.equal(s.usage.completion_tokens, 12)
    assert.equal(s.ids.size, 1)
    const without = await collect(await client.chat.completions.create({ model: at('m-good'), messages: say('hello there'), stream: true }))
    assert.equal(without.text, 'You said: hello there')
    assert.equal(without.usage, null)
    // tool loop, two tools at once, plain and streamed
    const two = [...tools, { type: 'function', function: { name: 'lower', parameters: { type: 'object', properties: { text: { type: 'string' } } } } }]
    for (const model of ['m-good', 'm-think']) {
      for (const stream of [false, true]) {
        const messages = say('shout')
        let m, finish
        if (stream) {
          const r = await collect(await client.chat.completions.create({ model: at(model), messages, tools: two, stream }))
          m = { role: 'assistant', content: r.text || null, tool_calls: r.calls }
          finish = r.finish
        } else {
          const r = await client.chat.completions.create({ model: at(model), messages, tools: two, tool_choice: 'auto', parallel_tool_calls: true })
          m = r.choices[0].message
          finish = r.choices[0].finish_reason
        }
        assert.equal(finish, 'tool_calls')
        assert.deepEqual(m.tool_calls.map((c) => c.function.name), ['upper', 'lower'])
        for (const c of m.tool_calls) assert.deepEqual(JSON.parse(c.function.arguments), { text: 'x' })
        const answered = [...messages, m, ...m.tool_calls.map((c, i) => ({ role: 'tool', tool_call_id: c.id, content: 'R' + i }))]
        const end = await client.chat.completions.create({ model: at(model), messages: answered, tools: two })
        assert.equal(end.choices[0].message.content, 'The tool said: R0, R1', `${model} ${stream}`)
      }
    }
    // reasoning
    const t = await collect(await client.chat.completions.create({ model: at('m-think'), messages: say('why'), stream: true, reasoning_effort: 'low' }))
    assert.equal(t.think, 'Let me think about it.')
    // structured output
    {
      const j = await client.chat.completions.create({ model: at('m-json'), messages: say('yes?'), response_format: { type: 'json_schema', json_schema: { name: 'a', strict: true, schema: { type: 'object', properties: { answer: { type: 'string' } }, required: ['answer'], additionalProperties: false } } } })
      assert.deepEqual(JSON.parse(j.choices[0].message.content), { answer: 'yes' })
    }
    // images
    const img = await client.chat.completions.create({ model: at('m-good'), messages: [{ role: 'user', content: [{ type: 'text', text: 'what is it' }, { type: 'image_url', image_url: { url: png } }] }] })
    assert.equal(img.choices[0].message.content, 'You said: what is it (with 1 image)')
    // files, with spaces and parentheses in the name
    const pdf = { type: 'file', file: { filename: 'Q3 report (v1.2).pdf', file_data: 'data:application/pdf;base64,QUJD' } }
    const read = await client.chat.completions.create({ model: at('m-good'), messages: [{ role: 'user', content: [{ type: 'text', text: 'read' }, pdf, pdf] }] })
    assert.ok(read.choices[0].message.content.startsWith('You said: read'))
    // options that would change the answer are refused if the provider lacks them; options that
    // newer models do not accept are left out
    if (p === 'anthropic' || p === 'bedrock') {
      await assert.rejects(client.chat.completions.create({ model: at('m-good'), messages: say('x'), n: 2 }), (e) => e.status === 400 && /^400 \/n: .*this provider returns only one answer/.test(e.message))
      await assert.rejects(client.chat.completions.create({ model: at('m-good'), messages: say('x'), logprobs: true }), (e) => e.status === 400 && /logprobs/.test(e.message))
      const now = await client.chat.completions.create({ model: at('claude-opus-5-5-think'), messages: say('why'), temperature: 0.3, top_p: 0.9, reasoning_effort: 'high', safety_identifier: 'u', service_tier: 'flex' })
      assert.equal(now.choices[0].message.reasoning_content, 'Let me think about it.')
      if (p === 'anthropic') assert.ok(now.usage.completion_tokens_details.reasoning_tokens > 0, JSON.stringify(now.usage))
    }
    if (p === 'gemini') {
      const sure = await client.chat.completions.create({ model: at('m-good'), messages: say('x'), logprobs: true, top_logprobs: 1 })
      assert.deepEqual(sure.choices[0].logprobs.content, [{ token: 'Hi', logprob: -0.25, bytes: [72, 105], top_logprobs: [{ token: 'Hi', logprob: -0.25, bytes: [72, 105] }] }])
      const now = await client.chat.completions.create({ model: at('gemini-3-pro-think'), messages: say('why'), reasoning_effort: 'high' })
      assert.equal(now.choices[0].message.reasoning_content, 'Let me think about it.')
    }
    // errors
    await assert.rejects(client.chat.completions.create({ model: at('m-limited'), messages: say('x') }), (e) => e instanceof OpenAI.RateLimitError && e.headers.get('retry-after') === '3')
    await assert.rejects(client.chat.completions.create({ model: at('m-missing'), messages: say('x') }), (e) => e.status === 404)
    await assert.rejects(client.chat.completions.create({ model: at('m-broken'), messages: say('x') }), (e) => e.status === 502)
    // a stream that the provider does not complete ends in an error, after the text that came
    // before
    for (const broken of ['cut', 'fault', 'garbage']) {
      let text = ''
      await assert.rejects(async () => {
        for await (const c of await client.chat.completions.create({ model: at('m-' + broken), messages: say('one two three four'), stream: true })) text += c.choices[0]?.delta?.content ?? ''
      }, `${broken}`)
      assert.ok(text.startsWith('You said'), `${broken}: ${text}`)
    }
    // cancellation
    const stream = await client.chat.completions.create({ model: at('m-pace'), messages: say('x'), stream: true })
    for await (const c of stream) if (c.choices[0]?.delta?.content) break
    stream.controller.abort()
  } catch (e) {
    console.error('chat through', p)
    throw e
  }
  // responses
  try {
    const rtools = [{ type: 'function', name: 'upper', parameters: { type: 'object', properties: { text: { type: 'string' } }, required: ['text'], additionalProperties: false }, strict: true }]
    const r = await client.responses.create({ model: at('m-good'), input: 'hello there', instructions: 'be brief' })
    assert.equal(r.output_text, 'You said: hello there')
    assert.equal(r.status, 'completed')
    assert.equal(r.usage.input_tokens, 25)
    if (!['openai', 'azure'].includes(p)) assert.equal(r.instructions, 'be brief')
    const events = []
    let done
    for await (const e of await client.responses.create({ model: at('m-good'), input: 'hello there', stream: true })) {
      assert.equal(e.sequence_number, events.length, 'sequence numbers')
      events.push(e.type)
      if (e.type === 'response.completed') done = e.response
    }
    assert.equal(events[0], 'response.created')
    assert.ok(events.includes('response.output_text.delta'))
    assert.equal(done.output.find((o) => o.type === 'message').content[0].text, 'You said: hello there')
    for (const stream of [false, true]) {
      let first
      if (stream) first = await client.responses.stream({ model: at('m-good'), input: [{ role: 'user', content: 'shout' }], tools: rtools }).finalResponse()
      else first = await client.responses.create({ model: at('m-good'), input: [{ role: 'user', content: 'shout' }], tools: rtools })
      const call = first.output.find((o) => o.type === 'function_call')
      assert.equal(call.name, 'upper')
      if (!['openai', 'azure'].includes(p)) assert.equal(first.tools[0].name, 'upper')
      assert.deepEqual(JSON.parse(call.arguments), { text: 'x' })
      const second = await client.responses.create({ model: at('m-good'), tools: rtools, input: [{ role: 'user', content: 'shout' }, ...first.output.map(({ parsed_arguments, ...o }) => o), { type: 'function_call_output', call_id: call.call_id, output: 'X' }] })
      assert.equal(second.output_text, 'The tool said: X')
    }
    const braided = await client.responses.stream({ model: at('m-braid'), input: [{ role: 'user', content: 'shout' }], tools: [...rtools, { ...rtools[0], name: 'lower' }] }).finalResponse()
    assert.deepEqual(braided.output.filter((o) => o.type === 'function_call').map((o) => [o.name, JSON.parse(o.arguments)]), [['upper', { text: 'x' }], ['lower', { text: 'x' }]])
    let text = ''
    await assert.rejects(async () => {
      for await (const e of await client.responses.create({ model: at('m-cut'), input: 'one two three four', stream: true })) {
        if (e.type === 'response.output_text.delta') text += e.delta
        assert.notEqual(e.type, 'response.completed')
      }
    })
    assert.ok(text.startsWith('You said'))
    await assert.rejects(client.responses.create({ model: at('m-limited'), input: 'x' }), (e) => e.status === 429)
  } catch (e) {
    console.error('responses through', p)
    throw e
  }
}

// Stored responses are read and continued by id.
for (const model of ['anthropic/m-good', 'demo/echo', 'gemini/m-good']) {
  const one = await client.responses.create({ model, input: 'my name is Ada', instructions: 'be kind' })
  const again = await client.responses.retrieve(one.id)
  assert.deepEqual(again.output, one.output)
  const [said] = (await client.responses.inputItems.list(one.id)).data
  assert.deepEqual([said.type, said.role, said.content], ['message', 'user', [{ type: 'input_text', text: 'my name is Ada' }]])
  const two = await client.responses.create({ model, input: 'what is my name', previous_response_id: one.id })
  assert.equal(two.previous_response_id, one.id)
  let three
  for await (const e of await client.responses.create({ model, input: 'and again', previous_response_id: two.id, stream: true })) if (e.type === 'response.completed') three = e.response
  assert.ok((await client.responses.retrieve(three.id)).output.length > 0)
  const unstored = await client.responses.create({ model, input: 'x', store: false })
  await assert.rejects(client.responses.retrieve(unstored.id), (e) => e.status === 404)
}
await assert.rejects(client.responses.create({ model: 'anthropic/m-good', input: 'x', previous_response_id: 'resp_nobody' }), (e) => e.status === 404)
{ // input items: by page, in both orders
  const turns = ['one', 'two', 'three'].map((content, i) => ({ role: i % 2 ? 'assistant' : 'user', content }))
  const r = await client.responses.create({ model: 'demo/echo', input: turns })
  const texts = async (q) => { const out = []; for await (const it of client.responses.inputItems.list(r.id, q)) out.push(it.content[0].text); return out }
  assert.deepEqual(await texts({ order: 'asc', limit: 2 }), ['one', 'two', 'three'])
  assert.deepEqual(await texts({ limit: 1 }), ['three', 'two', 'one'])
  await assert.rejects(client.responses.inputItems.list(r.id, { limit: 0 }), (e) => e.status === 400 && e.param === 'limit')
  await assert.rejects(client.responses.inputItems.list('resp_nobody'), (e) => e.status === 404)
  // a deleted response cannot be read, continued or deleted again
  await client.responses.delete(r.id)
  for (const again of [() => client.responses.retrieve(r.id), () => client.responses.inputItems.list(r.id), () => client.responses.delete(r.id)]) {
    await assert.rejects(again(), (e) => e.status === 404)
  }
  await assert.rejects(client.responses.create({ model: 'demo/echo', input: 'on', previous_response_id: r.id }), (e) => e.status === 404)
}

// embeddings: numbers and base64 (the SDK's default), also translated
for (const model of ['openai/e-good', 'azure/e-good', 'vllm/e-good', 'gemini/e-good']) {
  const e = await client.embeddings.create({ model, input: 'hello' })
  assert.deepEqual(e.data[0].embedding, [0.25, -1, 3], model)
  const f = await client.embeddings.create({ model, input: ['hello'], encoding_format: 'float' })
  assert.deepEqual(f.data[0].embedding, [0.25, -1, 3], model)
}
await assert.rejects(client.embeddings.create({ model: 'anthropic/e', input: 'x' }), (e) => e.status === 400)

// completions
const done = await client.completions.create({ model: 'vllm/m-good', prompt: 'hello' })
assert.equal(done.choices[0].text, 'You said: hello')
let text = ''
for await (const c of await client.completions.create({ model: 'vllm/m-good', prompt: 'hello', stream: true })) text += c.choices[0].text
assert.equal(text, 'You said: hello')

// models: those configured and those that providers list
const ids = (await client.models.list()).data.map((m) => m.id)
for (const id of ['demo/echo', 'vllm/local', 'openai/listed-live', 'anthropic/claude-listed', 'gemini/gemini-listed']) assert.ok(ids.includes(id), `${id} not in ${ids}`)
assert.equal((await client.models.retrieve('vllm/local')).id, 'vllm/local')
await assert.rejects(client.models.retrieve('vllm/none'), (e) => e.status === 404)
console.log('openai matrix ok')
