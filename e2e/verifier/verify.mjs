// A second verifier of evidence packs, exported ledgers, archives and exports of tenants,
// written from docs/reference/ledger-format.md with nothing but Node's standard library.
// Usage: node verify.mjs --root k-… file…       (prints one JSON document each; an
//        archive is given by its folder)
//        node verify.mjs --root k-… --stdin     (files one after the other, each
//        behind its length as 4 bytes, big endian)
import { createHash, createPublicKey, verify as cryptoVerify } from 'node:crypto'
import { readFileSync, readdirSync, statSync } from 'node:fs'
import { basename, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { gunzipSync } from 'node:zlib'

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
const sha = (...parts) => { const h = createHash('sha256'); for (const p of parts) h.update(p); return h.digest() }
const digest = (b) => 'sha256:' + sha(b).toString('hex')
const fail = (what) => { throw new Error(what) }
const need = (ok, what) => { if (!ok) fail(what) }

// --- canonical JSON (RFC 8785) -------------------------------------------

const lone = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/
const quoted = (s) => { need(!lone.test(s), 'json: lone surrogate'); return JSON.stringify(s) }

export function canonical(v) {
  if (Array.isArray(v)) return '[' + v.map(canonical).join(',') + ']'
  if (v && typeof v === 'object') return '{' + Object.keys(v).sort().map((k) => quoted(k) + ':' + canonical(v[k])).join(',') + '}'
  return typeof v === 'string' ? quoted(v) : JSON.stringify(v)
}

// shallow refuses JSON that is nested deeper than 128, before recursive functions read it.
function shallow(bytes, what) {
  let depth = 0, inside = false
  for (let i = 0; i < bytes.length; i++) {
    const b = bytes[i]
    if (inside) {
      if (b === 0x5c) i++
      else if (b === 0x22) inside = false
    } else if (b === 0x22) inside = true
    else if (b === 0x5b || b === 0x7b) need(++depth <= 128, `${what}: nesting deeper than 128`)
    else if (b === 0x5d || b === 0x7d) depth--
  }
}

// read parses bytes, which must be canonical JSON.
function read(bytes, what) {
  let v
  shallow(bytes, what)
  try { v = JSON.parse(utf8.decode(bytes)) } catch (e) { fail(`${what}: ${e.message}`) }
  need(Buffer.from(canonical(v)).equals(bytes), `${what}: not in canonical form`)
  return v
}

// shape checks the members of a document. Those marked "?" are optional, and must not be empty or
// 0 if present. The type of a member is s(tring), i(nteger), b(oolean, which can only be true),
// o(bject), l(ist of strings), or a function that checks it.
function shape(doc, what, members) {
  need(doc && typeof doc === 'object' && !Array.isArray(doc), `${what}: not an object`)
  for (const k of Object.keys(doc)) need(Object.hasOwn(members, k), `${what}: member ${k} is unknown`)
  for (const [k, t0] of Object.entries(members)) {
    const optional = typeof t0 === 'string' ? t0.endsWith('?') : t0.optional
    if (!Object.hasOwn(doc, k)) { need(optional, `${what}: member ${k} is missing`); continue }
    const v = doc[k]
    if (typeof t0 !== 'string') { t0(v, `${what}.${k}`); continue }
    const t = t0[0]
    const fits = { s: typeof v === 'string', i: Number.isSafeInteger(v), b: v === true, o: v !== null && typeof v === 'object' && !Array.isArray(v),
      l: Array.isArray(v) && v.every((x) => typeof x === 'string') }[t]
    need(fits, `${what}: member ${k} has the wrong type`)
    if (optional) need(!(v === '' || v === 0 || (t === 'l' && v.length === 0)), `${what}: empty optional member ${k}`)
  }
}
const of = (members) => (v, what) => shape(v, what, members)
const opt = (f) => Object.assign((v, what) => f(v, what), { optional: true })
const list = (members) => opt((v, what) => { need(Array.isArray(v) && v.length > 0, `${what}: empty optional list`); v.forEach((x, i) => shape(x, `${what}[${i}]`, members)) })

// --- schemas of events (JSON Schema, the subset that events use) -----------

const schemas = new Map()
const folder = new URL('../../schemas/events/', import.meta.url)
for (const owner of readdirSync(folder)) for (const file of readdirSync(new URL(owner, folder))) {
  const doc = JSON.parse(readFileSync(new URL(`${owner}/${file}`, folder)))
  schemas.set(doc.$id, doc)
}

// fits checks a value against a schema. An optional member must not be empty, 0 or false.
function fits(v, schema, what) {
  const at = (ok, why) => { if (!ok) fail(`${what}: ${why}`) }
  switch (schema.type) {
    case 'object':
      at(v !== null && typeof v === 'object' && !Array.isArray(v), 'not an object')
      if (!schema.properties) return
      for (const k of Object.keys(v)) at(Object.hasOwn(schema.properties, k), `member ${k} is not in the schema`)
      for (const k of schema.required ?? []) at(Object.hasOwn(v, k), `member ${k} is missing`)
      for (const k of Object.keys(v)) {
        const x = v[k]
        if (!schema.required?.includes(k)) at(!(x === '' || x === 0 || x === false || (Array.isArray(x) && x.length === 0)), `empty optional member ${k}`)
        fits(x, schema.properties[k], `${what}.${k}`)
      }
      return
    case 'array':
      at(Array.isArray(v), 'not an array')
      v.forEach((x, i) => fits(x, schema.items, `${what}[${i}]`))
      return
    case 'integer':
      at(Number.isSafeInteger(v) && v >= (schema.minimum ?? -Infinity), 'not an integer in range')
      return
    case 'boolean':
      at(typeof v === 'boolean', 'not a boolean')
      return
    default:
      at(typeof v === 'string' && (!schema.enum || schema.enum.includes(v)) && (!schema.pattern || new RegExp(schema.pattern, 'u').test(v)), 'not a string of the schema')
  }
}

// --- signatures ----------------------------------------------------------

const b64 = (s, what) => { const b = Buffer.from(s, 'base64'); need(b.toString('base64') === s, `${what}: not base64`); return b }
const kidOf = (pub) => 'k-' + sha(pub).toString('hex').slice(0, 32)
const keyObject = (pub) => createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x: pub.toString('base64url') }, format: 'jwk' })
const ed25519 = (pub, message, sig) => sig.length === 64 && cryptoVerify(null, message, keyObject(pub), sig)
// assertion verifies the signature of a registered passkey over a challenge (Web Authentication
// Level 3, section 7.2), on the page's origin at which it was registered.
function assertion(key, challenge, a, at) {
  const raw = (s, what) => { const b = Buffer.from(s, 'base64url'); if (b.toString('base64url') !== s) at(`${what}: not base64url`); return b }
  const client = raw(a.client_data, 'client_data'), data = raw(a.authenticator_data, 'authenticator_data')
  let c
  try { c = JSON.parse(utf8.decode(client)) } catch { at('client_data: not JSON') }
  if (a.credential_id !== key.id || c?.type !== 'webauthn.get' || c.challenge !== challenge.toString('base64url') || c.origin !== key.origin || c.crossOrigin !== undefined && c.crossOrigin !== false || c.topOrigin !== undefined) at('client_data: of another vote, passkey or page')
  if (data.length < 37 || !data.subarray(0, 32).equals(sha(Buffer.from(key.rp_id))) || (data[32] & 5) !== 5) at('authenticator_data: of another host, or the device did not verify the person')
  const pub = createPublicKey({ key: b64(key.public_key, 'public_key'), format: 'der', type: 'spki' }), plain = pub.asymmetricKeyType === 'ed25519'
  if (!cryptoVerify(plain ? null : 'sha256', Buffer.concat([data, sha(client)]), pub, raw(a.signature, 'signature'))) at('the signature of the passkey does not verify')
}
const unsigned = (doc) => { const { sig, ...rest } = doc; return rest }
const signed = (pub, domain, doc) => typeof doc.sig === 'string' && ed25519(pub, Buffer.from(domain + '\n' + canonical(unsigned(doc))), b64(doc.sig, 'sig'))

