// Checks schemas/conformance/signatures.json with Node's standard library only. It computes the
// message of each document again, and makes each signature again from the seed.
import { createHash, createPrivateKey, createPublicKey, sign, verify } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { canonical } from './verify.mjs'

const spki = (raw) => createPublicKey({ key: Buffer.concat([Buffer.from('302a300506032b6570032100', 'hex'), raw]), format: 'der', type: 'spki' })
const pkcs8 = (seed) => createPrivateKey({ key: Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), seed]), format: 'der', type: 'pkcs8' })

let wrong = 0
for (const v of JSON.parse(readFileSync(process.argv[2])).signatures) {
  const message = v.document && v.domain ? Buffer.from(v.domain + '\n' + canonical(v.document)) : Buffer.from(v.message, 'hex')
  const pub = Buffer.from(v.public_key, 'hex')
  const sig = Buffer.from(v.signature, 'base64')
  const said = [
    ['message', message.toString('hex') === v.message],
    ['key id', 'k-' + createHash('sha256').update(pub).digest('hex').slice(0, 32) === v.kid],
    ['public key', createPublicKey(pkcs8(Buffer.from(v.seed, 'hex'))).export({ format: 'der', type: 'spki' }).subarray(12).equals(pub)],
    ['verifies', verify(null, message, spki(pub), sig) === v.ok],
    ['made again', sign(null, message, pkcs8(Buffer.from(v.seed, 'hex'))).equals(sig) === v.ok],
  ]
  for (const [what, holds] of said) if (!holds) { wrong++; console.log(`${v.about}: ${what} is not as the file says`) }
}
console.log(wrong ? `${wrong} wrong` : 'signatures ok')
