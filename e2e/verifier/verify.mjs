// A second verifier of evidence packs, written from
// docs/reference/ledger-format.md with nothing but Node's standard library.
// Usage: node verify.mjs --root k-… pack.tar…   (prints one JSON document each)
//        node verify.mjs --root k-… --stdin     (packs one after the other, each
//        behind its length as 4 bytes, big endian)
import { createHash, createPublicKey, verify as cryptoVerify } from 'node:crypto'
import { readFileSync, readdirSync } from 'node:fs'
import { pathToFileURL } from 'node:url'

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

// shallow refuses nesting above 128 before anything that recurses sees it.
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

// read takes bytes that must be the canonical form of themselves.
function read(bytes, what) {
  let v
  shallow(bytes, what)
  try { v = JSON.parse(utf8.decode(bytes)) } catch (e) { fail(`${what}: ${e.message}`) }
  need(Buffer.from(canonical(v)).equals(bytes), `${what}: not in canonical form`)
  return v
}

// shape checks a document's members: required ones, then those marked "?".
// A member's type is s(tring), i(nteger), b(oolean, true where present),
// o(bject), l(ist of strings), or a function.
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

// fits checks a value; an optional member is absent where it would be empty.
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
const unsigned = (doc) => { const { sig, ...rest } = doc; return rest }
const signed = (pub, domain, doc) => typeof doc.sig === 'string' && ed25519(pub, Buffer.from(domain + '\n' + canonical(unsigned(doc))), b64(doc.sig, 'sig'))

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
      if (old.owner === 'provision' && old.uses.includes('root') && [...this.keys.values()].filter((x) => x.owner === 'provision' && x.uses.includes('root') && x.since <= lamport && !(x.revoked && x.revoked <= lamport)).length < 2) bad('the last root cannot be revoked')
      old.revoked ||= lamport
    } else {
      if (old) bad('published twice')
      this.keys.set(k.kid, { pub, owner: k.owner, uses: k.uses, since: lamport, revoked: 0 })
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
const shared = new Set(['allowed', 'approval_recorded', 'call_proposed', 'cancel_requested', 'config_reloaded', 'effect_recorded', 'effect_started', 'escalated', 'freeze_acknowledged', 'key_published', 'key_revoked', 'log_epoch_opened', 'policy_activated', 'secret_requested', 'start_expired',
  'tool_approved', 'tool_registered', 'tool_retired'])

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

// sorted lists distinct ids by their bytes.
const sorted = (ids) => [...new Set(ids.filter(Boolean))].map((id) => Buffer.from(id)).sort(Buffer.compare).map(String)

// contentsOf lists what a call refers to.
const contentsOf = (c) => (c.body ? [c.args, c.body] : [c.args])

// open returns a content's bytes, or null where it is erased or encrypted.
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

// root of an inclusion proof, RFC 6962 section 2.1.1 as RFC 9162 section
// 2.1.3.2 computes it.
const leafOf = (bytes) => sha(Buffer.from([0]), bytes)

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

// grows checks a consistency proof as RFC 9162 section 2.1.4.2 does.
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
  return { origin, text, size: Number(rows[1]), root, tips, lamport: lines.find(([name, value]) => name === 'lamport' && value !== null)?.[1] }
}

// lamportOf reads a checkpoint's first lamport line.
function lamportOf(head) {
  need(/^[1-9]\d*$/.test(head.lamport ?? '') && Number.isSafeInteger(Number(head.lamport)), 'checkpoint: lamport line')
  return Number(head.lamport)
}

// --- the map of tips ---------------------------------------------------------

const bit = (key, depth) => (key[depth >> 3] >> (7 - (depth & 7))) & 1
const u64 = (n) => { const b = Buffer.alloc(8); b.writeBigUInt64BE(BigInt(n)); return b }

