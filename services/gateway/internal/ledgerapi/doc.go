// Package ledgerapi serves what the ledger and the views hold: events, search,
// receipts, evidence packs, proofs, and the services' views. It changes nothing and
// proposes no calls; each route checks its scope before a query is sent. A new read
// of the ledger belongs here, a new proof of the log in package tlog.
package ledgerapi