// ownerOf returns the owner of a key; the names of approvers and of signers of bundles are
// qualified by their tenant.
const ownerOf = (k) => k.owner.replace(/^(approver|bundle):/, (all) => `${all}${k.tenant}/`)

class Registry {
  constructor(root) { this.root = root; this.keys = new Map() }
  apply(k, lamport) {
    const bad = (what) => fail(`trust: key ${k.kid}: ${what}`)
    const pub = b64(k.public_key, 'public_key')
    if (pub.length !== 32 || kidOf(pub) !== k.kid) bad('id does not belong to the public key')
    let root = pub
    if (k.signer_kid !== this.root || k.kid !== this.root || this.keys.has(this.root)) root = this.at(k.signer_kid, 'provision', 'root', lamport)
    if (!signed(root, 'binnacle trust v1', k)) bad('signature does not verify')
    const old = this.keys.get(k.kid)
    if (k.revoked) {
      if (!old) bad('revoked before it was published')
      if (old.owner !== ownerOf(k)) bad('revoked as the key of another owner or tenant')
      if (old.owner === 'provision' && old.uses.includes('root') && [...this.keys.values()].filter((x) => x.owner === 'provision' && x.uses.includes('root') && x.since <= lamport && !(x.revoked && x.revoked <= lamport)).length < 2) bad('the last root cannot be revoked')
      old.revoked ||= lamport
    } else {
      if (old) bad('published twice')
      this.keys.set(k.kid, { pub, owner: ownerOf(k), uses: k.uses, since: lamport, revoked: 0 })
    }
  }
  at(kid, owner, use, lamport) {
    const k = this.keys.get(kid)
    need(k && k.owner === owner && k.uses.includes(use) && lamport >= k.since && !(k.revoked && lamport >= k.revoked), `key ${kid} was not ${owner}'s for ${use} at lamport ${lamport}`)
    return k.pub
  }
}

// --- tar -----------------------------------------------------------------

function header(path, size) {
  const h = Buffer.alloc(512)
  const octal = (n, width) => n.toString(8).padStart(width, '0') + '\0'
  h.write(path, 0)
  h.write(octal(0o644, 7), 100); h.write(octal(0, 7), 108); h.write(octal(0, 7), 116); h.write(octal(size, 11), 124); h.write(octal(0, 11), 136)
  h.write('        ', 148); h.write('0', 156); h.write('ustar\x0000', 257); h.write(octal(0, 7), 329); h.write(octal(0, 7), 337)
  let sum = 0
  for (const b of h) sum += b
  h.write(sum.toString(8).padStart(6, '0') + '\0 ', 148)
  return h
}

function untar(pack) {
  const files = new Map()
  let at = 0, last = null
  while (at + 512 <= pack.length && pack[at] !== 0) {
    const end = pack.indexOf(0, at)
    const path = utf8.decode(pack.subarray(at, Math.min(end, at + 100)))
    const size = parseInt(pack.subarray(at + 124, at + 135).toString('latin1'), 8)
    need(Number.isSafeInteger(size) && size >= 0 && at + 512 + size <= pack.length, 'tar: size')
    need(pack.subarray(at, at + 512).equals(header(path, size)), `tar: header of ${path} is not the deterministic form`)
    need(last === null || Buffer.compare(Buffer.from(last), Buffer.from(path)) < 0, 'tar: not sorted')
    const body = pack.subarray(at + 512, at + 512 + size)
    const next = at + 512 + Math.ceil(size / 512) * 512
    need(pack.subarray(at + 512 + size, next).every((b) => b === 0), 'tar: padding')
    files.set(path, body)
    last = path; at = next
  }
  need(pack.length === at + 1024 && pack.subarray(at).every((b) => b === 0), 'tar: end')
  return files
}

const lines = (b, what) => {
  if (!b || b.length === 0) return []
  need(b[b.length - 1] === 10, `${what}: last line has no newline`)
  const out = []
  for (let at = 0; at < b.length;) { const end = b.indexOf(10, at); out.push(b.subarray(at, end)); at = end + 1 }
  return out
}

// --- events --------------------------------------------------------------

const token = /^[A-Za-z0-9_-]{1,128}$/
const time = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/
const envelope = { actor: 's', callid: 's?', causationid: 's?', client: 's', correlationid: 's?', data: 'o', datacontenttype: 's', dataschema: 's', id: 's', lamport: 's', origin: 's', session: 's?', source: 's', specversion: 's', subject: 's', target: 's?',
  tenant: 's', time: 's', traceparent: 's?', type: 's' }
const shared = new Set([...schemas.keys()].map((id) => id.split(':')).filter(([, , , owner]) => owner === 'mesh').map(([, , , , name]) => name))

function event(bytes) {
  const e = read(bytes, 'event')
  shape(e, 'event', envelope)
  const [service, instance, more] = e.source.split('/')
  const m = /^dev\.binnacle\.([^.]+)\.([^.]+)\.v([1-9]\d*)$/.exec(e.type)
  need(m && m[1] === service && instance && more === undefined, `event ${e.id}: type does not belong to source`)
  const name = m[2]
  need([e.tenant, service, instance, e.origin, e.subject, name, ...(e.target ? [e.target] : [])].every((t) => token.test(t)), `event ${e.id}: a token`)
  need(e.dataschema === `urn:binnacle:event:${shared.has(name) ? 'mesh' : service}:${name}:v${m[3]}` && e.datacontenttype === 'application/json' && e.specversion === '1.0', `event ${e.id}: schema`)
  need(/^[1-9]\d*$/.test(e.lamport) && Number.isSafeInteger(Number(e.lamport)) && e.id !== '' && e.actor !== '' && e.client !== '', `event ${e.id}: attributes`)
  need(time.test(e.time) && new Date(e.time).toISOString() === e.time, `event ${e.id}: time`)
  const schema = schemas.get(e.dataschema)
  need(schema, `event ${e.id}: schema ${e.dataschema} is not known`)
  fits(e.data, schema, `event ${e.id}: data`)
  return { ...e, service, name, n: Number(e.lamport), bytes }
}

const kinds = { __proto__: null, call_proposed: 'INTENT', secret_requested: 'INTENT', effect_started: 'EFFECT', effect_recorded: 'EFFECT', key_published: 'TRUST_EVENT', key_revoked: 'TRUST_EVENT', log_epoch_opened: 'TRUST_EVENT', policy_activated: 'TRUST_EVENT' }

// sorted returns the distinct nonempty ids, sorted by their bytes.
const sorted = (ids) => [...new Set(ids.filter(Boolean))].map((id) => Buffer.from(id)).sort(Buffer.compare).map(String)

// contentsOf returns the contents that a call refers to.
const contentsOf = (c) => (c.body ? [c.args, c.body] : [c.args])

// open returns the bytes of a content, or null if the content is encrypted, or if its salt or its
// file is absent.
function open(c, files) {
  if (c.encryption) return null
  let salt, body
  if (c.store === 'inline') {
    if (!c.salt) return null
    salt = Buffer.from(c.salt, 'base64url')
    need(salt.length === 16 && salt.toString('base64url') === c.salt, 'content: salt')
    body = Buffer.from(c.text ?? '')
  } else {
    need(c.store === 'object' || c.store === 'withheld', 'content: store')
    const o = files.get('contents/' + c.commitment.replace(/^sha256:/, ''))
    if (!o) return null
    need(o.length >= 16, 'content: shorter than its salt')
    salt = o.subarray(0, 16); body = o.subarray(16)
  }
  need('sha256:' + sha(salt, body).toString('hex') === c.commitment, 'content does not match its commitment')
  need(body.length === c.size, 'content does not have its stated size')
  return body
}

// --- the log -------------------------------------------------------------

const leafOf = (bytes) => sha(Buffer.from([0]), bytes)

