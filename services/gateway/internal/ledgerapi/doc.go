// Package ledgerapi serves the contents of the ledger and of the views: events and
// entries, content objects, search, receipts, the list of sessions, proof graphs,
// evidence packs, exports of tenants, inclusion proofs, and the views of all services. It
// also verifies evidence packs. It changes nothing and proposes no calls. Each route
// checks its scope before a query is sent. Package tlog serves the checkpoints,
// consistency proofs and tiles of the transparency log.
package ledgerapi
