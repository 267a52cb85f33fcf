// Package ledgerapi serves the contents of the ledger and of the views: events, search,
// receipts, evidence packs, proofs, and the views of all services. It changes nothing
// and proposes no calls. Each route checks its scope before a query is sent. Package
// tlog, not this one, serves proofs of the transparency log.
package ledgerapi