// rootOf computes the root of an inclusion proof (RFC 6962 section 2.1.1) as in RFC 9162 section
// 2.1.3.2.
function rootOf(leaf, index, size, path) {
  let fn = BigInt(index), sn = BigInt(size) - 1n, r = leaf
  need(fn <= sn, 'proof: index beyond the tree')
  for (const p of path) {
    need(sn > 0n, 'proof: too long')
    if ((fn & 1n) === 1n || fn === sn) {
      r = sha(Buffer.from([1]), p, r)
      if ((fn & 1n) === 0n) while (fn !== 0n && (fn & 1n) === 0n) { fn >>= 1n; sn >>= 1n }
    } else r = sha(Buffer.from([1]), r, p)
    fn >>= 1n; sn >>= 1n
  }
  need(sn === 0n, 'proof: too short')
  return r
}

// grows checks a consistency proof as in RFC 9162 section 2.1.4.2.
function grows(old, head, path) {
  const at = (ok) => need(ok, 'consistency.json: the log did not grow from there')
  if (old.size === head.size) return at(path.length === 0 && old.root.equals(head.root))
  let first = BigInt(old.size), p = [...path]
  if ((first & (first - 1n)) === 0n) p.unshift(old.root)
  at(p.length > 0)
  let fn = first - 1n, sn = BigInt(head.size) - 1n
  while (fn & 1n) { fn >>= 1n; sn >>= 1n }
  let fr = p[0], sr = p[0]
  for (const c of p.slice(1)) {
    at(sn !== 0n)
    if ((fn & 1n) || fn === sn) {
      fr = sha(Buffer.from([1]), c, fr); sr = sha(Buffer.from([1]), c, sr)
      if (!(fn & 1n)) while (fn !== 0n && !(fn & 1n)) { fn >>= 1n; sn >>= 1n }
    } else sr = sha(Buffer.from([1]), sr, c)
    fn >>= 1n; sn >>= 1n
  }
  at(sn === 0n && fr.equals(old.root) && sr.equals(head.root))
}

function note(bytes, pubs) {
  const all = utf8.decode(bytes)
  const cut = all.indexOf('\n\n')
  need(cut > 0, 'checkpoint: not a signed note')
  const text = all.slice(0, cut + 1), rows = text.slice(0, -1).split('\n')
  need(!/[\x00-\x09\x0b-\x1f\x7f]/.test(text), 'checkpoint: control characters')
  const origin = rows[0]
  const tail = all.slice(cut + 2)
  need(rows.length >= 3 && tail.startsWith(`— ${origin} `) && tail.endsWith('\n') && tail.indexOf('\n') === tail.length - 1, 'checkpoint: signature line')
  const sig = b64(tail.slice(`— ${origin} `.length, -1), 'checkpoint')
  need(pubs.some((pub) => {
    const id = sha(Buffer.from(origin + '\n'), Buffer.from([1]), pub).subarray(0, 4)
    return sig.subarray(0, 4).equals(id) && ed25519(pub, Buffer.from(text), sig.subarray(4))
  }), 'checkpoint: signature does not verify')
  need(/^(0|[1-9]\d*)$/.test(rows[1]) && Number.isSafeInteger(Number(rows[1])), 'checkpoint: size')
  const root = b64(rows[2], 'checkpoint root')
  need(root.length === 32, 'checkpoint: root')
  const lines = rows.slice(3).map((r) => { const at = r.indexOf(' '); return at < 0 ? [r, null] : [r.slice(0, at), r.slice(at + 1)] })
  const tipLines = lines.filter(([name]) => name === 'tips')
  need(tipLines.length <= 1, 'checkpoint: more than one line of tips')
  let tips = null
  if (tipLines.length === 1) {
    need(tipLines[0][1]?.startsWith('1 '), 'checkpoint: a version of the tips line that is not known')
    tips = b64(tipLines[0][1].slice(2), 'checkpoint tips')
    need(tips.length === 32, 'checkpoint: tips')
  }
  return { origin, text, size: Number(rows[1]), root, tips, lamport: lines.find(([name, value]) => name === 'lamport' && value !== null)?.[1], epoch: lines.find(([name, value]) => name === 'epoch' && value !== null)?.[1] ?? '' }
}

// lamportOf returns the lamport of a checkpoint, from its first lamport line.
function lamportOf(head) {
  need(/^[1-9]\d*$/.test(head.lamport ?? '') && Number.isSafeInteger(Number(head.lamport)), 'checkpoint: lamport line')
  return Number(head.lamport)
}

// --- the map of tips ---------------------------------------------------------

const bit = (key, depth) => (key[depth >> 3] >> (7 - (depth & 7))) & 1
const u64 = (n) => { const b = Buffer.alloc(8); b.writeBigUInt64BE(BigInt(n)); return b }

const tipKey = (tenant, session) => sha(Buffer.from(tenant), Buffer.from([0]), Buffer.from(session))
const tipLeaf = (key, tip, receipts, events) => sha(Buffer.from([2]), key, tip, u64(receipts), u64(events))

// tipRoot computes the root of the map of tips from the tip of a session and its path.
function tipRoot(tenant, session, tip, path) {
  const key = tipKey(tenant, session)
  need(path.length <= 256 && !(path.length > 0 && path[path.length - 1].every((b) => b === 0)), 'tip.json: path')
  let at = tipLeaf(key, tip.digest, tip.receipts, tip.events)
  for (let d = path.length - 1; d >= 0; d--) at = bit(key, d) ? sha(Buffer.from([3]), path[d], at) : sha(Buffer.from([3]), at, path[d])
  return at
}

function endOf(m, head, file, tip, events, receipts) {
  if (head.tips === null) {
    need(file === undefined, 'tip.json: the checkpoint commits to no map of tips')
    return "attested by audit's manifest only"
  }
  const p = read(file ?? fail('tip.json is missing'), 'tip.json')
  shape(p, 'tip.json', { events: 'i', path: 'l', receipts: 'i', tip_digest: 's' })
  need(/^sha256:[0-9a-f]{64}$/.test(p.tip_digest) && p.events >= 0 && p.receipts >= 0 && p.path.every((h) => /^[0-9a-f]{64}$/.test(h)), 'tip.json: not the tip of a session')
  const root = tipRoot(m.tenant, m.session, { digest: Buffer.from(p.tip_digest.slice(7), 'hex'), receipts: p.receipts, events: p.events }, p.path.map((h) => Buffer.from(h, 'hex')))
  need(root.equals(head.tips), "tip.json: the checkpoint's map of tips does not contain this tip")
  need(p.tip_digest === tip.digest && p.events === events && p.receipts === receipts, 'tip.json: the session goes on after what the pack holds')
  return 'bound by checkpoint'
}

// --- the cell, its keys and policies -----------------------------------------

const makers = { __proto__: null, cell_opened: 'provision', operator_delegated: 'provision', operator_withdrawn: 'provision', tenant_created: 'policy', tenant_quota_set: 'policy', tenant_resumed: 'policy', tenant_suspended: 'policy' }
const aboutTenant = new Set(['tenant_created', 'tenant_quota_set', 'tenant_resumed', 'tenant_suspended'])
const personal = (owner) => /^(approver|bundle):/.test(owner)
const part = /^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$/
const instant = (t) => time.test(t) && new Date(t).toISOString() === t

// System holds the keys, policies, tenants and operators that the system events establish, which
// are applied in ledger order. form is pack, ledger or export; tenant is that of a pack or export.
// first is the tenant in which the ledger began.
class System {
  constructor(root, form, tenant = '') {
    Object.assign(this, { form, tenant, reg: new Registry(root), policies: new Set(), first: '', opened: false, openedAt: 0, original: '', foreign: '', tenants: new Set(), budgets: new Set(), operators: new Map(), epochs: 1, delegated: [], changes: [], passkeys: new Map() })
  }
  get cell() { return this.opened ? '_cell' : this.first }
  // whole reports whether the input has every event of the cell.
  get whole() { return this.form === 'ledger' || this.form === 'export' && this.tenant === '_cell' }
  holder(tenant) {
    if (!this.opened || tenant === this.original) return ''
    return this.form !== 'ledger' || tenant === '_cell' || this.tenants.has(tenant) ? tenant : ''
  }
  activated(layer, digests, ...tenants) { return digests.split('+').every((d) => tenants.some((t) => this.policies.has(t + '/' + layer + d))) }
  // ofPack refuses an event of another tenant in a pack or export, if the cell is ever opened.
  ofPack(e) {
    if (this.tenant === '' || e.tenant === this.tenant) return
    this.foreign ||= `event ${e.id}: belongs to tenant ${e.tenant}`
    if (this.opened) fail(this.foreign)
  }
  end() {
    need(this.reg.keys.has(this.reg.root), 'the trusted root is not published here')
    if (this.opened && this.foreign) fail(this.foreign)
  }
  // everyTenants reports whether an event activates a policy for every tenant.
  everyTenants(e) { return e.data.layer === 'p0' || e.data.layer === 'p1' && (e.data.source === 'config' || e.type.endsWith('.v1') || e.tenant === '_cell') }

