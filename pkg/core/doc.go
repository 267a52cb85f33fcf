// Package core is the root of the trusted core: the code that decides whether
// a record is authentic and whether an effect was permitted.
//
// Trusted here: canonical bytes (canon), signatures (sign), the signed
// documents (contract), precedence and intent checks (guard), receipt rules
// (receipt), the causal graph (proofgraph), the Merkle log (translog), the key
// registry (trust), and packs, exports and archives (evidence). Deliberately not
// here: transport, storage, clocks, randomness, policy languages, HTTP. The module
// has no require block; a test fails when a package imports anything outside the
// standard library and this module. Only evidence and cmd/binnacle-verify read
// files.
package core
