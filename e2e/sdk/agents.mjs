// The package @binnacle/agents against the mesh, without a framework: decisions, approvals,
// receipts, streams, failures, and a mesh that is away.
import assert from 'node:assert/strict'
import { Denied, Mesh, MeshError } from '@binnacle/agents'

const receipts = []
const mesh = new Mesh({
  agent: 'test', session: 's-agents-core', wait: 0, onReceipt: (r) => receipts.push(r.status),
  kinds: (tool, input) => tool === 'search' ? { kind: 'client.web.search', args: { query: input } } : undefined,
})

// A function, with the decision and the receipt as values.
const { output, decision, receipt } = await mesh.run({ tool: 'add', input: { a: 1, b: 2 } }, () => 3)
assert.deepEqual([output, decision.verdict, receipt.status, receipt.attestedBy, receipt.receiptId], [3, 'ALLOW', 'succeeded', 'caller', decision.receiptId])
assert.equal(decision.signed.intent.args_digest, decision.argsDigest)
assert.equal(await mesh.wrap('twice', (n) => 2 * n)(4), 8)

// A stream: the items pass as they come, and the receipt follows the last one.
async function* items() { yield 1; yield 2 }
const seen = []
for await (const n of mesh.stream({ tool: 'items', input: {} }, items)) { seen.push(n, receipts.length) }
assert.deepEqual(seen, [1, 2, 2, 2])
assert.equal(receipts.length, 3)
for await (const n of (await mesh.run({ tool: 'items', input: {} }, items)).output) if (n === 1) break
assert.equal(receipts.at(-1), 'cancelled')

// A failure is recorded without its text, and thrown unchanged.
const failure = new TypeError('the text of a secret file')
await assert.rejects(mesh.run({ tool: 'fail', input: {} }, () => { throw failure }), (e) => e === failure)
assert.equal(receipts.at(-1), 'failed')

// An input that changes between the decision and the call does not run.
const input = { path: 'a' }
const sly = new Mesh({ session: 's-agents-core', onDecision: () => { input.path = 'b' } })
await assert.rejects(sly.run({ tool: 'delete', input }, () => assert.fail('ran')), (e) => e.code === 'input_changed')

// A call that needs an approval is denied with its id at the end of the wait, and runs after
// the approval.
const pending = await mesh.decide({ tool: 'search', input: 'ships' })
assert.equal(pending.verdict, 'ESCALATE')
await assert.rejects(mesh.run({ tool: 'search', input: 'ships' }, () => assert.fail('ran')), (e) => e instanceof Denied && e.message.includes(e.decision.callId))
const waiting = mesh.with({ wait: 120_000 }).run({ tool: 'search', input: 'islands' }, () => 'found')
const headers = { Authorization: 'Bearer ' + process.env.APPROVER, 'Content-Type': 'application/json' }
let done = false
void waiting.finally(() => { done = true })
while (!done) {
  const calls = await (await fetch(process.env.URL + '/api/v1/approvals', { headers })).json()
  for (const { call_id } of calls.filter((c) => c.kind === "client.web.search" && c.actor === decision.signed.actor)) {
    await fetch(`${process.env.URL}/api/v1/approvals/${call_id}/votes`, { method: 'POST', headers, body: '{"vote":"grant","reason":"seen"}' })
  }
  await new Promise((next) => setTimeout(next, 200))
}
assert.equal((await waiting).output, 'found')

// Without a decision nothing runs.
const never = () => assert.fail('ran')
await assert.rejects(new Mesh({ url: 'http://127.0.0.1:9' }).run({ tool: 'x', input: {} }, never), (e) => e instanceof MeshError && e.code === 'mesh_away')
await assert.rejects(new Mesh({ token: 'wrong' }).run({ tool: 'x', input: {} }, never), (e) => e instanceof MeshError && e.status === 401)
await assert.rejects(new Mesh({ fetch: async () => new Response('<html>', { status: 200 }) }).run({ tool: 'x', input: {} }, never), (e) => e.code === 'mesh_away')
await assert.rejects(new Mesh({ fetch: async () => new Response('{}', { status: 200 }) }).run({ tool: 'x', input: {} }, never), MeshError)
await assert.rejects(mesh.run({ tool: 'x', input: {} }, never, AbortSignal.abort()), { name: 'AbortError' })

// A lost response is repeated under the same key, and the call is decided once.
let lost = 0
const flaky = new Mesh({ session: 's-agents-core', fetch: async (url, init) => { const r = await fetch(url, init); if (lost++ % 2 === 0) throw new TypeError('lost'); return r } })
const again = await flaky.run({ tool: 'again', input: {} }, () => 'once')
assert.deepEqual([again.output, again.receipt.status], ['once', 'succeeded'])

// An outcome that cannot be recorded does not fail the tool, which has run.
let reason
const deaf = new Mesh({ onUnreported: (e) => { reason = e }, fetch: async (url, init) => String(url).endsWith('/outcome') ? new Response('{"error":{"message":"no","code":"x"}}', { status: 400 }) : fetch(url, init) })
assert.equal((await deaf.run({ tool: 'deaf', input: {} }, () => 'ran')).output, 'ran')
assert.ok(reason instanceof MeshError)
console.log('agents ok', decision.sessionId)