  apply(e, files) {
    if (e.service === 'provision' && (e.name === 'key_published' || e.name === 'key_revoked')) return this.key(e)
    if (e.service === 'policy' && e.name === 'policy_activated') return this.policy(e, files)
    if (e.service === 'policy' && e.name === 'passkey_registered') return this.passkey(e)
    need(makers[e.name] === e.service && (this.form !== 'pack' || e.name === 'cell_opened'), `event ${e.id}: ${e.type} is not a system event`)
    need(this.first === '' || e.tenant === this.cell, `event ${e.id}: is not in the cell's tenant`)
    need(this.opened !== (e.name === 'cell_opened'), `event ${e.id}: the cell is already opened, or not opened yet`)
    if (e.name === 'cell_opened') this.open(e)
    else if (e.service === 'provision') this.operator(e)
    else this.aboutTenant(e)
  }
  key(e) {
    need(!!e.data.revoked === (e.name === 'key_revoked') && e.data.tenant === e.tenant, `event ${e.id}: its document does not match its name or its tenant`)
    if (personal(e.data.owner)) this.ofPack(e)
    else need(this.cell === '' || e.tenant === this.cell, `event ${e.id}: is not in the cell's tenant`)
    this.reg.apply(e.data, e.n)
    if (e.name === 'key_published') this.first ||= e.tenant
  }
  policy(e, files) {
    const body = open(e.data.bundle, files), policy = e.data.layer + e.data.digest
    need(body === null || digest(body) === e.data.digest, `policy ${e.data.digest}: bundle does not match its digest`)
    if (!this.opened) {
      this.policies.add('/' + policy)
      if (this.everyTenants(e) || e.tenant === '_cell') this.policies.add('_cell/' + policy)
      else this.ofPack(e)
    } else if (e.tenant === '_cell') this.policies.add('_cell/' + policy)
    else {
      if (e.data.layer !== 'p0') this.policies.add(this.holder(e.tenant) + '/' + policy) // a ceiling of a tenant is not in force
      this.ofPack(e)
    }
  }
  // passkey adds a passkey; the first registration of a credential in a tenant counts. Removals
  // are not taken into account, because an instance of policy may not have read one.
  passkey(e) {
    const d = e.data, at = e.tenant + '/' + d.id
    let pub
    try { pub = createPublicKey({ key: b64(d.public_key, 'public_key'), format: 'der', type: 'spki' }) } catch { fail(`event ${e.id}: public_key`) }
    const bits = pub.asymmetricKeyDetails?.modulusLength ?? 0
    need(pub.asymmetricKeyType === 'ed25519' || pub.asymmetricKeyType === 'ec' && pub.asymmetricKeyDetails.namedCurve === 'prime256v1' || pub.asymmetricKeyType === 'rsa' && bits >= 2048 && bits <= 4096, `event ${e.id}: public_key`)
    need(/^[0-9a-f]{32}$/.test(d.aaguid) && d.name !== '' && Buffer.byteLength(d.name) <= 64 && d.rp_id !== '' && (d.origin.startsWith('https://') || d.rp_id === 'localhost'), `event ${e.id}: passkey`)
    const id = Buffer.from(d.id, 'base64url')
    need(id.toString('base64url') === d.id && id.length >= 16 && id.length <= 1023 && (d.sign_count ?? 0) <= 2 ** 32 - 1, `event ${e.id}: passkey`)
    if (!this.passkeys.has(at)) this.passkeys.set(at, { ...d, since: e.n })
    this.ofPack(e)
  }
  byRoot(e, domain) { need(signed(this.reg.at(e.data.signer_kid, 'provision', 'root', e.n), domain, e.data), `event ${e.id}: signature does not verify`) }
  open(e) {
    const d = e.data, reserved = d.tenant !== '' && (d.tenant.startsWith('_') || !token.test(d.tenant))
    need(d.cell === '_cell' && d.log === e.tenant && !reserved && (e.tenant === '_cell' || d.tenant === e.tenant), `event ${e.id}: names other tenants than the ledger's`)
    this.byRoot(e, 'binnacle cell v1')
    this.first = e.tenant; this.opened = true; this.original = d.tenant
    if (d.tenant) this.tenants.add(d.tenant)
  }
  operator(e) {
    const d = e.data
    need(instant(d.issued) && (!('not_after' in d) || instant(d.not_after)), `event ${e.id}: time`)
    need(!!d.withdrawn === (e.name === 'operator_withdrawn') && d.principal !== '' && d.issued > (this.operators.get(d.principal) ?? ''), `event ${e.id}: is not newer, or its document does not match its name`)
    this.byRoot(e, 'binnacle operator v1')
    this.operators.set(d.principal, d.issued)
  }
  aboutTenant(e) {
    const d = e.data
    if (e.name !== 'tenant_created') return need(this.tenants.has(d.tenant), `event ${e.id}: tenant ${d.tenant} does not exist`)
    const parts = [d.organization, d.project, d.environment]
    need(parts.every((x) => part.test(x)) && parts.join('_') === d.tenant, `event ${e.id}: tenant ${d.tenant} is not the id of its organization, project and environment`)
    need(d.organization !== this.original.split('_')[0] && !this.tenants.has(d.tenant), `event ${e.id}: tenant ${d.tenant} exists, or is of the original's organization`)
    this.tenants.add(d.tenant)
    this.budgets.add('_org-' + d.organization)
  }

  // take checks and applies the event on line n of a ledger or export.
  take(e, n) {
    if (this.form === 'export') this.admit(e)
    this.exists(e)
    if (this.whole && this.opened && e.tenant === '_cell' && e.service === 'policy' && (causes[e.name] || e.name === 'policy_activated' && e.causationid)) this.changes.push([n, e])
    if (e.name === 'log_epoch_opened') {
      need(e.service === 'provision' && e.data.tenant === e.tenant, `event ${e.id}: not the opening of a log epoch`)
      this.byRoot(e, 'binnacle log epoch v1')
      need(this.cell === '' || e.tenant === this.cell, `event ${e.id}: is not in the cell's tenant`)
      this.epochs = Math.max(this.epochs, e.data.epoch)
    } else if (['key_published', 'key_revoked', 'policy_activated', 'passkey_registered'].includes(e.name) || makers[e.name]) {
      this.apply(e, new Map())
      if (e.name === 'cell_opened') this.openedAt = n
      if (e.name === 'operator_delegated') this.delegated.push([n, e.data])
    }
  }
  exists(e) {
    if (!this.opened || e.tenant === '_cell' || this.tenants.has(e.tenant)) return
    need(this.budgets.has(e.tenant), `event ${e.id}: tenant ${e.tenant} does not exist`)
    need(e.service === 'policy' && !e.session && ['allotment_closed', 'allotment_recalled', 'allotment_returned', 'allotment_taken', 'budget_changed', 'limits_set'].includes(e.name), `event ${e.id}: tenant ${e.tenant} is for a budget ledger only`)
  }
  // admit refuses an event that is neither of the export's tenant nor one of the cell that an
  // export of that tenant contains.
  admit(e) {
    if (e.tenant === this.tenant) return
    const shared = { cell_opened: () => true, key_published: () => !personal(e.data.owner), key_revoked: () => !personal(e.data.owner), policy_activated: () => this.everyTenants(e) }[e.name] ?? (() => aboutTenant.has(e.name) && e.data.tenant === this.tenant)
    need((this.cell === '' || e.tenant === this.cell) && shared(), `event ${e.id}: belongs to tenant ${e.tenant}; this export is of ${this.tenant} and the cell`)
  }
  // origin checks that the checkpoint is of the log of this ledger, once the cell is open.
  origin(head) {
    if (!this.opened) return
    const log = `binnacle/${this.reg.root}/${this.first}`
    need(head.origin === log || head.origin.startsWith(log + '/epoch-') && /^([2-9]|[1-9]\d{1,15})$/.test(head.origin.slice(log.length + 7)), 'checkpoint: is of another log')
  }
  // auditors returns the public keys of audit that may sign checkpoints at the lamport.
  auditors(lamport) { return [...this.reg.keys.values()].filter((k) => k.owner === 'audit' && k.uses.includes('checkpoint') && k.since <= lamport && !(k.revoked && k.revoked <= lamport)).map((k) => k.pub) }
}

