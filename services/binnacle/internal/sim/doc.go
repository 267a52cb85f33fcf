// Package sim is the simulator: the real shells of gateway, policy, executors,
// vault-broker and audit on a NATS server in memory, under a seed that owns the
// order of everything that happens on the ledger. DESIGN.md says what is
// simulated and what is checked. The package holds tests alone.
package sim
