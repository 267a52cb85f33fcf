// Package core is the root of the trusted core: the code that decides whether a
// record is authentic and whether an effect was permitted.
//
// The trusted core consists of canonical bytes (canon), signatures (sign), the
// signed documents (contract), precedence of policies and intent checks (guard),
// rules for network requests (netrule),
// rules for receipts (receipt), the causal graph (proofgraph), the Merkle log
// (translog), the key registry (trust), and evidence packs, exports and archives
// (evidence). The module also holds the descriptors of queries between services (query).
//
// Transport, storage, clocks, randomness, policy languages and HTTP are
// deliberately outside: callers pass times, salts and bytes as arguments, so that
// a verifier on another machine computes the same result from the same input.
// Only evidence and cmd/binnacle-verify read files.
//
// The module has no require block, and TestImports fails when a package imports anything
// outside the trusted core that its list does not contain. A new package belongs here
// only if a stranger needs it to verify a record; everything else belongs in pkg or in a
// service.
package core