// --- the calls of a session --------------------------------------------------

// governs reports whether calls of a kind govern the whole mesh.
const governs = (kind) => kind.startsWith('tenant.') || kind === 'policy.freeze' || kind === 'policy.unfreeze'

// causes has, for each event that changes the whole mesh, the kind of the call that causes it.
const causes = { __proto__: null, tenant_created: 'tenant.create', tenant_quota_set: 'tenant.set_quota', tenant_resumed: 'tenant.resume', tenant_suspended: 'tenant.suspend', mesh_frozen: 'policy.freeze', mesh_unfrozen: 'policy.unfreeze' }

class Session {
  constructor(sys, tenant, id) {
    Object.assign(this, { sys, calls: new Map(), outside: new Set(), contents: [], decisions: [], receipts: [], events: 0, passkeys: 0, tip: { digest: digest(Buffer.from(`binnacle receipt genesis v1\n${tenant}\n${id}`)), index: 0 } })
  }
  get open() { return [...this.calls.values()].filter((c) => !c.recorded).length }
  get attested() { return this.receipts.filter((r) => r.attested_by === 'caller').length }

  judged(c, d) {
    const at = (what) => fail(`decision ${d.id}: ${what}`)
    if (!signed(this.sys.reg.at(d.kid, 'policy', 'decision', d.lamport), 'binnacle decision v1', d)) at('signature does not verify')
    if (digest(Buffer.from(canonical(d.facts))) !== d.facts_digest) at('facts')
    if (digest(Buffer.from(canonical({ args_digest: d.args_digest, facts_digest: d.facts_digest, policies: d.policies, reason_code: d.reason_code, verdict: d.verdict }))) !== d.policy_decision_hash) at('policy_decision_hash')
    if ((d.verdict === 'ALLOW') !== !!d.intent) at('an intent belongs to ALLOW and only to ALLOW')
    if (d.intent && (d.intent.call_id !== d.call_id || d.intent.args_digest !== d.args_digest || d.intent.kind !== d.kind || d.intent.tool !== d.tool)) at('intent is for another call')
    const p = c.proposed
    if (d.call_id !== p.data.id || d.args_digest !== p.data.args.commitment || d.kind !== p.data.kind || d.tool !== p.data.tool) at('is about another call')
    if (d.actor !== p.actor || d.client !== p.client || d.session !== (p.session ?? '') || d.tenant !== p.tenant) at('names another caller')
    if (d.intent && (d.intent.executor === 'gateway') !== (p.data.report_within_ms ?? 0) > 0) at("the intent's executor does not match the proposal")
    const t = this.sys.holder(d.tenant), denied = d.verdict === 'DENY'
    if (!denied && !(this.sys.activated('p0', d.policies.p0, '_cell') && this.sys.activated('p1', d.policies.p1, '_cell', t)) || d.policies.p2 && !this.sys.activated('p2', d.policies.p2, t, ...(denied ? [''] : []))) at('names a policy that was never activated')
    this.decisions.push(d)
    if (!c.escalated || d === c.escalated) return
    for (const v of d.facts.approvals ?? []) {
      const cast = c.votes.get(v.event_id)
      if (!cast || cast.approver !== v.approver || cast.vote !== v.vote || canonical(cast.roles ?? []) !== canonical(v.roles ?? []) || !!cast.passkey !== !!v.passkey) at('counts a vote that is not recorded')
    }
    if (d.verdict === 'ALLOW' && !c.settled) at('allowed before the escalation was settled')
  }

  // next checks and applies the next event of the session.
  next(e) {
    const at = (what) => fail(`event ${e.id} (${e.name}): ${what}`)
    this.events++
    const d = e.data
    let c = this.calls.get(e.callid)
    if (e.name === 'call_proposed') {
      if (c || d.id !== e.callid) at('proposed twice, or of another call')
      this.calls.set(e.callid, { proposed: e, votes: new Map() })
      this.contents.push(...contentsOf(d))
      return
    }
    if (!c) at('its call was never proposed')
    switch (e.name) {
      case 'escalated':
        if (e.service !== 'policy' || c.escalated || c.decision || c.recorded || d.decision.verdict !== 'ESCALATE' || canonical(d.call) !== canonical(c.proposed.data)) at('not the one escalation of this call')
        c.escalated = d.decision
        this.contents.push(...contentsOf(d.call))
        this.judged(c, d.decision)
        break
      case 'approval_recorded':
        if (e.service !== 'policy' || !c.escalated || c.settled || c.decision || c.recorded || d.call_id !== c.proposed.data.id) at('a vote on a call that does not wait for one')
        c.votes.set(e.id, d)
        c.settled = !!d.resolved
        if (d.passkey) {
          const key = this.sys.passkeys.get(c.escalated.tenant + '/' + d.passkey.credential_id)
          if (!key || e.n <= key.since || key.principal !== d.approver || d.sig || d.kid) at('not a passkey of the approver that was registered before')
          const ballot = { approver: d.approver, call_id: d.call_id, decision_digest: digest(Buffer.from(canonical(c.escalated))), kid: '', ...(d.reason ? { reason: d.reason } : {}), tenant: d.tenant, vote: d.vote }
          assertion(key, sha(Buffer.from('binnacle passkey vote v1\n' + canonical(ballot))), d.passkey, at)
          this.passkeys++
        } else if (d.sig || d.kid) {
          const ballot = { approver: d.approver, call_id: d.call_id, decision_digest: digest(Buffer.from(canonical(c.escalated))), kid: d.kid ?? '', ...(d.reason ? { reason: d.reason } : {}), tenant: d.tenant, vote: d.vote }
          const pub = this.sys.reg.at(d.kid ?? '', `approver:${c.escalated.tenant}/${d.approver}`, 'approval', e.n)
          if (!ed25519(pub, Buffer.from('binnacle approval v1\n' + canonical(ballot)), b64(d.sig ?? '', 'sig'))) at('the ballot does not verify')
        }
        break
      case 'allowed':
        if (e.service !== 'policy' || c.decision || c.recorded || canonical(d.call) !== canonical(c.proposed.data) || d.decision.verdict !== 'ALLOW' || d.decision.intent?.executor !== e.target) at('not the one decision on this call')
        c.decision = d.decision
        this.contents.push(...contentsOf(d.call))
        this.judged(c, d.decision)
        break
      case 'effect_started':
      case 'start_expired': {
        if (!c.decision || c.started || c.recorded) at('started without a decision, or twice')
        if (d.call_id !== c.proposed.data.id || d.decision_id !== c.decision.id || d.intent_id !== c.decision.intent.id) at('starts another call, decision or intent than the one allowed')
        if (e.service !== (e.name === 'start_expired' ? 'policy' : c.decision.intent.executor)) at('claimed by another')
        if ((d.executed_by ?? '') !== (e.service === 'gateway' ? 'caller' : '')) at("executed_by does not match the intent's executor")
        c.started = e
        break
      }
      case 'effect_recorded': {
        if (c.recorded || (d.decision && c.decision)) at('second outcome, or second decision')
        if (d.decision) this.judged(c, d.decision)
        const dec = d.decision ?? c.decision, r = d.receipt, f = d.effect
        if (!dec) at('no decision for it')
        if (r.id !== 'r-' + r.call_id || !signed(this.sys.reg.at(r.kid, r.executor, 'receipt', r.lamport), 'binnacle receipt v1', r)) at('receipt does not verify')
        const output = d.output?.commitment ?? ''
        if (r.effect_digest !== digest(Buffer.from(canonical(f))) || f.call_id !== r.call_id || f.status !== r.status || (f.output_digest ?? '') !== (r.output_digest ?? '') || (f.output_digest ?? '') !== output) at('effect and receipt disagree')
        if (r.decision_id !== dec.id || r.decision_digest !== digest(Buffer.from(canonical(dec))) || r.verdict !== dec.verdict || r.reason_code !== dec.reason_code || r.call_id !== dec.call_id || r.args_digest !== dec.args_digest || r.session !== dec.session ||
          r.tenant !== dec.tenant || f.tool !== dec.tool || f.input_digest !== dec.args_digest) at('decision and receipt disagree')
        const lent = r.executor === 'gateway', by = r.attested_by ?? ''
        if (by !== (f.attested_by ?? '') || (by === '' ? lent && !['unknown', 'cancelled'].includes(r.status) : by !== 'caller' || !lent || !['succeeded', 'failed', 'timed_out', 'cancelled'].includes(r.status))) at('attested_by does not match the executor and the status')
        if (!dec.intent) { if (r.executor !== 'policy' || r.status !== 'denied' || r.intent_id) at('a call that was not allowed can only end denied, by policy') } else {
          if (r.intent_id !== dec.intent.id) at('names another intent')
          if (r.status === 'expired' ? r.executor !== 'policy' : r.executor !== dec.intent.executor || r.status === 'denied') at('signed by another than the intent allows')
          if (!c.started || c.started.service !== e.service) at('outcome of an effect that its recorder did not claim')
        }
        if (e.service !== r.executor) at('published by another than signed it')
        if (r.prev !== this.tip.digest || r.index !== this.tip.index + 1) at('does not follow the chain')
        if (!dec.intent && dec.verdict !== 'DENY') at('denied, but its decision is not DENY')
        this.tip = { digest: digest(Buffer.from(canonical(r))), index: r.index }
        c.recorded = true
        this.receipts.push(r)
        if (d.output) this.contents.push(d.output)
        break
      }
    }
  }
}