// tipRoot climbs from the leaf of a session to the root of the map.
function tipRoot(tenant, session, tip, path) {
  const key = sha(Buffer.from(tenant), Buffer.from([0]), Buffer.from(session))
  need(path.length <= 256 && !(path.length > 0 && path[path.length - 1].every((b) => b === 0)), 'tip.json: path')
  let at = sha(Buffer.from([2]), key, tip.digest, u64(tip.receipts), u64(tip.events))
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
  need(root.equals(head.tips), "tip.json: the checkpoint's map of tips does not hold this")
  need(p.tip_digest === tip.digest && p.events === events && p.receipts === receipts, 'tip.json: the session goes on after what the pack holds')
  return 'bound by checkpoint'
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

  // Keys and policies.
  const reg = new Registry(rootKID), policies = new Set()
  const system = lines(get('system.jsonl'), 'system.jsonl')
  for (const bytes of system) {
    const e = event(bytes)
    if (e.service === 'provision' && (e.name === 'key_published' || e.name === 'key_revoked')) {
      need(!!e.data.revoked === (e.name === 'key_revoked') && e.data.tenant === e.tenant, `event ${e.id}: does not say what its name says`)
      reg.apply(e.data, e.n)
    } else if (e.service === 'policy' && e.name === 'policy_activated') {
      const body = open(e.data.bundle, files)
      need(body === null || digest(body) === e.data.digest, `policy ${e.data.digest}: bundle does not match its digest`)
      policies.add(e.data.layer + e.data.digest)
    } else fail(`event ${e.id}: ${e.type} is not a system event`)
  }
  need(reg.keys.has(rootKID), 'the trusted root is not published here')

  // Seals.
  const audit = reg.at(m.kid, 'audit', 'manifest', m.lamport)
  need(signed(audit, 'binnacle evidence manifest v1', m), 'manifest.json: signature does not verify')
  const env = read(get('attestation.dsse.json'), 'attestation.dsse.json')
  const statement = canonical({ _type: 'https://in-toto.io/Statement/v1', predicate: { session: m.session, tenant: m.tenant, tip_digest: m.tip_digest, tree_size: m.tree_size }, predicateType: 'urn:binnacle:evidence-pack:v1',
    subject: [{ digest: { sha256: sha(files.get('manifest.json')).toString('hex') }, name: 'manifest.json' }] })
  const type = 'application/vnd.in-toto+json'
  const dsse = env.signatures?.[0]?.sig
  need(typeof dsse === 'string' && canonical(env) === canonical({ payload: Buffer.from(statement).toString('base64'), payloadType: type, signatures: [{ keyid: m.kid, sig: dsse }] }), 'attestation.dsse.json: not the statement about this manifest')
  need(ed25519(audit, Buffer.from(`DSSEv1 ${type.length} ${type} ${Buffer.byteLength(statement)} ${statement}`), b64(dsse, 'attestation')), 'attestation.dsse.json: signature does not verify')

  // The log.
  const pubs = [...reg.keys.values()].filter((k) => k.owner === 'audit' && k.uses.includes('checkpoint') && k.since <= m.lamport && !(k.revoked && k.revoked <= m.lamport)).map((k) => k.pub)
  const head = note(get('checkpoint'), pubs)
  need(head.origin === m.origin && head.size === m.tree_size && head.root.toString('hex') === m.root_hash && lamportOf(head) === m.lamport, 'checkpoint: is not the one the manifest names')
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
  const ballots = new Map(), calls = new Map(), contents = [], decisions = [], receipts = [], nodes = []
  let tip = { digest: digest(Buffer.from(`binnacle receipt genesis v1\n${m.tenant}\n${m.session}`)), index: 0 }, previous = ''
  const activated = (layer, digests) => digests.split('+').every((d) => policies.has(layer + d))

  const judged = (c, d) => {
    const at = (what) => fail(`decision ${d.id}: ${what}`)
    if (!signed(reg.at(d.kid, 'policy', 'decision', d.lamport), 'binnacle decision v1', d)) at('signature does not verify')
    if (digest(Buffer.from(canonical(d.facts))) !== d.facts_digest) at('facts')
    if (digest(Buffer.from(canonical({ args_digest: d.args_digest, facts_digest: d.facts_digest, policies: d.policies, reason_code: d.reason_code, verdict: d.verdict }))) !== d.policy_decision_hash) at('policy_decision_hash')
    if ((d.verdict === 'ALLOW') !== !!d.intent) at('an intent belongs to ALLOW and only to ALLOW')
    if (d.intent && (d.intent.call_id !== d.call_id || d.intent.args_digest !== d.args_digest || d.intent.kind !== d.kind || d.intent.tool !== d.tool)) at('intent speaks of another call')
    const p = c.proposed
    if (d.call_id !== p.data.id || d.args_digest !== p.data.args.commitment || d.kind !== p.data.kind || d.tool !== p.data.tool) at('is about another call')
    if (d.actor !== p.actor || d.client !== p.client || d.session !== (p.session ?? '') || d.tenant !== p.tenant) at('names another caller')
    if (d.intent && (d.intent.executor === 'gateway') !== (p.data.report_within_ms ?? 0) > 0) at('the intent is for the caller, or not, otherwise than proposed')
    if (d.verdict !== 'DENY' && !(activated('p0', d.policies.p0) && activated('p1', d.policies.p1)) || d.policies.p2 && !activated('p2', d.policies.p2)) at('names a policy that was never activated')
    decisions.push(d)
    if (!c.escalated || d === c.escalated) return
    for (const v of d.facts.approvals ?? []) {
      const cast = c.votes.get(v.event_id)
      if (!cast || cast.approver !== v.approver || cast.vote !== v.vote || canonical(cast.roles ?? []) !== canonical(v.roles ?? [])) at('counts a vote that is not recorded')
    }
    if (d.verdict === 'ALLOW' && !c.settled) at('allowed before the escalation was settled')
  }

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
    const parents = sorted(led)
    nodes.push({ digest: digest(e.bytes), id: e.id, kind,
      lamport: e.n, name: e.name, parents, principal: e.service, session: e.session ?? '' })
    const d = e.data
    let c = calls.get(e.callid)
    if (e.name === 'call_proposed') {
      if (c || d.id !== e.callid) at('proposed twice, or of another call')
      calls.set(e.callid, { proposed: e, votes: new Map() })
      contents.push(...contentsOf(d))
      continue
    }
    if (!c) at('its call was never proposed')
    switch (e.name) {
      case 'escalated':
        if (e.service !== 'policy' || c.escalated || c.decision || c.recorded || d.decision.verdict !== 'ESCALATE' || canonical(d.call) !== canonical(c.proposed.data)) at('not the one escalation of this call')
        c.escalated = d.decision
        contents.push(...contentsOf(d.call))
        judged(c, d.decision)
        break
      case 'approval_recorded':
        if (e.service !== 'policy' || !c.escalated || c.settled || c.decision || c.recorded || d.call_id !== c.proposed.data.id) at('a vote on a call that does not wait for one')
        c.votes.set(e.id, d)
        c.settled = !!d.resolved
        if (d.sig || d.kid) {
          const ballot = { approver: d.approver, call_id: d.call_id, decision_digest: digest(Buffer.from(canonical(c.escalated))), kid: d.kid ?? '', ...(d.reason ? { reason: d.reason } : {}), tenant: d.tenant, vote: d.vote }
          const pub = reg.at(d.kid ?? '', 'approver:' + d.approver, 'approval', e.n)
          if (!ed25519(pub, Buffer.from('binnacle approval v1\n' + canonical(ballot)), b64(d.sig ?? '', 'sig'))) at('the ballot does not verify')
        }
        break
      case 'allowed':
        if (e.service !== 'policy' || c.decision || c.recorded || canonical(d.call) !== canonical(c.proposed.data) || d.decision.verdict !== 'ALLOW' || d.decision.intent?.executor !== e.target) at('not the one decision on this call')
        c.decision = d.decision
        contents.push(...contentsOf(d.call))
        judged(c, d.decision)
        break
      case 'effect_started':
      case 'start_expired': {
        if (!c.decision || c.started || c.recorded) at('started without a decision, or twice')
        if (d.call_id !== c.proposed.data.id || d.decision_id !== c.decision.id || d.intent_id !== c.decision.intent.id) at('starts something else than was allowed')
        if (e.service !== (e.name === 'start_expired' ? 'policy' : c.decision.intent.executor)) at('claimed by another')
        if ((d.executed_by ?? '') !== (e.service === 'gateway' ? 'caller' : '')) at('executed_by is not whom the intent is for')
        c.started = e
        break
      }
      case 'effect_recorded': {
        if (c.recorded || (d.decision && c.decision)) at('second outcome, or second decision')
        if (d.decision) judged(c, d.decision)
        const dec = d.decision ?? c.decision, r = d.receipt, f = d.effect
        if (!dec) at('no decision for it')
        if (r.id !== 'r-' + r.call_id || !signed(reg.at(r.kid, r.executor, 'receipt', r.lamport), 'binnacle receipt v1', r)) at('receipt does not verify')
        const output = d.output?.commitment ?? ''
        if (r.effect_digest !== digest(Buffer.from(canonical(f))) || f.call_id !== r.call_id || f.status !== r.status || (f.output_digest ?? '') !== (r.output_digest ?? '') || (f.output_digest ?? '') !== output) at('effect and receipt disagree')
        if (r.decision_id !== dec.id || r.decision_digest !== digest(Buffer.from(canonical(dec))) || r.verdict !== dec.verdict || r.reason_code !== dec.reason_code || r.call_id !== dec.call_id || r.args_digest !== dec.args_digest || r.session !== dec.session ||
          r.tenant !== dec.tenant || f.tool !== dec.tool || f.input_digest !== dec.args_digest) at('decision and receipt disagree')
        const lent = r.executor === 'gateway', by = r.attested_by ?? ''
        if (by !== (f.attested_by ?? '') || (by === '' ? lent && !['unknown', 'cancelled'].includes(r.status) : by !== 'caller' || !lent || !['succeeded', 'failed', 'timed_out', 'cancelled'].includes(r.status))) at('attested_by is not what executor and status come to')
        if (!dec.intent) { if (r.executor !== 'policy' || r.status !== 'denied' || r.intent_id) at('a call that was not allowed can only end denied, by policy') } else {
          if (r.intent_id !== dec.intent.id) at('names another intent')
          if (r.status === 'expired' ? r.executor !== 'policy' : r.executor !== dec.intent.executor || r.status === 'denied') at('signed by another than the intent allows')
          if (!c.started || c.started.service !== e.service) at('outcome of an effect its recorder never claimed')
        }
        if (e.service !== r.executor) at('published by another than signed it')
        if (r.prev !== tip.digest || r.index !== tip.index + 1) at('does not follow the chain')
        if (!dec.intent && dec.verdict !== 'DENY') at('ends denied by a decision that does not deny')
        tip = { digest: digest(Buffer.from(canonical(r))), index: r.index }
        previous = e.id
        c.recorded = true
        receipts.push(r)
        if (d.output) contents.push(d.output)
        break
      }
    }
  }

  if (head.tips !== null) {
    const before = new Set(nodes.flatMap((n) => n.parents))
    nodes.push({ digest: digest(Buffer.from(head.text)), id: `checkpoint-${head.size}`, kind: 'CHECKPOINT', lamport: m.lamport + 1, name: 'checkpoint', parents: sorted(nodes.map((n) => n.id).filter((id) => !before.has(id))), principal: 'audit', session: m.session })
  }

  // What is derived, and the contents.
  const text = (docs) => Buffer.from(docs.map((d) => canonical(d) + '\n').join(''))
  need(text(decisions).equals(get('decisions.jsonl')), 'decisions.jsonl: not the decisions in the events')
  need(text(receipts).equals(get('receipts.jsonl')), 'receipts.jsonl: not the receipts in the events')
  need(text(nodes).equals(get('proofgraph.jsonl')) && digest(text(nodes)) === m.graph_digest, 'proofgraph.jsonl: not the graph of the events')
  need(m.tip_digest === tip.digest && m.receipts === receipts.length && m.events === events.length, 'manifest.json: tip or counts')
  const tipIs = endOf(m, head, files.get('tip.json'), tip, events.length, receipts.length)
  const erased = contents.filter((c) => open(c, files) === null).length
  for (const [p, b] of files) if (p.startsWith('contents/')) need(sha(b).toString('hex') === p.slice(9), `${p}: does not match its name`)
  return { tenant: m.tenant, session: m.session, origin: head.origin, tree_size: m.tree_size, root_hash: m.root_hash, events: events.length, decisions: decisions.length, receipts: receipts.length, attested_by_callers: receipts.filter((r) => r.attested_by === 'caller').length,
    open_calls: [...calls.values()].filter((c) => !c.recorded).length, erased, grown_from: grown, redacted, tip: tipIs }
}

function answer(file, pack, root) {
  let out
  try { out = { file, ok: true, report: verify(pack, root) } } catch (e) { out = { file, ok: false, error: e.message } }
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
      for (let size; held.length >= 4 && held.length >= 4 + (size = held.readUInt32BE(0)); held = held.subarray(4 + size)) answer(String(n++), held.subarray(4, 4 + size), root)
    }
  } else for (const file of args) answer(file, readFileSync(file), root)
}
