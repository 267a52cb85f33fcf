// Package ledgerapi serves the contents of the ledger and of the views: events, search,
// receipts, evidence packs, proofs, and the services' views. It changes nothing and
// proposes no calls; each route checks its scope before a query is sent. Reads of the
// ledger belong here; proofs of the transparency log belong in package tlog.
package ledgerapi