// --- the pack ------------------------------------------------------------

const known = new Set(['checkpoint', 'consistency.json', 'cosignatures', 'decisions.jsonl', 'events.jsonl', 'leaves.jsonl', 'proofgraph.jsonl', 'proofs.jsonl', 'receipts.jsonl', 'system.jsonl', 'tip.json'])

export function verify(pack, rootKID) {
  const files = untar(pack)
  const get = (p) => files.get(p) ?? fail(`${p} is missing`)
  const m = read(get('manifest.json'), 'manifest.json')
  shape(m, 'manifest.json', { events: 'i', files: list({ path: 's', sha256: 's', size: 'i' }), format: 's', graph_digest: 's', kid: 's', lamport: 'i', origin: 's', receipts: 'i', root_hash: 's', session: 's', sig: 's?', tenant: 's', tip_digest: 's', tree_size: 'i' })
  const redactedFormat = m.format === 'binnacle-redacted-pack/v1'
  need(redactedFormat || m.format === 'binnacle-evidence-pack/v1', 'manifest.json: format')
  const rest = [...files.keys()].filter((p) => p !== 'manifest.json' && p !== 'attestation.dsse.json')
  need(canonical(m.files) === canonical(rest.map((p) => ({ path: p, sha256: sha(files.get(p)).toString('hex'), size: files.get(p).length }))), 'manifest.json: files')

  for (const p of rest) need(known.has(p) || p.startsWith('contents/'), `manifest.json: names ${p}, which no pack of this format has`)

  // Keys, policies and the cell.
  need(!m.tenant.startsWith('_org-'), 'manifest.json: a pack of a budget ledger')
  const sys = new System(rootKID, 'pack', m.tenant)
  const system = lines(get('system.jsonl'), 'system.jsonl')
  for (const bytes of system) sys.apply(event(bytes), files)
  sys.end()

  // The signatures of the manifest.
  const audit = sys.reg.at(m.kid, 'audit', 'manifest', m.lamport)
  need(signed(audit, 'binnacle evidence manifest v1', m), 'manifest.json: signature does not verify')
  const env = read(get('attestation.dsse.json'), 'attestation.dsse.json')
  const statement = canonical({ _type: 'https://in-toto.io/Statement/v1', predicate: { session: m.session, tenant: m.tenant, tip_digest: m.tip_digest, tree_size: m.tree_size }, predicateType: 'urn:binnacle:evidence-pack:v1',
    subject: [{ digest: { sha256: sha(files.get('manifest.json')).toString('hex') }, name: 'manifest.json' }] })
  const type = 'application/vnd.in-toto+json'
  const dsse = env.signatures?.[0]?.sig
  need(typeof dsse === 'string' && canonical(env) === canonical({ payload: Buffer.from(statement).toString('base64'), payloadType: type, signatures: [{ keyid: m.kid, sig: dsse }] }), 'attestation.dsse.json: not the statement about this manifest')
  need(ed25519(audit, Buffer.from(`DSSEv1 ${type.length} ${type} ${Buffer.byteLength(statement)} ${statement}`), b64(dsse, 'attestation')), 'attestation.dsse.json: signature does not verify')

  // The log.
  const pubs = sys.auditors(m.lamport)
  const head = note(get('checkpoint'), pubs)
  need(head.origin === m.origin && head.size === m.tree_size && head.root.toString('hex') === m.root_hash && lamportOf(head) === m.lamport, 'checkpoint: is not the one the manifest names')
  sys.origin(head)
  let grown = 0
  if (files.has('consistency.json')) {
    const g = read(files.get('consistency.json'), 'consistency.json')
    shape(g, 'consistency.json', { from: 's', path: 'l' })
    const old = note(Buffer.from(g.from), pubs)
    need(old.origin === head.origin && old.size > 0 && old.size <= head.size && g.path.every((h) => /^[0-9a-f]{64}$/.test(h)), 'consistency.json: not an earlier checkpoint of this log')
    need(old.tips === null || head.tips !== null, 'consistency.json: the log gave up its map of tips')
    grows(old, head, g.path.map((h) => Buffer.from(h, 'hex')))
    grown = old.size
  }
  const stored = lines(get('events.jsonl'), 'events.jsonl')
  const named = lines(files.get('leaves.jsonl'), 'leaves.jsonl').map((b) => { const r = read(b, 'leaves.jsonl'); shape(r, 'leaves.jsonl', { id: 's', leaf: 's' }); return r })
  need(redactedFormat === named.length > 0, 'leaves.jsonl: does not belong to the format')
  let redacted = 0
  const shown = stored.map((bytes) => {
    const r = named[redacted], e = r && event(bytes)
    if (!r || e.id !== r.id) return leafOf(bytes)
    const c = { call_proposed: () => contentsOf(e.data), allowed: () => contentsOf(e.data.call), escalated: () => contentsOf(e.data.call), effect_recorded: () => [e.data.output] }[e.name]?.() ?? []
    need(c.some((x) => x && x.store === 'inline' && !('salt' in x) && !x.encryption), `event ${e.id}: nothing is withheld from it`)
    need(/^[0-9a-f]{64}$/.test(r.leaf), 'leaves.jsonl: leaf')
    redacted++
    return Buffer.from(r.leaf, 'hex')
  })
  need(redacted === named.length, 'leaves.jsonl: names events that are not there')
  const leaves = [...system.map(leafOf), ...shown], proofs = lines(get('proofs.jsonl'), 'proofs.jsonl')
  need(proofs.length === leaves.length, 'proofs.jsonl: count')
  let before = -1
  proofs.forEach((bytes, i) => {
    const p = read(bytes, 'proofs.jsonl')
    shape(p, 'proofs.jsonl', { index: 'i', path: 'l' })
    if (i === system.length) before = -1
    need(p.index > before && p.path.every((h) => /^[0-9a-f]{64}$/.test(h)), 'proofs.jsonl: not in ledger order')
    before = p.index
    need(rootOf(leaves[i], p.index, head.size, p.path.map((h) => Buffer.from(h, 'hex'))).equals(head.root), `event ${i} is not in the log`)
  })

  // The calls.
  const events = stored.map(event), ids = new Set()
  const ballots = new Map(), nodes = [], course = new Session(sys, m.tenant, m.session)
  let previous = ''
  for (const e of events) {
    const at = (what) => fail(`event ${e.id} (${e.name}): ${what}`)
    if (e.tenant !== m.tenant || (e.session ?? '') !== m.session) at('belongs elsewhere')
    if (ids.has(e.id)) at('id occurs twice')
    ids.add(e.id)
    let kind = kinds[e.name] ?? 'ATTESTATION'
    const led = [e.causationid, e.name === 'effect_recorded' ? previous : '']
    if (head.tips !== null && e.name === 'approval_recorded') ballots.set(e.callid ?? '', [...(ballots.get(e.callid ?? '') ?? []), e.id])
    if (head.tips !== null && (e.name === 'allowed' || e.name === 'effect_recorded') && ballots.has(e.callid ?? '')) {
      led.push(...ballots.get(e.callid ?? ''))
      ballots.delete(e.callid ?? '')
      if (kind === 'ATTESTATION') kind = 'MERGE_DECISION'
    }
    nodes.push({ digest: digest(e.bytes), id: e.id, kind,
      lamport: e.n, name: e.name, parents: sorted(led), principal: e.service, session: e.session ?? '' })
    course.next(e)
    if (e.name === 'effect_recorded') previous = e.id
  }
  const { contents, decisions, receipts, tip } = course

  if (head.tips !== null) {
    const before = new Set(nodes.flatMap((n) => n.parents))
    nodes.push({ digest: digest(Buffer.from(head.text)), id: `checkpoint-${head.size}`, kind: 'CHECKPOINT', lamport: m.lamport + 1, name: 'checkpoint', parents: sorted(nodes.map((n) => n.id).filter((id) => !before.has(id))), principal: 'audit', session: m.session })
  }

  // The derived files, and the contents.
  const text = (docs) => Buffer.from(docs.map((d) => canonical(d) + '\n').join(''))
  need(text(decisions).equals(get('decisions.jsonl')), 'decisions.jsonl: not the decisions in the events')
  need(text(receipts).equals(get('receipts.jsonl')), 'receipts.jsonl: not the receipts in the events')
  need(text(nodes).equals(get('proofgraph.jsonl')) && digest(text(nodes)) === m.graph_digest, 'proofgraph.jsonl: not the graph of the events')
  need(m.tip_digest === tip.digest && m.receipts === receipts.length && m.events === events.length, 'manifest.json: tip or counts')
  const tipIs = endOf(m, head, files.get('tip.json'), tip, events.length, receipts.length)
  const erased = contents.filter((c) => open(c, files) === null).length
  for (const [p, b] of files) if (p.startsWith('contents/')) need(sha(b).toString('hex') === p.slice(9), `${p}: does not match its name`)
  return { tenant: m.tenant, session: m.session, origin: head.origin, tree_size: m.tree_size, root_hash: m.root_hash, events: events.length, decisions: decisions.length, receipts: receipts.length, attested_by_callers: course.attested, passkey_votes: course.passkeys,
    open_calls: course.open, erased, grown_from: grown, redacted, tip: tipIs }
}

