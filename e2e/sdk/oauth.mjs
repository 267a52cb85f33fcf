// An unmodified MCP client (the official TypeScript SDK) that logs in by OAuth: it reads the metadata
// that the challenge of /mcp names, identifies itself as OAUTH_CLIENT says (register, the URL of a
// client ID metadata document, or a client_id), and prints the URL that the person opens. It then
// calls a tool, renews its tokens and calls it again.
import assert from 'node:assert/strict'
import http from 'node:http'
import { auth } from '@modelcontextprotocol/sdk/client/auth.js'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'

const server = http.createServer()
await new Promise((done) => server.listen(0, '127.0.0.1', done))
const redirectUrl = `http://127.0.0.1:${server.address().port}/callback`
const returned = new Promise((done) => server.on('request', (q, r) => {
  r.end('done')
  done(new URL(q.url, redirectUrl).searchParams)
}))

const who = process.env.OAUTH_CLIENT
const state = crypto.randomUUID()
const stored = who === 'register' || who.startsWith('https:') ? {} : { client: { client_id: who } }
const provider = {
  redirectUrl,
  clientMetadata: { client_name: 'sdk test', redirect_uris: [redirectUrl], grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'], token_endpoint_auth_method: 'none' },
  clientMetadataUrl: who.startsWith('https:') ? who : undefined,
  state: () => state,
  clientInformation: () => stored.client,
  saveClientInformation: (x) => { stored.client = x },
  tokens: () => stored.tokens,
  saveTokens: (x) => { stored.tokens = x },
  saveCodeVerifier: (x) => { stored.verifier = x },
  codeVerifier: () => stored.verifier,
  redirectToAuthorization: (url) => console.log(url.href),
}
const at = new URL(process.env.URL + '/mcp')
const first = new StreamableHTTPClientTransport(at, { authProvider: provider })
await assert.rejects(new Client({ name: 'sdk-test', version: '1.0.0' }).connect(first), { name: 'Error', constructor: { name: 'UnauthorizedError' } }).catch((e) => { if (e.actual?.constructor?.name !== 'UnauthorizedError') throw e })

const got = await returned
assert.equal(got.get('state'), state)
assert.equal(got.get('iss'), process.env.URL)
await first.finishAuth(got.get('code'))

async function call() {
  const client = new Client({ name: 'sdk-test', version: '1.0.0' })
  await client.connect(new StreamableHTTPClientTransport(at, { authProvider: provider }))
  const r = await client.callTool({ name: 'noop', arguments: {} })
  assert.ok(!r.isError, JSON.stringify(r))
  await client.close()
}
await call()
const before = stored.tokens.access_token
assert.equal(await auth(provider, { serverUrl: at }), 'AUTHORIZED') // renews the tokens
assert.notEqual(stored.tokens.access_token, before)
await call()
console.log(JSON.stringify({ access: stored.tokens.access_token, scope: stored.tokens.scope }))
server.close()
process.exit(0)
