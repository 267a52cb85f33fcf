// Uses a mesh by a client that @hey-api/openapi-ts has generated. It exits with an error
// at the first answer that is not as expected. TestClients compiles it with strict types
// and runs it.
import assert from 'node:assert/strict'
import { createClient, createConfig } from './client/client'
import * as mesh from './client'

const { URL: baseUrl = '', TOKEN = '', APPROVER = '' } = process.env
const bearer = (auth: string) => createClient(createConfig({ baseUrl, auth }))
const client = bearer(TOKEN)
const approver = bearer(APPROVER)

// done returns the answer of an operation that succeeded.
function done<T>(r: { data?: T; error?: unknown }): NonNullable<T> {
  assert.ok(r.data !== undefined, JSON.stringify(r.error))
  return r.data as NonNullable<T>
}

async function main() {
  const session = 's-ts-client'
  const headers = { 'X-Binnacle-Session': session }

  const version: mesh.BuildInfo = done(await mesh.getVersion({ client }))
  assert.match(version.go_version, /^go1/)

  // A call, and its state.
  const made = done(await mesh.createCall({ client, headers, body: { kind: 'tool.cmd.upper', args: { text: 'ahoy' } } }))
  assert.ok('receipt_id' in made && 'instance' in made)
  assert.deepEqual(made.output, { text: 'AHOY' })
  assert.equal(made.session, session)
  const state: mesh.CallState = done(await mesh.getCall({ client, path: { id: made.call_id } }))
  assert.equal(state.status, 'succeeded')
  assert.equal(state.verdict, 'ALLOW')
  done(await mesh.runPack({ client, headers, path: { name: 'cmd.upper' }, body: { text: 'b' } }))
  const packs: mesh.Pack[] = done(await mesh.listPacks({ client }))
  assert.ok(packs.some((p) => p.name === 'cmd.upper'))

  // Errors have types.
  const wrong = await mesh.createCall({ client, headers, body: { kind: 'tool.cmd.upper', args: { text: 5 } } })
  const error: mesh.ErrorBody | undefined = wrong.error
  assert.equal(wrong.response?.status, 400)
  assert.equal(error?.error.pointer, '/args/text')
  assert.equal(error?.error.reason_code, 'SCHEMA_VIOLATION')
  const denied = await mesh.runPack({ client, path: { name: 'no-such' }, body: {} })
  assert.equal(denied.error?.error.reason_code, 'UNKNOWN_TOOL')
  const unknown = await mesh.listKeys({ client: bearer('nonsense') })
  assert.equal(unknown.error?.error.type, 'authentication_error')

  // Keys.
  const key = done(await mesh.createKey({ client, body: { id: 'ts-client', scopes: ['llm:call'], tags: ['ts'] } }))
  assert.ok(key.key)
  const keys: mesh.VirtualKey[] = done(await mesh.listKeys({ client }))
  assert.deepEqual(keys.find((k) => k.id === 'ts-client')?.scopes, ['llm:call'])

  // A call that waits for people.
  const waits = done(await mesh.createCall({ client, headers: { Prefer: 'respond-async' }, body: { kind: 'policy.register_principal', args: { principal: 'ts-client', type: 'person' } } }))
  assert.ok('status' in waits)
  assert.equal(waits.status, 'pending_approval')
  const call = waits.call_id
  assert.deepEqual(done(await mesh.listApprovals({ client: approver })).map((a) => a.call_id), [call])
  const one: mesh.PendingCall = done(await mesh.getApproval({ client: approver, path: { call } }))
  assert.equal(one.args?.principal, 'ts-client')
  done(await mesh.vote({ client: approver, path: { call }, body: { vote: 'grant', reason: 'by a generated client' } }))

  // The ledger.
  const receipts: mesh.Receipt[] = done(await mesh.listSessionReceipts({ client, path: { id: session } }))
  assert.equal(receipts.length, 3)
  const receipt = done(await mesh.getReceipt({ client, path: { hash: receipts[1]!.prev } }))
  assert.equal(receipt.call_id, made.call_id)
  const lines = done(await mesh.listReceipts({ client, query: { session }, parseAs: 'text' }))
  const last: mesh.Receipt = JSON.parse(lines.trimEnd().split('\n').at(-1)!)
  assert.equal(last.status, 'denied')
  const pack = done(await mesh.getEvidence({ client, path: { id: session }, parseAs: 'blob' }))
  const verified = done(await mesh.verifyEvidence({ client, body: pack, bodySerializer: null, headers: { 'Content-Type': 'application/x-tar' } }))
  assert.equal(verified.verdict, 'PASS', JSON.stringify(verified))
  assert.equal(verified.report?.receipts, 3)

  // What governs.
  const policies: mesh.PolicyDocument[] = done(await mesh.listPolicies({ client }))
  assert.ok(policies.some((p) => p.layer === 'p1'))
  const limits: mesh.LimitsState = done(await mesh.getLimits({ client }))
  assert.ok(Array.isArray(limits.limits))
  assert.ok(done(await mesh.listTrustKeys({ client })).length > 3)
  console.log('typescript client: done')
}

main().catch((e) => {
  console.error(e)
  process.exit(1)
})