// --- exported ledgers, archives and exports of tenants -----------------------

// Tree computes the root of a log. roots are the roots of its complete subtrees, the largest first.
class Tree {
  constructor() { this.size = 0; this.roots = [] }
  // add appends a complete subtree of 2^level leaves.
  add(level, hash) {
    need(level >= 0 && level < 53 && this.size % 2 ** level === 0 && Number.isSafeInteger(this.size + 2 ** level), `no subtree of level ${level} begins at leaf ${this.size}`)
    for (let n = Math.floor(this.size / 2 ** level); n % 2 === 1; n = Math.floor(n / 2)) hash = sha(Buffer.from([1]), this.roots.pop(), hash)
    this.roots.push(hash)
    this.size += 2 ** level
  }
  get root() { return this.roots.length === 0 ? sha() : this.roots.reduceRight((right, left) => sha(Buffer.from([1]), left, right)) }
}

// mapRoot computes the root of a map of tips from its leaves.
function mapRoot(leaves, depth = 0) {
  if (leaves.length === 0) return Buffer.alloc(32)
  if (leaves.length === 1) return leaves[0].leaf
  const half = [[], []]
  for (const l of leaves) half[bit(l.key, depth)].push(l)
  return sha(Buffer.from([3]), mapRoot(half[0], depth + 1), mapRoot(half[1], depth + 1))
}

// Log verifies the lines of a ledger or export.
class Log {
  constructor(root, form, tenant) {
    this.sys = new System(root, form, tenant)
    this.tree = new Tree()
    this.events = []
    this.sessions = new Map()
    this.claims = new Map()
  }
  // line applies the next event, given its stored bytes.
  line(bytes, n) {
    const e = event(bytes)
    this.sys.take(e, n)
    this.tree.add(0, leafOf(bytes))
    if (e.session && (this.sys.form === 'ledger' || e.tenant === this.sys.tenant)) this.events.push([n, { ...e, bytes: null }])
  }
  // close verifies the checkpoint over all lines and returns it.
  close(text) {
    this.sys.end()
    const head = note(Buffer.from(text), this.sys.auditors(Number.MAX_SAFE_INTEGER))
    this.sys.origin(head)
    need(this.sys.form !== 'ledger' || head.epoch === '' || head.epoch === String(this.sys.epochs), 'checkpoint: is of another log epoch')
    need(head.size === this.tree.size && head.root.equals(this.tree.root), "the lines do not have the checkpoint's root")
    return head
  }
  // follow checks the calls of all sessions, and that calls of the cell caused the changes of the
  // mesh.
  follow() {
    const ids = new Set()
    for (const [n, e] of this.events) {
      need(!ids.has(e.id), `event id ${e.id} occurs twice`)
      ids.add(e.id)
      const k = e.tenant + '\0' + e.session
      if (!this.sessions.has(k)) this.sessions.set(k, new Session(this.sys, e.tenant, e.session))
      const s = this.sessions.get(k)
      if (e.name === 'effect_recorded') need(!(s.outside.has(e.callid) && e.data.effect.status === 'succeeded'), `event ${e.id}: a tenant did what only the cell may`)
      if (e.name === 'allowed' && this.sys.opened && n > this.sys.openedAt) {
        const d = e.data.decision
        if (d.tenant !== '_cell') { if (governs(d.kind)) s.outside.add(e.callid) } else need(this.sys.delegated.some(([at, o]) => at < n && o.principal === d.actor && (!('not_after' in o) || d.time <= o.not_after)), `event ${e.id}: allows a call of the cell by no operator`)
      }
      s.next(e)
      if (e.name === 'effect_started') this.claims.set(e.id, { n, tenant: e.tenant, kind: s.calls.get(e.callid).proposed.data.kind })
      for (const c of s.contents.splice(0)) open(c, new Map())
    }
    for (const [n, e] of this.sys.changes) {
      const c = this.claims.get(e.causationid)
      need(c && c.n < n && c.tenant === '_cell' && (!causes[e.name] || c.kind === causes[e.name]), `event ${e.id} (${e.name}): no call of the cell caused it`)
    }
  }
  get counts() {
    const all = [...this.sessions.values()], sum = (f) => all.reduce((n, s) => n + f(s), 0)
    return { sessions: all.length, receipts: sum((s) => s.receipts.length), attested_by_callers: sum((s) => s.attested), passkey_votes: sum((s) => s.passkeys), open_calls: sum((s) => s.open) }
  }
}

// ledger verifies an exported ledger: rows are its lines without the last one, which is trailer.
function ledger(rows, trailer, root) {
  shape(trailer, 'the last line', { binnacle_checkpoint: 's', cosignatures: 'l?' })
  const log = new Log(root, 'ledger', '')
  rows.forEach((bytes, n) => log.line(bytes, n))
  const head = log.close(trailer.binnacle_checkpoint)
  log.follow()
  let tips = "attested by audit's manifest only"
  if (head.tips !== null) {
    const leaves = [...log.sessions].map(([k, s]) => { const [tenant, session] = k.split('\0'), key = tipKey(tenant, session); return { key, leaf: tipLeaf(key, Buffer.from(s.tip.digest.slice(7), 'hex'), s.receipts.length, s.events) } })
    need(mapRoot(leaves).equals(head.tips), "the sessions do not have the checkpoint's map of tips")
    tips = 'bound by checkpoint'
  }
  return { origin: head.origin, tree_size: head.size, root_hash: head.root.toString('hex'), ...log.counts, tips }
}

// exported verifies the lines of a tenant's export.
function exported(rows, root) {
  const h = read(rows[0], 'the first line')
  shape(h, 'the first line', { binnacle_tenant_export: 's', checkpoint: 's', cosignatures: 'l?', events: 'i', kid: 's', lamport: 'i', sessions: 'i', sig: 's?', tenant: 's' })
  need(h.binnacle_tenant_export === 'v1' && token.test(h.tenant) && !h.tenant.startsWith('_org-'), 'the first line: version, or tenant')
  const log = new Log(root, 'export', h.tenant), ends = []
  let events = 0, early = false
  for (const [n, bytes] of rows.entries()) {
    const is = (name) => bytes.subarray(0, name.length + 4).equals(Buffer.from(`{"${name}":`))
    if (n === 0) continue
    if (is('binnacle_session')) { ends.push(read(bytes, `line ${n + 1}`)); continue }
    need(ends.length === 0, `line ${n + 1}: follows a line about a session, but is not one`)
    if (is('binnacle_hidden')) {
      const t = read(bytes, `line ${n + 1}`)
      shape(t, `line ${n + 1}`, { binnacle_hidden: 's', level: 'i' })
      need(/^[0-9a-f]{64}$/.test(t.binnacle_hidden), `line ${n + 1}: hash`)
      log.tree.add(t.level, Buffer.from(t.binnacle_hidden, 'hex'))
      need(!log.sys.opened || h.tenant !== '_cell' || log.sys.tenants.size > 0, `line ${n + 1}: hides events of the cell`)
      early ||= !log.sys.opened
      continue
    }
    log.line(bytes, n)
    events++
  }
  const head = log.close(h.checkpoint)
  need(h.tenant === log.sys.cell || log.sys.tenants.has(h.tenant), `tenant ${h.tenant} does not exist`)
  need(!early || h.tenant !== log.sys.first, 'hides events from before the cell is opened')
  need(lamportOf(head) === h.lamport, "the first line: its lamport is not the checkpoint's")
  need(signed(log.sys.reg.at(h.kid, 'audit', 'manifest', h.lamport), 'binnacle tenant export v1', h), 'the first line: signature does not verify')
  need(head.tips !== null, 'the first line: the checkpoint commits to no map of tips')
  need(h.events === events && h.sessions === ends.length, 'the first line: numbers')
  log.follow()
  let last = ''
  for (const t of ends) {
    shape(t, 'a session', { binnacle_session: 's', events: 'i', path: 'l', receipts: 'i', tip_digest: 's' })
    const at = (ok, what) => need(ok, `session ${t.binnacle_session}: ${what}`)
    at(Buffer.compare(Buffer.from(last), Buffer.from(t.binnacle_session)) < 0, 'not sorted and unique')
    last = t.binnacle_session
    const s = log.sessions.get(h.tenant + '\0' + t.binnacle_session)
    at(s, 'has no events here')
    at(/^sha256:[0-9a-f]{64}$/.test(t.tip_digest) && t.events >= 0 && t.receipts >= 0 && t.path.every((x) => /^[0-9a-f]{64}$/.test(x)), 'not a tip')
    const tip = { digest: Buffer.from(t.tip_digest.slice(7), 'hex'), receipts: t.receipts, events: t.events }
    at(tipRoot(h.tenant, t.binnacle_session, tip, t.path.map((x) => Buffer.from(x, 'hex'))).equals(head.tips), "the checkpoint's map of tips does not contain this tip")
    at(t.tip_digest === s.tip.digest && t.events === s.events && t.receipts === s.receipts.length, 'goes on after what the export holds')
  }
  need(ends.length === log.sessions.size, 'sessions without their ends')
  return { tenant: h.tenant, origin: head.origin, tree_size: head.size, root_hash: head.root.toString('hex'), events, hidden: head.size - events, ...log.counts, complete: 'each session bound by checkpoint, their number attested by audit only' }
}

// archive verifies the archive in a folder.
function archive(dir, root) {
  const ix = JSON.parse(utf8.decode(readFileSync(join(dir, 'archive.json')))), rows = []
  shape(ix, 'archive.json', { format: 's', segment: 'i', checkpoint: 's', cosignatures: 'l?', segments: list({ file: 's', from: 'i', to: 'i', root: 's', sha256: 's' }) })
  need(ix.format === 'binnacle-archive/v1' && ix.segment > 0 && Number.isInteger(Math.log2(ix.segment)), 'archive.json: format, or segment')
  for (const [i, s] of (ix.segments ?? []).entries()) {
    need(basename(s.file) === s.file && s.from === rows.length + 1 && s.to >= s.from && (s.to === s.from + ix.segment - 1 || i === ix.segments.length - 1 && s.to < s.from + ix.segment), `archive.json: segment ${i + 1}`)
    const packed = readFileSync(join(dir, s.file)), tree = new Tree()
    need(sha(packed).toString('hex') === s.sha256, `${s.file}: is not the file that the index names`)
    for (const row of lines(gunzipSync(packed), s.file)) { rows.push(row); tree.add(0, leafOf(row)) }
    need(rows.length === s.to && tree.root.toString('hex') === s.root.toLowerCase(), `${s.file}: does not hold the events that the log does`)
  }
  return ledger(rows, { binnacle_checkpoint: ix.checkpoint, ...(ix.cosignatures ? { cosignatures: ix.cosignatures } : {}) }, root)
}

// verifyFile verifies a pack, ledger or export in a file, or the archive in a folder.
export function verifyFile(path, root) {
  return statSync(path).isDirectory() ? archive(path, root) : verifyBytes(readFileSync(path), root)
}

function verifyBytes(bytes, root) {
  if (bytes[0] !== 0x7b) return verify(bytes, root)
  const rows = lines(bytes, 'the file')
  need(rows.every((r) => r.length < 16 << 20), 'a line is too long')
  if (rows[0].subarray(0, 26).equals(Buffer.from('{"binnacle_tenant_export":'))) return exported(rows, root)
  return ledger(rows.slice(0, -1), read(rows[rows.length - 1], 'the last line'), root)
}

function answer(file, report) {
  let out
  try { out = { file, ok: true, report: report() } } catch (e) { out = { file, ok: false, error: e.message } }
  console.log(JSON.stringify(out))
  if (!out.ok) process.exitCode = 1
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const root = process.argv[process.argv.indexOf('--root') + 1]
  const args = process.argv.slice(2).filter((a) => a !== '--root' && a !== root)
  if (args[0] === '--stdin') {
    let held = Buffer.alloc(0), n = 0
    for await (const part of process.stdin) {
      held = Buffer.concat([held, part])
      for (let size; held.length >= 4 && held.length >= 4 + (size = held.readUInt32BE(0)); held = held.subarray(4 + size)) answer(String(n++), () => verifyBytes(held.subarray(4, 4 + size), root))
    }
  } else for (const file of args) answer(file, () => verifyFile(file, root))
}
